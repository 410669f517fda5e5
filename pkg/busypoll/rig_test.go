package busypoll

import (
	"encoding/binary"
	"errors"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/testutil"
	"github.com/afxdp-project/afxdp/internal/xdpprog"
	"github.com/afxdp-project/afxdp/pkg/xsk"
)

const patience = 10 * time.Second

// rig is a veth pair: loops run on the near end, the test sends and receives on the far end.
type rig struct {
	tb        testing.TB
	near, far side
}

type side struct {
	name  string
	index int
	prog  *xdpprog.Attachment
}

func newRig(tb testing.TB, queues, mtu int) *rig {
	tb.Helper()
	r := &rig{tb: tb, near: side{name: "bpnear"}, far: side{name: "bpfar"}}
	testutil.Veth(tb, testutil.VethPair{Near: r.near.name, Far: r.far.name, Queues: queues, MTU: mtu})
	for _, s := range []*side{&r.near, &r.far} {
		ifi, err := net.InterfaceByName(s.name)
		if err != nil {
			tb.Fatal(err)
		}
		s.index = ifi.Index
		c := xdpprog.Config{Ifindex: s.index, Queues: queues, MultiBuffer: mtu > 3000, PinDir: "/sys/fs/bpf/" + s.name}
		if s.prog, err = xdpprog.Attach(c); err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() {
			if err := s.prog.Detach(); err != nil {
				tb.Error(err)
			}
		})
	}
	return r
}

const frames = 512

// queue opens a queue of a side, without handlers.
func (r *rig) queue(s *side, number int, rings uint32, multiBuffer bool) *Queue {
	r.tb.Helper()
	must := func(err error) {
		r.tb.Helper()
		if err != nil {
			r.tb.Fatal(err)
		}
	}
	umem, err := xsk.NewUMEM(xsk.UMEMConfig{Frames: frames, FrameSize: 4096})
	must(err)
	r.tb.Cleanup(func() { _ = umem.Close() })
	socket, err := xsk.NewSocket()
	must(err)
	r.tb.Cleanup(func() { _ = socket.Close() })
	sizes := xsk.RingSizes{Fill: rings, Completion: rings, RX: rings, TX: rings}
	must(socket.RegisterUMEM(umem.Bytes(), umem.Config))
	must(socket.SetRings(sizes))
	must(socket.Bind(xsk.BindConfig{
		Ifindex: s.index, Queue: uint32(number), Mode: xsk.ZeroCopyOff, NeedWakeup: true, MultiBuffer: multiBuffer,
	}))
	mapped, err := socket.Map(sizes)
	must(err)
	r.tb.Cleanup(func() { _ = mapped.Close() })
	must(s.prog.Insert(number, socket.FD()))
	return &Queue{
		Name: s.name, Socket: socket, Rings: mapped, UMEM: umem, Frames: xsk.NewFrames(umem.Config, 0, frames),
	}
}

func (r *rig) loop(c Config, queues ...*Queue) *Loop {
	r.tb.Helper()
	l, err := NewLoop(queues, c)
	if err != nil {
		r.tb.Fatal(err)
	}
	return l
}

// round does a round and fails the test when it fails.
func (r *rig) round(l *Loop) int {
	r.tb.Helper()
	n, err := l.Round()
	if err != nil {
		r.tb.Fatal(err)
	}
	return n
}

// until does rounds of loops in turn until done.
func (r *rig) until(what string, done func() bool, loops ...*Loop) {
	r.tb.Helper()
	for deadline := time.Now().Add(patience); !done(); {
		for _, l := range loops {
			r.round(l)
		}
		if time.Now().After(deadline) {
			r.tb.Fatalf("%s did not happen within %v", what, patience)
		}
	}
}

// conserved fails the test unless each of q's frames is free or with the kernel for reception.
func (r *rig) conserved(q *Queue) {
	r.tb.Helper()
	if q.Frames.Free()+q.onFill+q.inFlight != frames || q.inFlight != 0 {
		r.tb.Errorf("queue %s has %d frames free, %d for reception, %d in flight; want %d, none of them in flight",
			q.Name, q.Frames.Free(), q.onFill, q.inFlight, frames)
	}
}

// source generates count numbered packets, and keeps at most window of them on the way when back says how many arrived.
type source struct {
	count, window int
	sent          int
	back          *int
	size          int
}

func (s *source) generate(q *Queue, frames []xsk.Desc) int {
	n := min(len(frames), s.count-s.sent)
	if s.back != nil {
		n = min(n, s.window-(s.sent-*s.back))
	}
	for i := range frames[:n] {
		frames[i].Len = uint32(s.size)
		p := q.UMEM.Packet(frames[i])
		copy(p, "\xff\xff\xff\xff\xff\xff\x02\x00\x00\x00\x00\x01\x88\xb5")
		binary.BigEndian.PutUint32(p[14:], uint32(s.sent))
		s.sent++
	}
	return n
}

// sink counts packets and those that are not the next.
type sink struct{ got, wrong int }

func (s *sink) handle(q *Queue, packets []xsk.Desc) int {
	for _, d := range packets {
		if binary.BigEndian.Uint32(q.UMEM.Packet(d)[14:]) != uint32(s.got) {
			s.wrong++
		}
		s.got++
	}
	return 0
}

func forward(_ *Queue, packets []xsk.Desc) int { return len(packets) }

func isGone(err error) bool {
	return errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENETDOWN) || errors.Is(err, unix.ENODEV)
}
