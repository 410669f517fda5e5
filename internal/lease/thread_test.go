package lease

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/pkg/netdev"
)

// pinned is a request for a queue whose NAPI's thread runs on some CPUs.
func (n *node) pinned(p pod, queue int, cpus netdev.CPUs) Request {
	n.tb.Helper()
	r := n.request(p, queue)
	s := &r.Devices[0].Settings
	s.BusyPollBudget, s.Threaded, s.ThreadCPUs = 0, true, cpus
	return r
}

func (n *node) unmet(queue int) string {
	n.tb.Helper()
	g, err := n.Grant(deviceID(queue), n.Leases()[0].NetnsCookie)
	n.ok(err)
	if all := n.Unmet(); all[deviceID(queue)] != g.Tuning.Unmet() {
		n.tb.Errorf("a grant tells %q, the manager %q", g.Tuning.Unmet(), all)
	}
	return g.Tuning.Unmet()
}

func (f *fakeNAPIs) wantOn(t *testing.T, when string, napi uint32, want netdev.CPUs) {
	t.Helper()
	if f.pids[napi] == 0 {
		t.Errorf("%s NAPI %d has no thread", when, napi)
	} else if got := f.threads[f.pids[napi]]; got != want {
		t.Errorf("%s the thread of NAPI %d is on %s, want %s", when, napi, got, want)
	}
}

func TestThreadIsPinnedOnceThereIsOne(t *testing.T) {
	n, f := napiNode(t, operators, 11, 12, 13, 14)
	n.ok(n.Activate(n.pinned(alice, 1, "2-3")))
	f.wantOn(t, "leased", 12, "2-3")
	if len(f.threads) != 1 {
		t.Errorf("threads: %v", f.threads)
	}
	if unmet := n.unmet(1); unmet != "" {
		t.Errorf("unmet: %s", unmet)
	}
	n.restart()
	f.wantOn(t, "after a restart", 12, "2-3")
	n.del(alice)
	f.want(t, "at the end", map[uint32]fakeSettings{11: operators, 12: operators, 13: operators, 14: operators})
}

// A thread that was there before goes back to where it was.
func TestThreadOfTheOperatorIsPutBack(t *testing.T) {
	threaded := operators
	threaded.threaded = netdev.ThreadedOn
	for _, moved := range []bool{false, true} {
		t.Run(fmt.Sprintf("moved by someone else %t", moved), func(t *testing.T) {
			n, f := napiNode(t, threaded, 11, 12, 13, 14)
			_, err := f.NAPI(12) // which starts its thread
			n.ok(err)
			f.threads[f.pids[12]] = "1"
			n.ok(n.Activate(n.pinned(alice, 1, "2-3")))
			f.wantOn(t, "leased", 12, "2-3")
			n.restart()
			want := netdev.CPUs("1")
			if moved {
				want = "5"
				f.threads[f.pids[12]] = want
				n.ok(n.Retune())
				f.wantOn(t, "moved by someone else", 12, want)
				if unmet := n.unmet(1); !strings.Contains(unmet, "not on CPUs 2-3: someone else has put it on 5") {
					t.Errorf("unmet: %s", unmet)
				}
			}
			n.del(alice)
			f.wantOn(t, "at the end", 12, want)
		})
	}
}

// A driver that resets makes NAPIs and threads anew.
func TestNewThreadsArePinnedAgain(t *testing.T) {
	n, f := napiNode(t, operators, 11, 12, 13, 14)
	n.ok(n.Activate(n.pinned(alice, 0, "2-3")))
	f.threads, f.pids = nil, nil
	f.link(fakeSettings{}, 31, 32, 33, 34)
	n.ok(n.Retune())
	f.wantOn(t, "made anew", 31, "2-3")

	// The thread alone, on the same NAPI: it starts where nobody put it.
	f.thread(31, netdev.ThreadedOff)
	f.thread(31, netdev.ThreadedOn)
	f.pids[31], f.threads = 77, map[int]netdev.CPUs{77: "4-7"}
	n.ok(n.Retune())
	f.wantOn(t, "with a new thread", 31, "2-3")
	n.del(alice)
	f.want(t, "at the end", map[uint32]fakeSettings{31: {}, 32: {}, 33: {}, 34: {}})
}

// Without the rights to pin, the lease goes on, and tells what would give them.
func TestThreadThatCannotBePinnedIsTold(t *testing.T) {
	for name, why := range map[string]error{
		"in another PID namespace": netdev.ErrThreadHidden, "without CAP_SYS_NICE": unix.EPERM,
	} {
		t.Run(name, func(t *testing.T) {
			n, f := napiNode(t, operators, 11, 12, 13, 14)
			f.pinning = fmt.Errorf("pin: %w", why)
			n.ok(n.Activate(n.pinned(alice, 1, "2-3")))
			f.wantOn(t, "leased", 12, "0-7")
			unmet := n.unmet(1)
			for _, want := range []string{"not pinned to CPUs 2-3", why.Error(), "napiThreads.pin: true"} {
				if !strings.Contains(unmet, want) {
					t.Errorf("unmet: %q; want %q in it", unmet, want)
				}
			}
			n.ok(n.Retune())
			f.pinning = nil
			n.ok(n.Retune())
			f.wantOn(t, "with the rights", 12, "2-3")
			if unmet := n.unmet(1); unmet != "" {
				t.Errorf("unmet: %s", unmet)
			}
			n.del(alice)
		})
	}
}

func TestThreadThatTheKernelDoesNotMove(t *testing.T) {
	n, f := napiNode(t, operators, 11, 12, 13, 14)
	f.pinning = errors.New("none of these CPUs is online")
	n.ok(n.Activate(n.pinned(alice, 1, "900")))
	if unmet := n.unmet(1); !strings.HasSuffix(unmet, "not pinned to CPUs 900: none of these CPUs is online") {
		t.Errorf("unmet: %s", unmet)
	}
	n.del(alice)
}

// An agent that has lost its rights lets the lease end all the same, and the thread is put back by one that has them.
func TestLeaseEndsThoughItsThreadCannotBePutBack(t *testing.T) {
	threaded := operators
	threaded.threaded = netdev.ThreadedOn
	for _, why := range []error{netdev.ErrThreadHidden, unix.EPERM} {
		t.Run(why.Error(), func(t *testing.T) {
			n, f := napiNode(t, threaded, 11, 12, 13, 14)
			n.ok(n.Activate(n.pinned(alice, 1, "2-3")))
			f.pinning = why
			n.restart()
			n.del(alice)
			n.wantLeases("after DEL")
			f.wantOn(t, "after DEL", 12, "2-3")
			f.pinning = nil
			n.restart()
			f.wantOn(t, "after the next start", 12, "0-7")
			n.wantNothingLeft()
		})
	}
}

// Queues without NAPIs of their own are left alone altogether.
func TestThreadThatTheNAPICannotHave(t *testing.T) {
	n, f := napiNode(t, operators, 11, 12, 13, 14)
	f.old = true
	n.ok(n.Activate(n.pinned(alice, 1, "2-3")))
	unmet := n.unmet(1)
	if !strings.Contains(unmet, "if at all: threaded; ") || !strings.HasSuffix(unmet, ": the NAPI has no thread") {
		t.Errorf("unmet: %s", unmet)
	}
	n.del(alice)
}
