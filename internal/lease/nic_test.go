package lease

import (
	"errors"
	"testing"
	"time"

	"github.com/afxdp-project/afxdp/internal/testutil"
	"github.com/afxdp-project/afxdp/pkg/netdev"
)

func TestRenamedNICKeepsItsLeases(t *testing.T) {
	n := newNode(t)
	before := n.now()
	n.add(alice, 0)
	n.ok(testutil.Rename(near, "lsother"))
	if g, err := n.Grant(deviceID(0), alice.cookie); err != nil || g.Link.Name != "lsother" {
		t.Errorf("grant of %s, %v; want lsother", g.Link.Name, err)
	}
	if counts := n.Unclaimed(); len(counts) != 1 || counts["lsother"] == nil {
		t.Errorf("counters of %v, want lsother", counts)
	}
	n.restart()
	n.ok(n.Retune())
	if p := n.Problems(); len(p) != 0 {
		t.Errorf("problems: %v", p)
	}
	n.del(alice)
	n.ok(testutil.Rename("lsother", near))
	n.wantState("after DEL", before)
}

// Field case 36: DEL of what is gone is a success. A NIC that comes back under its old name starts clean.
func TestRemovedNIC(t *testing.T) {
	n := newNode(t)
	n.setKnobs(1, 5000)
	n.add(alice, 0)
	n.add(bob, 1)
	n.ok(testutil.DelLink(near))
	if p := n.Problems(); len(p) != 0 {
		t.Errorf("problems of a NIC that is gone: %v", p)
	}
	n.ok(n.Retune())
	if _, err := n.Grant(deviceID(0), alice.cookie); !errors.Is(err, netdev.ErrNoDevice) {
		t.Errorf("grant of a device that is gone: %v", err)
	}
	n.ok(testutil.AddVeth(testutil.VethPair{Near: near, Far: far, Queues: queues}))
	anew := n.now()
	if n.Manages(n.link(near)) {
		t.Error("the new NIC counts as managed")
	}
	if findings := n.again(); len(findings) != 1 || !errors.Is(findings[0], netdev.ErrNoDevice) {
		t.Errorf("findings %v, want that the NIC is gone", findings)
	}
	n.del(bob)
	n.wantState("after DEL of a device of the NIC before,", anew)

	// The pod of the first device is still there when another one gets the new device.
	later := pod{"carol", "c1", 1<<40 + 2}
	n.add(later, 0)
	n.wantLeases("on the new NIC", leaseOf(0, later))
	n.wantAttached("on the new NIC")
	n.wantKnobs("on the new NIC", "2", "200000")
	n.del(alice)
	n.wantLeases("after DEL of the pod before", leaseOf(0, later))
	n.del(later)
	n.wantState("at the end", anew)
}

// again starts an agent anew that has something to report.
func (n *node) again() (findings []error) {
	n.tb.Helper()
	n.ok(n.Close())
	return n.startReporting()
}

// Another NIC can get the index of one that is gone.
func TestNICWithTheIndexOfAnother(t *testing.T) {
	n := newNode(t)
	n.setKnobs(1, 5000)
	n.add(alice, 0)
	index := n.link(near).Index
	n.ok(testutil.DelLink(near))
	n.ok(addVethAt("lsbetween", "lsbefar", index))
	n.ok(n.Retune())
	n.ok(testutil.DelLink("lsbetween"))
	n.ok(addVethAt(near, far, index))
	anew := n.now()

	if err := n.Check(n.request(alice, 0)); err == nil {
		t.Error("the lease of the NIC before counts for the new one")
	}
	n.add(bob, 1)
	n.wantKnobs("leased", "2", "200000")
	if n.nicOf(n.link(near)).key == n.leases[deviceID(0)].doc.NIC {
		t.Error("both NICs have one document")
	}
	n.restartReporting(1)
	n.del(alice)
	n.wantAttached("after DEL of the device of the NIC before")
	n.wantKnobs("after DEL of the device of the NIC before", "2", "200000")
	n.del(bob)
	n.wantState("at the end", anew)
}

func (n *node) restartReporting(want int) {
	n.tb.Helper()
	if findings := n.again(); len(findings) != want {
		n.tb.Errorf("findings %v, want %d", findings, want)
	}
}

// Field case 24: what a link flap or a driver resets is applied again.
func TestResetSettingIsAppliedAgain(t *testing.T) {
	n := newNode(t)
	n.setKnobs(1, 5000)
	before := n.now()
	n.add(alice, 0)
	n.ok(testutil.SetDown(near))
	n.ok(n.Retune())
	n.ok(testutil.SetUp(near))
	n.setKnobs(1, 5000) // as a driver that starts from what it had
	n.ok(n.Retune())
	n.wantKnobs("after a flap", "2", "200000")
	n.wantAttached("after a flap")
	n.del(alice)
	n.wantState("at the end", before)
}

// A NIC that goes down before its leases end is put back all the same.
func TestDELWhileTheNICIsDown(t *testing.T) {
	n := newNode(t)
	before := n.now()
	n.add(alice, 0)
	n.ok(testutil.SetDown(near))
	n.del(alice)
	n.wantNothingLeft()
	n.ok(testutil.SetUp(near))
	n.wantState("at the end", before)
}

func TestADDOnANICThatIsDown(t *testing.T) {
	n := newNode(t)
	before := n.now()
	n.ok(testutil.SetDown(near))
	wantError(t, "ADD", n.Activate(n.request(alice, 0)), near+" is administratively down")
	n.ok(testutil.SetUp(near))
	n.wantState("after the refusal", before)
	n.wantNothingLeft()
}

// Field case 13: the refusal of an MTU that native XDP cannot have says so.
func TestMTUTooBig(t *testing.T) {
	n := newNode(t)
	before := n.now()
	n.ok(testutil.SetMTU(near, 9000))
	n.ok(testutil.SetMTU(far, 9000))
	err := n.Activate(n.request(alice, 0))
	wantError(t, "ADD", err, "MTU of "+near+" is 9000", "multi-buffer")
	if _, refused := errors.AsType[*RefusedError](err); !refused {
		t.Errorf("the error is a %T, want a refusal", err)
	}
	n.wantState("after the refusal", before)
	n.wantNothingLeft()

	r := n.request(alice, 0)
	r.Devices[0].Settings.MultiBuffer = true
	n.ok(n.Activate(r))
	wantError(t, "ADD without multi-buffer", n.Activate(n.request(bob, 1)), "the pools must agree")
	n.wantLeases("with multi-buffer", leaseOf(0, alice))
	n.del(alice)
}

// Field case 12: a queue that the NIC does not have any more is refused.
func TestQueueThatIsGone(t *testing.T) {
	n := newNode(t)
	n.add(alice, queues-1)
	wantError(t, "ADD", n.Activate(n.request(bob, 0, queues)), "no rx queue 4", "4 now")
	n.wantLeases("after the refusal", leaseOf(queues-1, alice))
	n.del(alice)
}

func TestRequestsThatMakeNoSense(t *testing.T) {
	n := newNode(t)
	before := n.now()
	for what, r := range map[string]func(*Request){
		"the pod's network namespace is not known": func(r *Request) { r.NetnsCookie = 0 },
		"host-network pods are not supported":      func(r *Request) { r.NetnsCookie = n.NetnsCookie() },
		"pod UID or sandbox id is missing":         func(r *Request) { r.Attachment.ContainerID = "" },
		"no devices":                               func(r *Request) { r.Devices = nil },
	} {
		request := n.request(alice, 0)
		r(&request)
		wantError(t, "ADD", n.Activate(request), what)
	}
	n.wantState("after the refusals", before)
	n.wantNothingLeft()
}

// A NIC that is moved away is out of reach; its leases end all the same, and when it is back it can be leased again.
func TestNICMovedAwayAndBack(t *testing.T) {
	n := newNode(t)
	n.setKnobs(1, 5000)
	before := n.now()
	n.add(alice, 0)
	elsewhere := testutil.NewNetns(t)
	n.ok(testutil.MoveToNetns(near, elsewhere.FD()))
	if _, err := n.Grant(deviceID(0), alice.cookie); !errors.Is(err, netdev.ErrNoDevice) {
		t.Errorf("grant of a device that was moved away: %v", err)
	}
	n.ok(n.Retune())
	back := func() {
		t.Helper()
		n.ok(elsewhere.Do(func() error { return testutil.MoveToNetns(near, n.netns.FD()) }))
		n.ok(testutil.SetUp(near))
	}
	back()
	n.ok(n.Retune())
	n.wantAttached("back again")
	n.wantKnobs("back again", "2", "200000")
	n.del(alice)
	n.wantState("back before DEL:", before)

	n.add(alice, 0)
	n.ok(testutil.MoveToNetns(near, elsewhere.FD()))
	n.del(alice)
	n.wantNothingLeft()
	back()
	if x := n.now().XDP; x.Mode != netdev.XDPNone {
		t.Errorf("back after DEL, the NIC shows %+v", x)
	}
	n.add(bob, 0)
	n.wantAttached("leased again")
	n.del(bob)
}

func TestGrantTellsHowInterruptsAreDeferred(t *testing.T) {
	n := newNode(t)
	n.add(alice, 0)
	g, err := n.Grant(deviceID(0), alice.cookie)
	n.ok(err)
	want := Tuning{Deferral: true, DeferHardIRQs: 2, GROFlushTimeout: 200 * time.Microsecond}
	if g.Tuning != want {
		t.Errorf("tuning %+v, want %+v", g.Tuning, want)
	}
	n.del(alice)
}
