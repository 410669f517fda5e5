package lease

import (
	"strings"
	"testing"
)

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
	can, why := n.PodZeroCopy(bob.cookie)
	if can || !strings.Contains(why, near) || !strings.Contains(why, "not supported") {
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
