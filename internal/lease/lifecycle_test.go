package lease

import (
	"errors"
	"testing"
	"time"
)

func TestLeaseIsMadeAndPutBack(t *testing.T) {
	n := newNode(t)
	before := n.now()

	n.add(alice, 0, 2)
	n.wantAttached("after ADD")
	n.wantKnobs("after ADD", "2", "200000")
	n.wantLeases("after ADD", leaseOf(0, alice), leaseOf(2, alice))
	first, _ := n.Lease(deviceID(0))
	during := n.now()

	// Field case 38: ADD retried after a success.
	n.add(alice, 0, 2)
	n.wantState("after the same ADD again", during)
	if again, _ := n.Lease(deviceID(0)); again.Epoch != first.Epoch || len(again.Attachments) != 1 {
		t.Errorf("after the same ADD again: epoch %d with attachments %v, want the lease of before, %d",
			again.Epoch, again.Attachments, first.Epoch)
	}

	// Another network of the pod, as Multus attaches it.
	second := n.request(alice, 0, 2)
	second.Attachment.Ifname, second.Attachment.Network = "net1", "other"
	n.ok(n.Activate(second))
	n.ok(n.Check(second))
	n.del(alice)
	n.wantState("with one of two attachments left", during)
	n.wantLeases("with one of two attachments left", leaseOf(0, alice), leaseOf(2, alice))
	wantError(t, "CHECK of the attachment that is gone", n.Check(n.request(alice, 0, 2)), "no attachment eth0")

	n.ok(n.Detach(second.Attachment))
	n.wantState("after the last DEL", before)
	n.wantLeases("after the last DEL")
	n.wantNothingLeft()

	// Field case 36: DEL twice, and without ADD.
	n.ok(n.Detach(second.Attachment))
	n.del(bob)
	n.wantState("after DELs of nothing", before)
}

func TestKnobsAreSharedByTheLeasesOfANIC(t *testing.T) {
	n := newNode(t)
	n.setKnobs(1, 5000)
	n.add(alice, 0)
	n.wantKnobs("with one pod", "2", "200000")

	// The second pod wants more of one and less of the other.
	r := n.request(bob, 1)
	r.Devices[0].Settings.DeferHardIRQs, r.Devices[0].Settings.GROFlushTimeout = 7, 100*time.Microsecond
	n.ok(n.Activate(r))
	n.wantKnobs("with two pods", "7", "200000")

	t.Run("the first goes first", func(*testing.T) {
		n.del(alice)
		n.wantKnobs("with the second pod alone", "7", "100000")
		n.add(alice, 0)
	})
	n.del(bob)
	n.wantKnobs("with the first pod alone", "2", "200000")
	n.del(alice)
	n.wantKnobs("with no pod", "1", "5000")
}

// A pool without busy polling leaves the settings alone, also beside one with it.
func TestNoBusyPollingNoTuning(t *testing.T) {
	n := newNode(t)
	r := n.request(alice, 0)
	r.Devices[0].Settings.BusyPollBudget = 0
	n.ok(n.Activate(r))
	n.wantKnobs("without busy polling", "0", "0")
	n.add(bob, 1)
	n.wantKnobs("with it for another pod", "2", "200000")
	n.del(bob)
	n.wantKnobs("without it again", "0", "0")
	n.del(alice)
}

func TestSettingThatSomeoneElseChangedIsLeft(t *testing.T) {
	n := newNode(t)
	n.add(alice, 0)
	n.setKnobs(9, 200*time.Microsecond)
	n.ok(n.Retune())
	n.wantKnobs("after tuning again", "9", "200000")
	n.add(bob, 1)
	n.wantKnobs("after another ADD", "9", "200000")
	if g, err := n.Grant(deviceID(1), bob.cookie); err != nil || !g.Tuning.Deferral || g.Tuning.DeferHardIRQs != 9 {
		t.Errorf("a grant tells %+v, %v; want what is in force", g.Tuning, err)
	}
	n.restart()
	n.wantKnobs("after a restart", "9", "200000")
	n.del(bob)
	n.del(alice)
	n.wantKnobs("after the last DEL", "9", "0")
}

// Field case 25: deferral that is off is not reported as on.
func TestDeferralThatSomeoneTurnedOffIsReported(t *testing.T) {
	n := newNode(t)
	n.setKnobs(1, 5000)
	n.add(alice, 0)
	n.setKnobs(0, 0)
	g, err := n.Grant(deviceID(0), alice.cookie)
	if err != nil || g.Tuning.Deferral || g.Tuning.DeferHardIRQs != 0 || g.Tuning.GROFlushTimeout != 0 {
		t.Errorf("a grant tells %+v, %v; want no deferral", g.Tuning, err)
	}
	n.del(alice)
	n.wantKnobs("after DEL", "0", "0")
}

// Field case 39: the DEL of the sandbox before comes after the ADD of the new one.
func TestOldDelAfterNewAdd(t *testing.T) {
	n := newNode(t)
	before := n.now()
	n.add(alice, 0, 1)
	old, _ := n.Lease(deviceID(0))

	t.Run("of the same pod", func(t *testing.T) {
		again := alice
		again.sandbox, again.cookie = "a2", alice.cookie+100
		n.add(again, 0, 1)
		during := n.now()
		n.del(alice)
		n.wantLeases("after the old DEL", leaseOf(0, again), leaseOf(1, again))
		n.wantState("after the old DEL", during)
		now, _ := n.Lease(deviceID(0))
		if now.Epoch <= old.Epoch {
			t.Errorf("epoch %d of the new lease is not above %d of the old one", now.Epoch, old.Epoch)
		}
		if _, err := n.Grant(deviceID(0), alice.cookie); !errors.Is(err, ErrNotLeased) {
			t.Errorf("the old sandbox is granted the device: %v", err)
		}
		if _, err := n.Grant(deviceID(0), again.cookie); err != nil {
			t.Error(err)
		}
		alice := again
		n.add(bob, 1)
		n.wantLeases("after one device went to another pod", leaseOf(0, alice), leaseOf(1, bob))
		n.del(alice)
		n.wantLeases("after the DEL of the first pod", leaseOf(1, bob))
		n.wantAttached("after the DEL of the first pod")
	})
	n.del(bob)
	n.wantState("at the end", before)
}

// Field case 42: attachments that the runtime does not list are released.
func TestCollectGarbage(t *testing.T) {
	n := newNode(t)
	before := n.now()
	n.add(alice, 0)
	n.add(bob, 1)
	other := n.request(alice, 0)
	other.Attachment.Network, other.Attachment.Ifname = "other", "net1"
	n.ok(n.Activate(other))

	n.ok(n.CollectGarbage("net", []Attachment{bob.attachment("eth0"), {ContainerID: "x9", Ifname: "eth0"}}))
	n.wantLeases("with an attachment to another network left", leaseOf(0, alice), leaseOf(1, bob))
	n.ok(n.CollectGarbage("other", nil))
	n.wantLeases("after GC of both networks", leaseOf(1, bob))
	n.ok(n.CollectGarbage("net", nil))
	n.wantState("after GC of all", before)
	n.wantNothingLeft()
}

func TestEndStale(t *testing.T) {
	n := newNode(t)
	n.add(alice, 0, 3)
	n.add(bob, 1)
	n.ok(n.EndStale(func(l Lease) (string, bool) { return "gone", l.Pod.Name == "alice" }))
	n.wantLeases("after the end of one pod's", leaseOf(1, bob))
	n.ok(n.EndStale(func(Lease) (string, bool) { return "gone", true }))
	n.wantNothingLeft()
}

// Field case 41: ADD and DEL, many at once.
func TestHundredAtOnce(t *testing.T) {
	n := newNode(t)
	before := n.now()
	done := make(chan error)
	for q := range queues {
		go func() {
			n.inside()
			done <- func() error {
				for i := range 25 {
					p := pod{"pod", string(rune('a'+q)) + string(rune('a'+i)), uint64(1)<<40 + uint64(q*100+i)}
					// The link is looked at before the lock is taken, as by the CNI's server.
					link, err := n.nics.LinkByName(near)
					if err != nil {
						return err
					}
					r := Request{Pod: Pod{UID: p.sandbox}, NetnsCookie: p.cookie, Attachment: p.attachment("eth0"),
						Devices: []DeviceRequest{{Device{deviceID(q), link, q}, pooled}}}
					if err := errors.Join(n.Activate(r), n.Check(r), n.Detach(r.Attachment)); err != nil {
						return err
					}
					n.Problems()
				}
				return nil
			}()
		}()
	}
	for range queues {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	n.wantState("afterwards", before)
	n.wantLeases("afterwards")
	n.wantNothingLeft()
}

func TestSettingsOfALeaseAreThoseOfItsBeginning(t *testing.T) {
	n := newNode(t)
	n.add(alice, 0)
	changed := n.request(alice, 0)
	changed.Devices[0].Settings.DeferHardIRQs = 9
	n.ok(n.Activate(changed))
	n.wantKnobs("after an ADD with changed settings", "2", "200000")
	n.restart()
	n.wantKnobs("after a restart", "2", "200000")
	if l, _ := n.Lease(deviceID(0)); l.Settings != pooled {
		t.Errorf("settings after a restart: %+v, want %+v", l.Settings, pooled)
	}
	n.del(alice)
}

func TestEpochsGrow(t *testing.T) {
	n := newNode(t)
	var last uint64
	for range 3 {
		n.add(alice, 0, 1)
		for _, l := range n.Leases() {
			if l.Epoch <= last {
				t.Errorf("epoch %d of %s after %d", l.Epoch, l.Device, last)
			}
			last = l.Epoch
		}
		n.del(alice)
		n.restart() // with an empty journal
	}
}
