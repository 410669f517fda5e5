package lease

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/testutil"
	"github.com/afxdp-project/afxdp/pkg/netdev"
)

func TestMain(m *testing.M) {
	if os.Getenv(storyEnv) != "" {
		os.Exit(tellStory())
	}
	// The tests wait for the kernel more than they compute. The command line has the last word.
	_ = flag.Set("test.parallel", "8")
	os.Exit(testutil.Main(m))
}

const (
	near   = "lsnear"
	far    = "lsfar"
	queues = 4
	// patience is how long anything may take that is bound to happen.
	patience = 20 * time.Second
)

// world is a network namespace with the directories that belong to it.
type world struct{ state, pins, sysfs string }

// node is the agent's side of a test, in a world of its own: a NIC with four queues and a Manager for it.
type node struct {
	*Manager
	world
	tb    testing.TB
	netns *testutil.Netns
	nics  *netdev.Handle
	fault func(step string) error
	napis napis // nil: the kernel's
}

// newNode makes a node, and makes sure that nothing is left of it when the test ends. The test's goroutine is in the
// node's network namespace from then on, to its end; others call inside.
func newNode(t *testing.T) *node {
	t.Helper()
	t.Parallel()
	n := emptyNode(t)
	n.start()
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
		n.wantNothingLeft()
	})
	return n
}

// emptyNode has no Manager yet.
func emptyNode(t *testing.T) *node {
	t.Helper()
	// Where veth's queues are linked to no NAPI it is not tuned: the kernel is taken for one that cannot tell.
	n := &node{tb: t, netns: testutil.NewNetns(t), napis: &fakeNAPIs{oldest: true}}
	n.inside()
	// The NIC is silent but for the test's packets.
	for _, which := range []string{"all", "default"} {
		_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+which+"/disable_ipv6", []byte("1"), 0)
	}
	testutil.Veth(t, testutil.VethPair{Near: near, Far: far, Queues: queues})
	n.world = newWorld(t)
	var err error
	if n.nics, err = (netdev.Config{SysfsRoot: n.sysfs}).Open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.nics.Close() })
	return n
}

func newWorld(t *testing.T) world {
	t.Helper()
	dir, err := os.MkdirTemp("/run", "node")
	if err != nil {
		t.Fatal(err)
	}
	w := world{filepath.Join(dir, "state"), filepath.Join("/sys/fs/bpf", filepath.Base(dir)), filepath.Join(dir, "sys")}
	if err := errors.Join(os.Mkdir(w.sysfs, 0o700), unix.Mount("sysfs", w.sysfs, "sysfs", 0, "")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// Detached: a process that a parallel test is just starting may have a copy of a descriptor in it.
		if err := unix.Unmount(w.sysfs, unix.MNT_DETACH); err != nil {
			t.Error(err)
			return // what would be removed is the kernel's
		}
		if err := errors.Join(os.RemoveAll(dir), os.RemoveAll(w.pins)); err != nil {
			t.Error(err)
		}
	})
	return w
}

// inside takes the calling goroutine into the node's network namespace, with a thread that ends with it.
func (n *node) inside() {
	runtime.LockOSThread()
	if err := unix.Setns(n.netns.FD(), unix.CLONE_NEWNET); err != nil {
		panic(err)
	}
}

func (n *node) config() Config {
	return Config{StateDir: n.state, PinDir: n.pins, NICs: n.nics, napis: n.napis, Fault: func(step string) error {
		if n.fault == nil {
			return nil
		}
		return n.fault(step)
	}}
}

// start starts an agent that has nothing to report.
func (n *node) start() {
	n.tb.Helper()
	if findings := n.startReporting(); len(findings) > 0 {
		n.tb.Errorf("findings at the start: %v", errors.Join(findings...))
	}
}

func (n *node) startReporting() (findings []error) {
	n.tb.Helper()
	var err error
	if n.Manager, findings, err = New(n.config()); err != nil {
		n.tb.Fatal(err)
	}
	return findings
}

// restart starts the agent anew.
func (n *node) restart() {
	n.tb.Helper()
	if err := n.Close(); err != nil {
		n.tb.Error(err)
	}
	n.start()
}

func (n *node) link(name string) netdev.Link {
	n.tb.Helper()
	l, err := n.nics.LinkByName(name)
	if err != nil {
		n.tb.Fatal(err)
	}
	return l
}

// pod is a pod sandbox; the number is that of its network namespace.
type pod struct {
	name, sandbox string
	cookie        uint64
}

var (
	alice = pod{"alice", "a1", 1 << 40}
	bob   = pod{"bob", "b1", 1<<40 + 1}
)

var pooled = Settings{
	Pool: "fast", ZeroCopy: ZeroCopyNever, NeedWakeup: true, CountUnclaimed: true, BusyPollBudget: 64,
	DeferHardIRQs: 2, GROFlushTimeout: 200 * time.Microsecond,
}

func (p pod) attachment(ifname string) Attachment {
	return Attachment{Network: "net", ContainerID: p.sandbox, Ifname: ifname}
}

func deviceID(queue int) string { return fmt.Sprintf("%s-q%d", near, queue) }

// request is what an ADD for eth0 of a pod with some queues asks for.
func (n *node) request(p pod, queues ...int) Request {
	n.tb.Helper()
	r := Request{
		Pod: Pod{UID: "uid-" + p.name, Namespace: "default", Name: p.name}, NetnsCookie: p.cookie,
		Attachment: p.attachment("eth0"),
	}
	for _, q := range queues {
		r.Devices = append(r.Devices, DeviceRequest{Device{deviceID(q), n.link(near), q}, pooled})
	}
	return r
}

// add is a CNI ADD that must succeed.
func (n *node) add(p pod, queues ...int) {
	n.tb.Helper()
	n.ok(n.Activate(n.request(p, queues...)))
}

// del is a CNI DEL of eth0, which must succeed.
func (n *node) del(p pod) {
	n.tb.Helper()
	n.ok(n.Detach(p.attachment("eth0")))
}

func (n *node) ok(err error) {
	n.tb.Helper()
	if err != nil {
		n.tb.Fatal(err)
	}
}

// nicState is what of a NIC the leases change.
type nicState struct {
	XDP          netdev.XDP
	Defer, Flush string // as sysfs has them
}

func (n *node) now() nicState {
	n.tb.Helper()
	read := func(file string) string {
		b, err := os.ReadFile(filepath.Join(n.sysfs, "class/net", near, file))
		n.ok(err)
		return strings.TrimSpace(string(b))
	}
	return nicState{n.link(near).XDP, read("napi_defer_hard_irqs"), read("gro_flush_timeout")}
}

// setKnobs sets the NIC's settings as an operator does.
func (n *node) setKnobs(deferral uint32, flush time.Duration) {
	n.tb.Helper()
	s := netdev.DeviceSettings{DeferHardIRQs: &deferral, GROFlushTimeout: &flush}
	n.ok(n.nics.SetDeviceSettings(n.link(near).Index, s))
}

// wantKnobs checks napi_defer_hard_irqs and gro_flush_timeout.
func (n *node) wantKnobs(when, deferral, flush string) {
	n.tb.Helper()
	if s := n.now(); s.Defer != deferral || s.Flush != flush {
		n.tb.Errorf("%s: napi_defer_hard_irqs %s, gro_flush_timeout %s; want %s, %s", when, s.Defer, s.Flush, deferral, flush)
	}
}

// wantState checks that the NIC is as it was.
func (n *node) wantState(when string, want nicState) {
	n.tb.Helper()
	if now := n.now(); now != want {
		n.tb.Errorf("%s the NIC is not as before:\n now %+v\nwant %+v", when, now, want)
	}
}

// wantAttached checks that the NIC shows our program, whose pins there are.
func (n *node) wantAttached(when string) {
	n.tb.Helper()
	if l := n.link(near); !n.Manages(l) || l.XDP.Mode != netdev.XDPNative {
		n.tb.Errorf("%s our program is not attached: %+v", when, l.XDP)
	}
	if len(list(n.tb, n.pins)) != 1 {
		n.tb.Errorf("%s the pins are %v, want those of one NIC", when, list(n.tb, n.pins))
	}
}

// wantLeases checks which devices are leased, as "lsnear-q0 alice a1 active".
func (n *node) wantLeases(when string, want ...string) {
	n.tb.Helper()
	var got []string
	for _, l := range n.Leases() {
		got = append(got, fmt.Sprintf("%s %s %s %s", l.Device, l.Pod.Name, l.Sandbox(), l.State))
	}
	if !slices.Equal(got, want) {
		n.tb.Errorf("%s the leases are %q, want %q", when, got, want)
	}
}

func leaseOf(queue int, p pod) string {
	return fmt.Sprintf("%s %s %s active", deviceID(queue), p.name, p.sandbox)
}

// wantNothingLeft checks that neither a document nor a pin is left.
func (n *node) wantNothingLeft() {
	n.tb.Helper()
	if docs := n.documents(); len(docs) > 0 {
		n.tb.Errorf("left in the journal: %v", docs)
	}
	if pins := list(n.tb, n.pins); len(pins) > 0 {
		n.tb.Errorf("left of the pins: %v", pins)
	}
}

// documents lists the files of the journal.
func (n *node) documents() []string {
	n.tb.Helper()
	return slices.DeleteFunc(list(n.tb, n.state), func(name string) bool { return name == "lock" })
}

func list(tb testing.TB, dir string) (names []string) {
	tb.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		tb.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// removePins removes all pins.
func (n *node) removePins() {
	n.tb.Helper()
	for _, dir := range list(n.tb, n.pins) {
		for _, pin := range list(n.tb, filepath.Join(n.pins, dir)) {
			n.ok(os.Remove(filepath.Join(n.pins, dir, pin)))
		}
		n.ok(os.Remove(filepath.Join(n.pins, dir)))
	}
}

// wantError checks that an error says something.
func wantError(tb testing.TB, what string, err error, says ...string) {
	tb.Helper()
	if err == nil {
		tb.Errorf("%s: no error", what)
		return
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			tb.Errorf("%s: the error is %q, want it to say %q", what, err, s)
		}
	}
}

// within calls done until it is true.
func within(tb testing.TB, what string, done func() bool) {
	tb.Helper()
	for deadline := time.Now().Add(patience); !done(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			tb.Fatalf("this did not happen: %s", what)
		}
	}
}

// isOpen reports whether a connection has the device open.
func (n *node) isOpen(device string) bool {
	_, open := n.Statistics()[device]
	return open
}
