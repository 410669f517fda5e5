package lease

import (
	"bytes"
	"errors"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/pkg/xsk"
)

// port is an AF_XDP socket with its memory, as a process has it.
type port struct {
	tb     testing.TB
	umem   *xsk.UMEM
	socket *xsk.Socket
	rings  *xsk.Rings
	frames *xsk.Frames
}

var portRings = xsk.RingSizes{Fill: 64, Completion: 64, RX: 64, TX: 64}

// bind makes a bound socket that no XDP program knows yet. One that the kernel is still releasing is waited for.
func bind(tb testing.TB, ifindex, queue int) *port {
	tb.Helper()
	p := bindEmpty(tb, ifindex, queue)
	p.fill()
	return p
}

// bindEmpty leaves the fill ring empty.
func bindEmpty(tb testing.TB, ifindex, queue int) *port {
	tb.Helper()
	p := &port{tb: tb}
	tb.Cleanup(p.close)
	var err error
	if p.umem, err = xsk.NewUMEM(xsk.UMEMConfig{Frames: 64}); err != nil {
		tb.Fatal(err)
	}
	if p.socket, err = xsk.NewSocket(); err != nil {
		tb.Fatal(err)
	}
	if err := errors.Join(p.socket.RegisterUMEM(p.umem.Bytes(), p.umem.Config), p.socket.SetRings(portRings)); err != nil {
		tb.Fatal(err)
	}
	within(tb, "bind", func() bool {
		err = p.socket.Bind(xsk.BindConfig{Ifindex: ifindex, Queue: uint32(queue), Mode: xsk.ZeroCopyOff, NeedWakeup: true})
		return !errors.Is(err, unix.EBUSY)
	})
	if err != nil {
		tb.Fatal(err)
	}
	if p.rings, err = p.socket.Map(portRings); err != nil {
		tb.Fatal(err)
	}
	p.frames = xsk.NewFrames(p.umem.Config, 0, 64)
	return p
}

func (p *port) fill() {
	addrs := make([]uint64, 32)
	p.frames.Get(addrs)
	p.rings.Fill.Refill(addrs)
}

// close ends the process: its descriptor and its mappings go.
func (p *port) close() {
	if p.rings != nil {
		if err := p.rings.Close(); err != nil {
			p.tb.Error(err)
		}
	}
	if p.socket != nil {
		_ = p.socket.Close()
	}
	_ = p.umem.Close()
	p.rings = nil
}

// open opens a device of a pod, as the handoff does. The pod's process has what is returned.
func (n *node) open(p pod, queue int, revoke func(reason string)) (*port, Grant) {
	n.tb.Helper()
	g, err := n.Grant(deviceID(queue), p.cookie)
	n.ok(err)
	process := bind(n.tb, g.Link.Index, g.Queue)
	agents, err := process.socket.Dup()
	n.ok(err)
	if err := n.Opened(g, agents, process.record(), revoke); err != nil {
		_ = agents.Close()
		n.tb.Fatal(err)
	}
	return process, g
}

// record is what the journal keeps of the socket.
func (p *port) record() Socket {
	p.tb.Helper()
	c, err := p.socket.Cookie()
	if err != nil {
		p.tb.Fatal(err)
	}
	return Socket{Cookie: c, Group: c}
}

func ignored(string) {}

func itoa(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

// sender sends on the other end of the wire: what goes out on a queue there comes in on the same queue of the NIC.
func (n *node) sender(queue int) *port {
	n.tb.Helper()
	return bind(n.tb, n.link(far).Index, queue)
}

// header is that of a packet to everybody, of an experimental Ethernet type.
var header = []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 0x88, 0xb5}

// send sends one packet.
func (p *port) send() {
	p.tb.Helper()
	var addr [1]uint64
	if p.frames.Get(addr[:]) != 1 {
		p.tb.Fatal("no frame is free")
	}
	d := xsk.Desc{Addr: addr[0], Len: 64}
	copy(p.umem.Packet(d), header)
	p.rings.TX.Transmit([]xsk.Desc{d})
	within(p.tb, "a packet is sent", func() bool {
		if err := p.socket.WakeTX(); err != nil && !errors.Is(err, xsk.ErrAgain) {
			p.tb.Fatal(err)
		}
		got := p.rings.Completion.Complete(addr[:])
		p.frames.Put(addr[:got])
		return got == 1
	})
}

// wantPacket sends packets until one arrives: those in flight at a change of the program are lost.
func (p *port) wantPacket(when string, from *port) {
	p.tb.Helper()
	var descs [1]xsk.Desc
	within(p.tb, when+" a packet arrives at the socket", func() bool {
		from.send()
		got := p.rings.RX.Receive(descs[:])
		p.frames.PutPackets(descs[:got])
		return got == 1 && bytes.Equal(p.umem.Packet(descs[0])[:len(header)], header)
	})
	for p.rings.RX.Receive(descs[:]) > 0 {
		p.frames.PutPackets(descs[:])
	}
}

// wantUnclaimed sends packets until the program has counted one that found no socket.
func (n *node) wantUnclaimed(when string, queue int, from *port) {
	n.tb.Helper()
	before := n.Unclaimed()[near][queue]
	within(n.tb, when+" a packet goes to the stack", func() bool {
		from.send()
		return n.Unclaimed()[near][queue] > before
	})
}
