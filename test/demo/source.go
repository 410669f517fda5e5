package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/afxdp-project/afxdp/internal/xdpprog"
	"github.com/afxdp-project/afxdp/pkg/busypoll"
	"github.com/afxdp-project/afxdp/pkg/xsk"
)

// source sends packets on the far NIC and takes their answers, on the queues that lead to those of the pod.
type source struct {
	prog  *xdpprog.Attachment
	umem  *xsk.UMEM
	lanes []*lane
	loop  *busypoll.Loop
	ended chan struct{} // closed when the loop ended, with err
	err   error

	turns atomic.Uint64 // of the tap: odd while packets are let flow
	watch stopwatch
}

// lane is one queue of the source.
type lane struct {
	queue   int
	socket  *xsk.Socket
	rings   *xsk.Rings
	ledger  ledger
	packets *packets
	turn    atomic.Uint64 // of the tap, as the loop has seen it
}

const (
	laneRing   = 512
	laneFrames = 1024
)

// openSource opens AF_XDP sockets on queues of a NIC of the calling thread's network namespace. The caller closes it.
func openSource(nic string, queues []int, peer net.HardwareAddr, pins string) (_ *source, err error) {
	s := &source{ended: make(chan struct{})}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("open the traffic source on %s: %w", nic, err), s.release())
		}
	}()
	ifi, err := net.InterfaceByName(nic)
	if err != nil {
		return nil, err
	}
	s.prog, err = xdpprog.Attach(xdpprog.Config{Ifindex: ifi.Index, Queues: nicQueues, PinDir: pins})
	if err != nil {
		return nil, err
	}
	s.umem, err = xsk.NewUMEM(xsk.UMEMConfig{Frames: uint32(laneFrames * len(queues)), FrameSize: xsk.MinFrameSize})
	if err != nil {
		return nil, err
	}
	var ports []*busypoll.Queue
	for i, queue := range queues {
		l := &lane{queue: queue, packets: newPackets(ifi.HardwareAddr, peer, queue)}
		s.lanes = append(s.lanes, l)
		if err := s.bind(l, ifi.Index); err != nil {
			return nil, err
		}
		ports = append(ports, &busypoll.Queue{
			Name: fmt.Sprintf("%s-q%d", nic, queue), Socket: l.socket, Rings: l.rings, UMEM: s.umem,
			Frames: xsk.NewFrames(s.umem.Config, uint32(i*laneFrames), laneFrames),
			Handle: l.take, Generate: func(q *busypoll.Queue, frames []xsk.Desc) int { return s.send(l, q, frames) },
		})
	}
	// It goes to sleep soon, since on a small machine the pod needs the CPU to answer, but not for long, to notice that
	// it may send again.
	s.loop, err = busypoll.NewLoop(ports, busypoll.Config{IdleRounds: 50, MaxSleep: 5 * time.Millisecond})
	return s, err
}

func (s *source) bind(l *lane, ifindex int) (err error) {
	if l.socket, err = xsk.NewSocket(); err != nil {
		return err
	}
	c := xsk.BindConfig{Ifindex: ifindex, Queue: uint32(l.queue), Mode: xsk.ZeroCopyOff, NeedWakeup: true}
	if first := s.lanes[0]; first != l {
		c.Shared = first.socket
	} else if err := l.socket.RegisterUMEM(s.umem.Bytes(), s.umem.Config); err != nil {
		return err
	}
	sizes := xsk.RingSizes{Fill: laneRing, Completion: laneRing, RX: laneRing, TX: laneRing}
	if err := l.socket.SetRings(sizes); err != nil {
		return err
	}
	if err := l.socket.Bind(c); err != nil {
		return err
	}
	if l.rings, err = l.socket.Map(sizes); err != nil {
		return err
	}
	return s.prog.Insert(l.queue, l.socket.FD())
}

// start runs the loop, which sends nothing before the first resume.
func (s *source) start(ctx context.Context) {
	go func() {
		s.err = s.loop.Run(ctx)
		close(s.ended)
	}()
}

// send writes as many packets as the lane may have on their way.
func (s *source) send(l *lane, q *busypoll.Queue, frames []xsk.Desc) int {
	turn := s.turns.Load()
	l.turn.Store(turn)
	if !flows(turn) {
		return 0
	}
	n := 0
	for i := range frames {
		number, ok := l.ledger.next()
		if !ok {
			break
		}
		frames[i].Len = packetSize
		l.packets.write(q.UMEM.Packet(frames[i]), number)
		n++
	}
	if n > 0 {
		l.ledger.publish()
	}
	return n
}

// take notes answers and frees their frames.
func (l *lane) take(q *busypoll.Queue, packets []xsk.Desc) int {
	for i := range packets {
		if number, err := l.packets.read(q.UMEM.Packet(packets[i])); err != nil {
			l.ledger.corrupt()
		} else {
			l.ledger.answer(number)
		}
	}
	l.ledger.publish()
	return 0
}

// flowed returns for how long packets have flowed.
func (s *source) flowed() time.Duration { return s.watch.read(time.Now()) }

// resume lets packets flow.
func (s *source) resume() {
	s.watch.start(time.Now())
	s.turns.Add(1)
}

func flows(turn uint64) bool { return turn%2 == 1 }

// sending reports whether packets are let flow.
func (s *source) sending() bool { return flows(s.turns.Load()) }

// pause stops sending, and returns when all that was sent is answered.
func (s *source) pause(ctx context.Context) error {
	turn := s.turns.Add(1)
	defer func() { s.watch.stop(time.Now()) }()
	err := s.until(ctx, func() bool {
		for _, l := range s.lanes {
			if l.turn.Load() != turn { // it may be about to send some more
				return false
			}
		}
		t := s.total()
		return t.Sent == t.Answered
	})
	if err != nil {
		return fmt.Errorf("wait for the last answers: %w", err)
	}
	return nil
}

// until waits until cond holds. It fails when the loop ends, or ctx.
func (s *source) until(ctx context.Context, cond func() bool) error {
	for !cond() {
		select {
		case <-s.ended:
			return fmt.Errorf("the traffic source has ended: %w", errors.Join(s.err, ctx.Err()))
		case <-ctx.Done():
			return fmt.Errorf("%w (%s)", context.Cause(ctx), s.describe())
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}

// tallies returns the books of each queue.
func (s *source) tallies() []tally {
	var all []tally
	for _, l := range s.lanes {
		all = append(all, l.ledger.tally())
	}
	return all
}

// total returns the sum over all queues.
func (s *source) total() (sum tally) {
	for _, t := range s.tallies() {
		for i, v := range sum.list() {
			*v += *t.list()[i]
		}
	}
	return sum
}

func (s *source) describe() string {
	var parts []string
	for _, l := range s.lanes {
		t := l.ledger.tally()
		p := fmt.Sprintf("queue %d: sent %d, answered %d", l.queue, t.Sent, t.Answered)
		if t.faults() > 0 {
			p += fmt.Sprintf(", duplicate %d, never sent %d, out of turn %d, not an answer %d",
				t.Duplicate, t.Unsent, t.Reordered, t.Corrupt)
		}
		parts = append(parts, p)
	}
	return strings.Join(parts, "; ")
}

// dropped sums up what the kernel dropped on the source's sockets.
func (s *source) dropped() (uint64, error) {
	var sum uint64
	for _, l := range s.lanes {
		st, err := l.socket.Statistics()
		if err != nil {
			return 0, err
		}
		sum += st.RXDropped + st.RXRingFull + st.FillRingEmpty + st.RXInvalid + st.TXInvalid
	}
	return sum, nil
}

// close ends the loop, which start has begun, and takes everything off the NIC.
func (s *source) close() error {
	s.loop.Stop()
	<-s.ended
	return errors.Join(s.err, s.release())
}

func (s *source) release() error {
	var errs []error
	for _, l := range s.lanes {
		if l.rings != nil {
			errs = append(errs, l.rings.Close())
		}
		if l.socket != nil {
			errs = append(errs, l.socket.Close())
		}
	}
	if s.umem != nil {
		errs = append(errs, s.umem.Close())
	}
	if s.prog != nil {
		errs = append(errs, s.prog.Detach())
	}
	return errors.Join(errs...)
}

// stopwatch sums up the time that packets flowed.
type stopwatch struct {
	total time.Duration
	since time.Time // zero: stopped
}

func (w *stopwatch) start(now time.Time) {
	if w.since.IsZero() {
		w.since = now
	}
}

func (w *stopwatch) read(now time.Time) time.Duration {
	if w.since.IsZero() {
		return w.total
	}
	return w.total + now.Sub(w.since)
}

func (w *stopwatch) stop(now time.Time) {
	if !w.since.IsZero() {
		w.total += now.Sub(w.since)
		w.since = time.Time{}
	}
}
