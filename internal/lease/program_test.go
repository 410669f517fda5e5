package lease

import (
	"errors"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

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
