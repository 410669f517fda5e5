package lease

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/afxdp-project/afxdp/internal/testutil"
	"github.com/afxdp-project/afxdp/pkg/netdev"
)

// foreignProgram attaches another program to the NIC, until the returned function is called.
func (n *node) foreignProgram(flags link.XDPAttachFlags) (detach func()) {
	n.tb.Helper()
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "stranger", Type: ebpf.XDP, License: "MIT",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()},
	})
	n.ok(err)
	defer func() { _ = prog.Close() }()
	l, err := link.AttachXDP(link.XDPOptions{Program: prog, Interface: n.link(near).Index, Flags: flags})
	n.ok(err)
	return func() { n.ok(l.Close()) }
}

// Field case 8: another program is not thrown off the NIC; the error names it.
func TestForeignProgramIsNamedAndLeft(t *testing.T) {
	for name, flags := range map[string]link.XDPAttachFlags{"native": link.XDPDriverMode, "generic": link.XDPGenericMode} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			detach := n.foreignProgram(flags)
			before := n.now()
			id := before.XDP.NativeProgID + before.XDP.GenericProgID

			err := n.Activate(n.request(alice, 0, 1))
			wantError(t, "ADD over a foreign program", err, near, "id "+itoa(id), "stranger", name)
			if _, refused := errors.AsType[*RefusedError](err); !refused {
				t.Errorf("the error is a %T, want a refusal", err)
			}
			n.wantState("after the refusal", before)
			n.wantLeases("after the refusal")
			n.wantNothingLeft()

			detach()
			n.add(alice, 0, 1)
			n.del(alice)
		})
	}
}

// throwOff takes our program off the NIC, as an operator can.
func (n *node) throwOff() {
	n.tb.Helper()
	l, err := link.LoadPinnedLink(n.pins+"/"+list(n.tb, n.pins)[0]+"/link", nil)
	n.ok(err)
	defer func() { _ = l.Close() }()
	n.ok(l.Detach())
}

// Field case 8, in reverse: our program is thrown off by someone.
func TestProgramThrownOffIsAProblem(t *testing.T) {
	n := newNode(t)
	before := n.now()
	n.add(alice, 0)
	if p := n.Problems(); len(p) != 0 {
		t.Errorf("problems of a NIC that is well: %v", p)
	}
	n.throwOff()
	index := n.link(near).Index
	says := func(when, what string) {
		t.Helper()
		if p := n.Problems(); len(p) != 1 || !strings.Contains(p[index], what) {
			t.Errorf("%s the problems are %v, want one of %d that says %q", when, p, index, what)
		}
		if n.Manages(n.link(near)) {
			t.Errorf("%s the NIC counts as managed", when)
		}
		_, err := n.Grant(deviceID(0), alice.cookie)
		wantError(t, when+" a grant", err, what)
		wantError(t, when+" CHECK", n.Check(n.request(alice, 0)), what)
		wantError(t, when+" ADD of the same pod", n.Activate(n.request(alice, 0)), what)
		wantError(t, when+" ADD of another pod", n.Activate(n.request(bob, 1)), what)
		n.wantLeases(when, leaseOf(0, alice))
	}
	says("thrown off:", "not on "+near+" any more")
	detach := n.foreignProgram(link.XDPDriverMode)
	says("and replaced:", "stranger")
	stranger := n.now().XDP
	n.del(alice)
	if now := n.now().XDP; now != stranger {
		t.Errorf("DEL changed the foreign program: %+v, want %+v", now, stranger)
	}
	detach()
	n.wantState("at the end", before)
	n.add(alice, 0)
	n.wantAttached("leased again")
	n.del(alice)
}

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

// A driver without native XDP is refused unless the pool allows generic mode.
func TestGenericModeOnlyWhereThePoolAllowsIt(t *testing.T) {
	n := newNode(t)
	r := n.request(alice, 0)
	r.Devices[0] = DeviceRequest{Device{"lo-q0", n.link("lo"), 0}, pooled}
	err := n.Activate(r)
	wantError(t, "ADD", err, "the NIC is lo", "no native XDP")
	if _, refused := errors.AsType[*RefusedError](err); !refused {
		t.Errorf("the error is a %T, want a refusal", err)
	}
	n.wantNothingLeft()
	r.Devices[0].Settings.AllowGeneric = true
	n.ok(n.Activate(r))
	if l := n.link("lo"); !n.Manages(l) || l.XDP.Mode != netdev.XDPGeneric {
		t.Errorf("lo shows %+v, want our program in generic mode", l.XDP)
	}
	n.del(alice)
	if x := n.link("lo").XDP; x.Mode != netdev.XDPNone {
		t.Errorf("after DEL lo shows %+v", x)
	}
}

// Zero-copy is for all devices of a pod or for none.
func TestZeroCopyOfAPod(t *testing.T) {
	n := newNode(t)
	n.add(alice, 0)
	if can, why := n.PodZeroCopy(alice.cookie); can || why != "pool fast has zeroCopy: never" {
		t.Errorf("zero-copy of the pod: %t, %q", can, why)
	}
	r := n.request(bob, 1)
	r.Devices[0].Settings.ZeroCopy = ZeroCopyAuto
	n.ok(n.Activate(r))
	if can, why := n.PodZeroCopy(bob.cookie); can || !strings.Contains(why, near) || !strings.Contains(why, "not supported") {
		t.Errorf("zero-copy of the pod: %t, %q; want what the driver said", can, why)
	}
	for _, m := range n.Manager.nics {
		m.doc.ZeroCopy = &zeroCopy{Can: true}
	}
	if can, why := n.PodZeroCopy(bob.cookie); !can {
		t.Errorf("zero-copy of the pod on a NIC that has it: %q", why)
	}
	n.del(alice)
	n.del(bob)
}

func TestZeroCopy(t *testing.T) {
	n := newNode(t)
	before := n.now()
	r := n.request(alice, 0)
	r.Devices[0].Settings.ZeroCopy = ZeroCopyRequire
	tries := 0
	n.fault = func(step string) error {
		if step == "try zero-copy" {
			tries++
		}
		return nil
	}
	for range 2 { // the second time it is known
		wantError(t, "ADD that requires zero-copy", n.Activate(r), "pool fast requires zero-copy", near)
		n.wantState("after the refusal", before)
		n.wantNothingLeft()
	}
	r.Devices[0].Settings.ZeroCopy = ZeroCopyAuto
	n.ok(n.Activate(r))
	if can, why := n.PodZeroCopy(alice.cookie); can || !strings.Contains(why, near) {
		t.Errorf("zero-copy of the pod: %t, %q", can, why)
	}
	n.restart()
	r = n.request(bob, 1)
	r.Devices[0].Settings.ZeroCopy = ZeroCopyRequire
	wantError(t, "ADD that requires zero-copy, after a restart", n.Activate(r), "requires zero-copy")
	if tries != 1 {
		t.Errorf("%d trial binds, want one", tries)
	}
	n.del(alice)
}

// A trial bind that says nothing of zero-copy is not taken for its absence.
func TestUnsettledZeroCopyIsTriedAgain(t *testing.T) {
	n := newNode(t)
	holder := bind(t, n.link(near).Index, 0)
	r := n.request(alice, 0)
	r.Devices[0].Settings.ZeroCopy = ZeroCopyAuto
	n.ok(n.Activate(r))
	if can, why := n.PodZeroCopy(alice.cookie); can || !strings.Contains(why, "busy") {
		t.Errorf("zero-copy of the pod: %t, %q; want it left open because the queue was busy", can, why)
	}
	holder.close()
	r = n.request(bob, 1)
	r.Devices[0].Settings.ZeroCopy = ZeroCopyAuto
	n.ok(n.Activate(r))
	if _, why := n.PodZeroCopy(bob.cookie); strings.Contains(why, "busy") {
		t.Errorf("zero-copy of the next pod: %q, want another trial", why)
	}
	n.del(alice)
	n.del(bob)
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
	n.add(alice, 0)
	elsewhere := testutil.NewNetns(t)
	n.ok(testutil.MoveToNetns(near, elsewhere.FD()))
	if _, err := n.Grant(deviceID(0), alice.cookie); !errors.Is(err, netdev.ErrNoDevice) {
		t.Errorf("grant of a device that was moved away: %v", err)
	}
	n.ok(n.Retune())
	n.del(alice)
	n.wantNothingLeft()
	n.ok(elsewhere.Do(func() error { return testutil.MoveToNetns(near, n.netns.FD()) }))
	n.ok(testutil.SetUp(near))
	if x := n.now().XDP; x.Mode != netdev.XDPNone {
		t.Errorf("back again, the NIC shows %+v", x)
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
	want := Tuning{NAPIKnown: true, Deferral: true, DeferHardIRQs: 2, GROFlushTimeout: 200 * time.Microsecond}
	if g.Tuning != want {
		t.Errorf("tuning %+v, want %+v", g.Tuning, want)
	}
	n.del(alice)
}
