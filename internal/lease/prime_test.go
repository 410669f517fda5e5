package lease

import (
	"testing"

	"github.com/afxdp-project/afxdp/pkg/busypoll"
)

// A driver that does not look at the fill ring is polled, as often as is sensible, and the socket's options are off again
// afterwards. On veth the ring is not looked at before a packet comes, in copy mode, which this takes for such a driver;
// that it helps igb, the virtual machine's tests show.
func TestDriverThatDoesNotLookAtTheFillRingIsPolled(t *testing.T) {
	n := newNode(t)
	n.add(alice, 0)
	g, err := n.Grant(deviceID(0), alice.cookie)
	n.ok(err)
	process := bindEmpty(t, g.Link.Index, 0)
	socket, err := process.socket.Dup()
	n.ok(err)
	n.ok(n.Opened(g, socket, process.record(), ignored))
	l := n.leases[deviceID(0)]
	p := &priming{lease: l, open: l.open}
	wantOff := func(when string) {
		t.Helper()
		if s, err := busypoll.Read(process.socket.FD()); err != nil || s.Preferred || s.Timeout != 0 {
			t.Errorf("%s the socket is %+v, %v; want no busy polling", when, s, err)
		}
	}
	for range 5 {
		if n.primed(p) || p.polls != 0 {
			t.Fatal("an empty ring was polled for, or given up")
		}
	}
	process.fill()
	for i := range primings {
		if n.primed(p) || p.polls != i+1 {
			t.Fatalf("look %d: %d polls", i+1, p.polls)
		}
		wantOff("after a poll")
	}
	if !n.primed(p) {
		t.Error("it is polled for ever")
	}

	// One that polls itself is left alone.
	n.ok(busypoll.Enable(process.socket.FD(), busypoll.Options{Budget: 8, Timeout: busypoll.DefaultTimeout}))
	p.polls = 0
	if !n.primed(p) || p.polls != 0 {
		t.Error("a socket that busy-polls was polled for")
	}
	if s, err := busypoll.Read(process.socket.FD()); err != nil || !s.Preferred {
		t.Errorf("its options are off: %+v, %v", s, err)
	}
	n.ok(busypoll.Disable(process.socket.FD()))

	// So is one whose driver has taken frames.
	n.sender(0).send()
	within(t, "the packet", func() bool { return process.rings.Fill.Taken() > 0 })
	if !n.primed(p) || p.polls != 0 {
		t.Error("a driver that takes frames was polled")
	}
	n.del(alice)
	if !n.primed(p) {
		t.Error("an ended lease is looked after")
	}
	process.close()
	n.ok(maintain(n.Manager))
}
