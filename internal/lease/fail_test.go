package lease

import (
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

var errBroken = errors.New("broken")

// failAt has one step fail, counted from now and from 0, or all steps from there on. The returned function mends that
// and tells which step it was, or "" if it was not reached.
func (n *node) failAt(at int, andAfter bool) (mend func() string) {
	var failed string
	n.fault = func(step string) error {
		at--
		if at == -1 || at < -1 && andAfter {
			if failed == "" {
				failed = step
			}
			return errBroken
		}
		return nil
	}
	return func() string { n.fault = nil; return failed }
}

// Field case 37: an ADD that fails half-way is undone, at whatever step; also when the undoing fails at first.
func TestFailedADDIsUndone(t *testing.T) {
	t.Parallel()
	for _, beside := range []bool{false, true} {
		for _, persistent := range []bool{false, true} {
			t.Run(fmt.Sprintf("beside another lease %t, failing on %t", beside, persistent), func(t *testing.T) {
				n := newNode(t)
				n.setKnobs(1, 5000)
				var leases []string
				if beside {
					n.add(bob, 3)
					leases = append(leases, leaseOf(3, bob))
				}
				before := n.now()
				r := n.request(alice, 0, 1)
				r.Devices[1].Settings.DeferHardIRQs = 7
				at := 0
				for ; ; at++ {
					mend := n.failAt(at, persistent)
					err := n.Activate(r)
					step := mend()
					if step == "" {
						n.ok(err)
						break
					}
					if !errors.Is(err, errBroken) {
						t.Fatalf("%s failed: ADD says %v", step, err)
					}
					n.ok(maintain(n.Manager))
					n.wantState(step+" failed:", before)
					n.wantLeases(step+" failed:", leases...)
					if !beside {
						n.wantNothingLeft()
					}
				}
				if at < 7 {
					t.Errorf("only %d steps could fail", at)
				}
				n.wantLeases("at last", append([]string{leaseOf(0, alice), leaseOf(1, alice)}, leases...)...)
				n.del(alice)
				n.wantState("after DEL", before)
				n.del(bob)
			})
		}
	}
}

// What a DEL could not do is done later, by Maintain or before the next ADD.
func TestFailedDELIsFinishedLater(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		by         string
		persistent bool
		alone      bool // on the NIC: the last one's DEL has more to do
		opened     bool
	}{
		{by: "maintain", opened: true}, {by: "maintain", persistent: true, alone: true},
		{by: "restart", persistent: true}, {by: "next ADD"}, {by: "next ADD", persistent: true},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			n := newNode(t)
			n.setKnobs(1, 5000)
			carol := pod{"carol", "c1", 1<<40 + 2}
			var leases []string
			if !c.alone {
				n.add(carol, 3)
				leases = append(leases, leaseOf(3, carol))
			}
			before := n.now()
			for at, step := 0, "first"; step != ""; at++ {
				r := n.request(alice, 0, 1)
				r.Devices[1].Settings.DeferHardIRQs = 7
				n.ok(n.Activate(r))
				if c.opened {
					process, _ := n.open(alice, 1, ignored)
					process.close()
				}
				mend := n.failAt(at, c.persistent)
				err := n.Detach(alice.attachment("eth0"))
				step = mend()
				if err == nil { // it went on, and nothing was left to do
					n.ok(maintain(n.Manager))
					n.wantState(step+" failed, and DEL succeeded:", before)
				} else if !errors.Is(err, errBroken) {
					t.Fatalf("%s failed: DEL says %v", step, err)
				}
				switch c.by {
				case "restart":
					n.restart()
					// Kubelet does not know the pod any more: the journal may say that its lease is active.
					n.ok(n.EndStale(func(l Lease) (string, bool) { return "gone", l.Pod.Name == "alice" }))
				case "next ADD":
					n.add(bob, 0, 1)
					n.wantAttached("added again")
					n.wantKnobs("added again", "2", "200000")
					n.del(bob)
				}
				n.ok(maintain(n.Manager))
				n.wantState(step+" failed:", before)
				n.wantLeases(step+" failed:", leases...)
				if c.alone {
					n.wantNothingLeft()
				}
				if step == "" && at < 6 {
					t.Errorf("only %d steps could fail", at)
				}
			}
			n.del(carol)
		})
	}
}

func TestFailedOpeningLeavesTheDeviceFree(t *testing.T) {
	n := newNode(t)
	n.add(alice, 0)
	from := n.sender(0)
	g, err := n.Grant(deviceID(0), alice.cookie)
	n.ok(err)
	process := bind(t, g.Link.Index, 0)
	for at := 0; ; at++ {
		agents, err := process.socket.Dup()
		n.ok(err)
		mend := n.failAt(at, false)
		err = n.Opened(g, agents, process.record(), ignored)
		step := mend()
		if step == "" {
			n.ok(err)
			break
		}
		if !errors.Is(err, errBroken) {
			t.Fatalf("%s failed: the opening says %v", step, err)
		}
		n.ok(agents.Close())
		if l, _ := n.Lease(deviceID(0)); l.Socket != nil || n.isOpen(deviceID(0)) {
			t.Errorf("%s failed: the lease has socket %+v", step, l.Socket)
		}
		n.wantUnclaimed(step+" failed:", 0, from)
	}
	process.wantPacket("opened:", from)
	process.close()
	n.del(alice)
	n.ok(maintain(n.Manager))
}

func TestFailedSecondAttachmentLeavesTheFirst(t *testing.T) {
	n := newNode(t)
	n.add(alice, 0, 1)
	r := n.request(alice, 0, 1)
	r.Attachment.Ifname = "net1"
	for at := range 2 {
		mend := n.failAt(at, false)
		err := n.Activate(r)
		if step := mend(); !errors.Is(err, errBroken) {
			t.Errorf("%s failed: ADD says %v", step, err)
		}
		for _, l := range n.Leases() {
			if len(l.Attachments) != 1 {
				t.Errorf("%s has attachments %v", l.Device, l.Attachments)
			}
		}
	}
	n.restart()
	n.del(alice)
	n.wantNothingLeft()
}

func TestJournalThatIsFull(t *testing.T) {
	n := newNode(t)
	before := n.now()
	n.ok(n.Close())
	for pages := 1; ; pages++ {
		n.ok(unix.Mount("tmpfs", n.state, "tmpfs", 0, fmt.Sprintf("size=%dk", 4*pages)))
		n.start()
		err := n.Activate(n.request(alice, 0, 1))
		full := err != nil
		if full {
			if !errors.Is(err, unix.ENOSPC) {
				t.Errorf("with %d pages, ADD says %v", pages, err)
			}
			n.ok(maintain(n.Manager))
			n.wantState(fmt.Sprintf("with %d pages", pages), before)
			n.wantNothingLeft()
		} else {
			n.del(alice)
		}
		n.ok(n.Close())
		n.ok(unix.Unmount(n.state, unix.MNT_DETACH)) // a parallel test's child may have a descriptor until its exec
		if !full {
			if pages < 3 {
				t.Errorf("%d pages were enough", pages)
			}
			break
		}
	}
	n.start()
}

func TestPinsThatCannotBeMade(t *testing.T) {
	n := newNode(t)
	before := n.now()
	n.ok(unix.Mount(n.pins, n.pins, "", unix.MS_BIND, ""))
	n.ok(unix.Mount("", n.pins, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	err := n.Activate(n.request(alice, 0))
	n.ok(unix.Unmount(n.pins, unix.MNT_DETACH))
	if !errors.Is(err, unix.EROFS) {
		t.Errorf("ADD says %v, want that the filesystem is read-only", err)
	}
	n.wantState("after the failure", before)
	n.wantNothingLeft()
}
