package xsk_test

import (
	"encoding/binary"
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/testutil"
	"github.com/afxdp-project/afxdp/internal/xdpprog"
	"github.com/afxdp-project/afxdp/pkg/xsk"
)

func TestMain(m *testing.M) { os.Exit(testutil.Main(m)) }

const (
	queues = 4
	// patience is how long anything may take that the kernel does at once.
	patience = 5 * time.Second
)

// wire is a veth pair. Frames that a socket sends on queue q of one end arrive on queue q of the other, where the XDP
// program hands them to a socket.
type wire struct{ near, far side }

type side struct {
	name  string
	index int
	prog  *xdpprog.Attachment
}

type wireConfig struct {
	mtu         int
	multiBuffer bool
}

func newWire(tb testing.TB, c wireConfig) *wire {
	tb.Helper()
	w := &wire{near: side{name: "xsknear"}, far: side{name: "xskfar"}}
	testutil.Veth(tb, testutil.VethPair{Near: w.near.name, Far: w.far.name, Queues: queues, MTU: c.mtu})
	for _, s := range []*side{&w.near, &w.far} {
		ifi, err := net.InterfaceByName(s.name)
		if err != nil {
			tb.Fatal(err)
		}
		s.index = ifi.Index
		s.prog, err = xdpprog.Attach(xdpprog.Config{
			Ifindex: s.index, Queues: queues, MultiBuffer: c.multiBuffer, PinDir: "/sys/fs/bpf/" + s.name,
		})
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() {
			if err := s.prog.Detach(); err != nil {
				tb.Error(err)
			}
		})
	}
	return w
}

// port is a bound socket with everything that it needs.
type port struct {
	tb     testing.TB
	umem   *xsk.UMEM
	socket *xsk.Socket
	rings  *xsk.Rings
	frames *xsk.Frames
}

type portConfig struct {
	queue uint32
	umem  xsk.UMEMConfig // 0 frames: 1024
	sizes xsk.RingSizes  // all 0: 512
	bind  xsk.BindConfig // without Ifindex and Queue
	fill  int            // frames to hand to the kernel; 0: all that the ring takes, but half of the UMEM at most; -1: none
	// share is a port whose UMEM is used; frames are then first to first+count-1.
	share        *port
	first, count uint32
}

func (c portConfig) withDefaults() portConfig {
	if c.umem.Frames == 0 {
		c.umem.Frames = 1024
	}
	if c.share != nil {
		c.bind.Shared, c.umem = c.share.socket, c.share.umem.Config
	} else {
		c.count = c.umem.Frames
	}
	if c.sizes == (xsk.RingSizes{}) {
		c.sizes = xsk.RingSizes{Fill: 512, Completion: 512, RX: 512, TX: 512}
	}
	if c.bind.Mode == xsk.ZeroCopyAuto {
		c.bind.Mode = xsk.ZeroCopyOff
	}
	c.umem = c.umem.WithDefaults()
	return c
}

// open opens a port on a queue of the side and has the XDP program feed it.
func (s *side) open(tb testing.TB, c portConfig) *port {
	tb.Helper()
	p, err := s.tryOpen(tb, c)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

func (s *side) tryOpen(tb testing.TB, c portConfig) (*port, error) {
	tb.Helper()
	c = c.withDefaults()
	p := &port{tb: tb, frames: xsk.NewFrames(c.umem, c.first, c.count)}
	tb.Cleanup(p.close)
	var err error
	if p.socket, err = xsk.NewSocket(); err != nil {
		return nil, err
	}
	if c.share != nil {
		p.umem = c.share.umem
	} else {
		if p.umem, err = xsk.NewUMEM(c.umem); err != nil {
			return nil, err
		}
		tb.Cleanup(func() { _ = p.umem.Close() })
		if err := p.socket.RegisterUMEM(p.umem.Bytes(), p.umem.Config); err != nil {
			return nil, err
		}
	}
	if err := p.socket.SetRings(c.sizes); err != nil {
		return nil, err
	}
	c.bind.Ifindex, c.bind.Queue = s.index, c.queue
	if err := p.socket.Bind(c.bind); err != nil {
		return nil, err
	}
	if p.rings, err = p.socket.Map(c.sizes); err != nil {
		return nil, err
	}
	if p.rings.Fill != nil && c.fill >= 0 {
		n := c.fill
		if n == 0 {
			n = min(p.rings.Fill.Size(), p.frames.Free()/2)
		}
		p.refill(n)
	}
	if p.rings.RX == nil {
		return p, nil
	}
	return p, s.prog.Insert(int(c.queue), p.socket.FD())
}

func (p *port) close() {
	if p.rings != nil {
		if err := p.rings.Close(); err != nil {
			p.tb.Error(err)
		}
	}
	if p.socket != nil {
		if err := p.socket.Close(); err != nil {
			p.tb.Error(err)
		}
	}
}

// refill hands n frames to the kernel.
func (p *port) refill(n int) {
	p.tb.Helper()
	addrs := make([]uint64, n)
	if got := p.frames.Get(addrs); got != n {
		p.tb.Fatalf("only %d of %d frames are free", got, n)
	}
	if got := p.rings.Fill.Refill(addrs); got != n {
		p.tb.Fatalf("fill ring took %d of %d frames", got, n)
	}
}

// queuePackets puts packets on the tx ring, each as many descriptors as it needs.
func (p *port) queuePackets(packets ...[]byte) {
	p.tb.Helper()
	size := int(p.umem.Config.FrameSize)
	for _, packet := range packets {
		var descs []xsk.Desc
		for len(packet) > 0 {
			var addr [1]uint64
			if p.frames.Get(addr[:]) != 1 {
				p.tb.Fatal("no frame is free")
			}
			d := xsk.Desc{Addr: addr[0], Len: uint32(min(len(packet), size))}
			packet = packet[copy(p.umem.Packet(d), packet):]
			if len(packet) > 0 {
				d.Options = xsk.PacketContinued
			}
			descs = append(descs, d)
		}
		if n := p.rings.TX.Transmit(descs); n != len(descs) {
			p.tb.Fatalf("tx ring took %d of %d descriptors", n, len(descs))
		}
	}
}

// flush kicks the kernel until n descriptors have been completed and returns the number of kicks.
func (p *port) flush(n int) (kicks int) {
	p.tb.Helper()
	addrs := make([]uint64, 64)
	within(p.tb, func() bool {
		kicks++
		if err := p.socket.WakeTX(); err != nil && !errors.Is(err, xsk.ErrAgain) {
			p.tb.Fatal(err)
		}
		got := p.rings.Completion.Complete(addrs)
		p.frames.Put(addrs[:got])
		n -= got
		return n <= 0
	})
	if n != 0 {
		p.tb.Fatalf("transmission: %d descriptors were not completed", n)
	}
	return kicks
}

func (p *port) send(packets ...[]byte) {
	p.tb.Helper()
	p.queuePackets(packets...)
	p.flush(len(packets))
}

// receive takes packets until there are n, and their frames back. It fails when they do not come.
func (p *port) receive(n int) [][]byte {
	p.tb.Helper()
	var packets [][]byte
	p.receiveDescs(n, func(d xsk.Desc) { packets = append(packets, append([]byte(nil), p.umem.Packet(d)...)) })
	return packets
}

func (p *port) receiveDescs(n int, f func(xsk.Desc)) {
	p.tb.Helper()
	descs := make([]xsk.Desc, 64)
	within(p.tb, func() bool {
		got := p.rings.RX.Receive(descs[:min(n, len(descs))])
		for _, d := range descs[:got] {
			f(d)
		}
		p.frames.PutPackets(descs[:got])
		n -= got
		return n == 0
	})
	if n > 0 {
		st, _ := p.socket.Statistics()
		p.tb.Fatalf("%d packets did not arrive; statistics: %+v", n, st)
	}
}

func (p *port) statistics() xsk.Statistics {
	p.tb.Helper()
	st, err := p.socket.Statistics()
	if err != nil {
		p.tb.Fatal(err)
	}
	return st
}

// within calls done until it is true or patience is over.
func within(tb testing.TB, done func() bool) bool {
	tb.Helper()
	for deadline := time.Now().Add(patience); !done(); {
		if time.Now().After(deadline) {
			return false
		}
		time.Sleep(100 * time.Microsecond)
	}
	return true
}

// packet makes a frame of an experimental Ethernet type that carries number.
func packet(number uint32, size int) []byte {
	p := make([]byte, size)
	copy(p, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 0x88, 0xb5})
	binary.BigEndian.PutUint32(p[14:], number)
	for i := 18; i < size; i++ {
		p[i] = byte(i*7) + byte(number)
	}
	return p
}

func packets(count, size int) [][]byte {
	ps := make([][]byte, count)
	for i := range ps {
		ps[i] = packet(uint32(i), size)
	}
	return ps
}

func isGone(err error) bool {
	return errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENETDOWN) || errors.Is(err, unix.ENODEV)
}
