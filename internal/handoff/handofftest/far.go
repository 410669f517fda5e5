package handofftest

import (
	"encoding/binary"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/afxdp-project/afxdp/internal/xdpprog"
	"github.com/afxdp-project/afxdp/pkg/xsk"
)

// FarEnd is the other end of the node's NIC, with a socket on each of its first queues. What queue q sends comes to the
// NIC's queue q.
type FarEnd struct {
	tb    testing.TB
	ports []*farPort
}

type farPort struct {
	socket *xsk.Socket
	rings  *xsk.Rings
	frames *xsk.Frames
	umem   *xsk.UMEM
}

// NewFarEnd makes the far end with sockets on its first queues, which are closed with the test.
func NewFarEnd(tb testing.TB, queues int) *FarEnd {
	tb.Helper()
	return NewFarEndOf(tb, Far, queues)
}

// NewFarEndOf makes the far end of another NIC, of which far is the other end's name.
func NewFarEndOf(tb testing.TB, far string, queues int) *FarEnd {
	tb.Helper()
	ifi, err := net.InterfaceByName(far)
	if err != nil {
		tb.Fatal(err)
	}
	prog, err := xdpprog.Attach(xdpprog.Config{Ifindex: ifi.Index, Queues: 4, PinDir: "/sys/fs/bpf/far"})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := prog.Detach(); err != nil {
			tb.Error(err)
		}
	})
	f := &FarEnd{tb: tb}
	for q := range queues {
		p, err := newFarPort(ifi.Index, q)
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() { _ = errors.Join(p.rings.Close(), p.socket.Close(), p.umem.Close()) })
		if err := prog.Insert(q, p.socket.FD()); err != nil {
			tb.Fatal(err)
		}
		f.ports = append(f.ports, p)
	}
	return f
}

func newFarPort(ifindex, queue int) (p *farPort, err error) {
	p = &farPort{}
	if p.umem, err = xsk.NewUMEM(xsk.UMEMConfig{Frames: 512}); err != nil {
		return nil, err
	}
	if p.socket, err = xsk.NewSocket(); err != nil {
		return nil, err
	}
	sizes := xsk.RingSizes{Fill: 256, Completion: 256, RX: 256, TX: 256}
	err = errors.Join(p.socket.RegisterUMEM(p.umem.Bytes(), p.umem.Config), p.socket.SetRings(sizes),
		p.socket.Bind(xsk.BindConfig{Ifindex: ifindex, Queue: uint32(queue), Mode: xsk.ZeroCopyOff}))
	if err != nil {
		return nil, err
	}
	if p.rings, err = p.socket.Map(sizes); err != nil {
		return nil, err
	}
	p.frames = xsk.NewFrames(p.umem.Config, 0, 512)
	addrs := make([]uint64, 256)
	p.rings.Fill.Refill(addrs[:p.frames.Get(addrs)])
	return p, nil
}

// Exchange sends n packets on each queue, a few at a time, and waits until the pod has sent each of them back.
func (f *FarEnd) Exchange(n int) {
	f.tb.Helper()
	for q, p := range f.ports {
		if lost := p.exchange(n); len(lost) > 0 {
			f.tb.Fatalf("queue %d: %d of %d packets did not come back, such as number %d", q, len(lost), n, lost[0])
		}
	}
}

// Send sends one packet on a queue.
func (f *FarEnd) Send(queue int, packet []byte) {
	f.tb.Helper()
	p := f.ports[queue]
	var addr [1]uint64
	if p.frames.Get(addr[:]) != 1 {
		f.tb.Fatal("no frame is free")
	}
	d := xsk.Desc{Addr: addr[0], Len: uint32(len(packet))}
	copy(p.umem.Packet(d), packet)
	if p.rings.TX.Transmit([]xsk.Desc{d}) != 1 {
		f.tb.Fatal("the tx ring is full")
	}
	if err := p.socket.WakeTX(); err != nil {
		f.tb.Fatal(err)
	}
}

// window is how many packets are under way at once: fewer than any ring has room for.
const window = 16

func (p *farPort) exchange(n int) (lost []int) {
	pending := make(map[int]bool)
	addrs, descs := make([]uint64, 64), make([]xsk.Desc, 64)
	next := 0
	for last := time.Now(); next < n || len(pending) > 0; {
		for next < n && len(pending) < window && p.frames.Get(addrs[:1]) == 1 {
			d := xsk.Desc{Addr: addrs[0], Len: 64}
			b := p.umem.Packet(d)
			copy(b, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 0x88, 0xb5})
			binary.BigEndian.PutUint32(b[14:], uint32(next))
			p.rings.TX.Transmit([]xsk.Desc{d})
			pending[next] = true
			next++
		}
		_ = p.socket.WakeTX()
		p.frames.Put(addrs[:p.rings.Completion.Complete(addrs)])
		got := p.rings.RX.Receive(descs)
		for _, d := range descs[:got] {
			delete(pending, int(binary.BigEndian.Uint32(p.umem.Packet(d)[14:])))
			addrs[0] = p.umem.Config.FrameOf(d.Addr)
			p.rings.Fill.Refill(addrs[:1])
		}
		if got > 0 {
			last = time.Now()
		} else if time.Since(last) > Patience {
			break
		} else {
			time.Sleep(50 * time.Microsecond)
		}
	}
	for i := range pending {
		lost = append(lost, i)
	}
	return lost
}
