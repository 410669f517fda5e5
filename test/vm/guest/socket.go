package main

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/lease"
	"github.com/afxdp-project/afxdp/pkg/busypoll"
	"github.com/afxdp-project/afxdp/pkg/xsk"
	"github.com/afxdp-project/afxdp/test/vm/traffic"
)

const (
	ringSize    = 512
	queueFrames = 1024
)

var sizes = xsk.RingSizes{Fill: ringSize, Completion: ringSize, RX: ringSize, TX: ringSize}

// sockets are the AF_XDP sockets of a row, all on one UMEM.
type sockets struct {
	umem   *xsk.UMEM
	queues []*queue
}

// queue is the socket of a leased queue.
type queue struct {
	busypoll.Queue
	number   int
	tag      byte
	toSend   int // frames that are to be generated
	received uint64
}

// open makes the sockets of leased queues and has their packets go to them, as the agent and a client do.
func (t *tester) open(n *nic, grants []lease.Grant, zeroCopy bool, tag byte) (_ *sockets, err error) {
	s := &sockets{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	s.umem, err = xsk.NewUMEM(xsk.UMEMConfig{Frames: uint32(queueFrames * len(grants)), FrameSize: xsk.MinFrameSize})
	if err != nil {
		return nil, err
	}
	mode := xsk.ZeroCopyOff
	if zeroCopy {
		mode = xsk.ZeroCopyRequire
	}
	var group uint64
	for i, g := range grants {
		q := &queue{number: g.Queue, tag: tag}
		q.Name, q.UMEM = g.Device, s.umem
		q.Frames = xsk.NewFrames(s.umem.Config, uint32(i*queueFrames), queueFrames)
		q.Handle, q.Generate = q.take, q.generate
		s.queues = append(s.queues, q)
		c := xsk.BindConfig{Ifindex: n.index, Queue: uint32(g.Queue), Mode: mode, NeedWakeup: true}
		if i > 0 {
			c.Shared = s.queues[0].Socket
		}
		if err := q.bind(c, t.mapFirst); err != nil {
			return nil, err
		}
		cookie, err := q.Socket.Cookie()
		if err != nil {
			return nil, err
		}
		if i == 0 {
			group = cookie
		}
		handed, err := q.Socket.Dup()
		if err != nil {
			return nil, err
		}
		record := lease.Socket{Cookie: cookie, Group: group, ZeroCopy: zeroCopy}
		if err := t.leases.Opened(g, handed, record, func(string) {}); err != nil {
			return nil, errors.Join(err, handed.Close())
		}
	}
	return s, nil
}

// bind makes, binds and maps the socket. mapFirst is for kernels that cannot map the rings of a bound one.
func (q *queue) bind(c xsk.BindConfig, mapFirst bool) (err error) {
	if q.Socket, err = xsk.NewSocket(); err != nil {
		return err
	}
	if c.Shared == nil {
		if err := q.Socket.RegisterUMEM(q.UMEM.Bytes(), q.UMEM.Config); err != nil {
			return err
		}
	}
	if err := q.Socket.SetRings(sizes); err != nil {
		return err
	}
	if mapFirst {
		if q.Rings, err = q.Socket.Map(sizes); err != nil {
			return err
		}
	}
	if err := bindPatiently(q.Socket, c); err != nil || mapFirst {
		return err
	}
	q.Rings, err = q.Socket.Map(sizes)
	return err
}

// bindPatiently waits for the kernel to let go of a queue whose last socket was just closed.
func bindPatiently(s *xsk.Socket, c xsk.BindConfig) error {
	for deadline := time.Now().Add(3 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		err := s.Bind(c)
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return err
		}
	}
}

// addKick makes the second socket, which starts transmission: on the same queue and UMEM, with nothing but a tx ring,
// which stays empty, and without busy polling.
func (q *queue) addKick(n *nic) error {
	kick, err := xsk.NewSocket()
	if err != nil {
		return err
	}
	q.KickTX = kick
	if err := kick.SetRings(xsk.RingSizes{TX: 1}); err != nil {
		return err
	}
	return bindPatiently(kick, xsk.BindConfig{Ifindex: n.index, Queue: uint32(q.number), Shared: q.Socket})
}

// take counts the traffic that came in.
func (q *queue) take(_ *busypoll.Queue, packets []xsk.Desc) int {
	for _, d := range packets {
		if traffic.IsUDP(q.UMEM.Packet(d)) {
			q.received++
		}
	}
	return 0
}

// generate writes frames as long as there are some to send.
func (q *queue) generate(_ *busypoll.Queue, frames []xsk.Desc) int {
	n := min(len(frames), q.toSend)
	for i := range frames[:n] {
		frames[i].Len = traffic.FrameSize
		traffic.Tagged(q.UMEM.Packet(frames[i]), q.tag)
	}
	q.toSend -= n
	return n
}

func (s *sockets) close() error {
	var errs []error
	for _, q := range s.queues {
		if q.Rings != nil {
			errs = append(errs, q.Rings.Close())
		}
		for _, socket := range []*xsk.Socket{q.KickTX, q.Socket} {
			if socket != nil {
				errs = append(errs, socket.Close())
			}
		}
	}
	if s.umem != nil {
		errs = append(errs, s.umem.Close())
	}
	return errors.Join(errs...)
}

// trialBind tells what a bind in a mode comes to.
func trialBind(c xsk.BindConfig) (err error) {
	umem, err := xsk.NewUMEM(xsk.UMEMConfig{Frames: 64})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, umem.Close()) }()
	s, err := xsk.NewSocket()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if err := s.RegisterUMEM(umem.Bytes(), umem.Config); err != nil {
		return err
	}
	if err := s.SetRings(xsk.RingSizes{Fill: 64, Completion: 64, RX: 64, TX: 64}); err != nil {
		return err
	}
	return bindPatiently(s, c)
}
