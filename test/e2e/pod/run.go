package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/afxdp-project/afxdp/pkg/busypoll"
	"github.com/afxdp-project/afxdp/pkg/client"
	"github.com/afxdp-project/afxdp/pkg/xsk"
	"github.com/afxdp-project/afxdp/test/e2e/ledger"
)

const (
	tellInterval = 250 * time.Millisecond
	// maxSleep is how soon the sender's pace and a call to end are noticed.
	maxSleep = time.Millisecond
)

// port is a queue with its ledger.
type port struct {
	options *options
	device  client.Device
	mode    client.Mode
	queue   *busypoll.Queue

	book    ledger.Queue
	start   time.Time
	last    time.Time // when the last answer came
	ending  bool      // no more questions
	pending map[uint64]bool
}

func run(ctx context.Context, o *options) (err error) {
	if o.mode == "idle" {
		<-ctx.Done()
		return nil
	}
	if o.path == "" {
		if o.path, err = client.DefaultPath(); err != nil {
			return err
		}
	}
	id, err := identity()
	if err != nil {
		return err
	}
	c, err := client.Connect(ctx, o.path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	set, err := c.OpenAll(client.AllConfig{FramesPerQueue: 1024, Open: client.OpenConfig{
		Rings: xsk.RingSizes{RX: 512, TX: 512, Fill: 512, Completion: 512},
	}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, set.Close()) }()
	var ports []*port
	var queues []*busypoll.Queue
	for i, q := range set.Queues {
		p := &port{options: o, device: q.Device, mode: q.Mode, start: time.Now(), last: time.Now(), pending: make(map[uint64]bool)}
		p.book = ledger.Queue{
			Device: fmt.Sprintf("%s-q%d", q.Device.Netdev, q.Device.Queue), ZeroCopy: q.Mode.ZeroCopy, Obstacle: q.Mode.Obstacle,
			Tags: make(map[string]uint64),
		}
		p.queue = &busypoll.Queue{
			Name: p.book.Device, Socket: q.Socket, Rings: q.Rings, UMEM: q.UMEM, Frames: set.Frames[i], KickTX: q.Kick, Handle: p.answer,
		}
		if o.mode == "send" {
			p.queue.Handle, p.queue.Generate = p.take, p.ask
		}
		ports, queues = append(ports, p), append(queues, p.queue)
	}
	loop, err := busypoll.NewLoop(queues, busypoll.Config{IdleRounds: 20, MaxSleep: maxSleep})
	if err != nil {
		return err
	}
	tellAll := func(what string) error {
		e := ledger.Event{Event: what, Pool: c.Pool(), Identity: id, Resumes: c.Resumes()}
		for _, p := range ports {
			st, err := p.queue.Socket.Statistics()
			if err != nil {
				return err
			}
			p.book.Drops = st.Lost() + st.TXInvalid
			e.Queues = append(e.Queues, p.book)
		}
		return tell(e)
	}
	// The kernel has frames to receive into before anyone hears that packets can come.
	for range 16 {
		if _, err := loop.Round(); err != nil {
			return err
		}
	}
	if err := tellAll(ledger.Open); err != nil {
		return err
	}
	told, target := time.Now(), uint64(0)
	for {
		if _, err := loop.Round(); err != nil {
			return err
		}
		now := time.Now()
		if now.Sub(told) > tellInterval {
			told = now
			if err := tellAll(ledger.Progress); err != nil {
				return err
			}
		}
		select {
		case <-c.Done():
			return errors.Join(errors.New("the lease ended"), c.Err())
		default:
		}
		if o.mode != "send" {
			if ctx.Err() != nil {
				return tellAll(ledger.End)
			}
			continue
		}
		if target == 0 && c.Resumes() >= o.resumes {
			target = ports[0].book.Sent + o.count
		}
		over := true
		for _, p := range ports {
			p.ending = ctx.Err() != nil || target > 0 && p.book.Sent >= target
			over = over && p.ending && len(p.pending) == 0
			if len(p.pending) > 0 && now.Sub(p.last) > o.timeout {
				return errors.Join(fmt.Errorf("%s: no answer to %d packets within %v", p.book.Device, len(p.pending), o.timeout), tellAll(ledger.Progress))
			}
		}
		if over {
			return finish(o, tellAll)
		}
	}
}

// finish ends, or crashes if that is wanted.
func finish(o *options, tellAll func(string) error) error {
	if o.crashOnce != "" {
		f, err := os.OpenFile(o.crashOnce, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		switch {
		case err == nil:
			// Nothing is closed: the kernel and the agent have to cope with that.
			_ = errors.Join(f.Close(), tellAll(ledger.Progress))
			os.Exit(137)
		case !errors.Is(err, os.ErrExist):
			return err
		}
	}
	return tellAll(ledger.End)
}

// answer sends each question back.
func (p *port) answer(q *busypoll.Queue, packets []xsk.Desc) int {
	n := 0
	for i := range packets {
		b := q.UMEM.Packet(packets[i])
		l, ok := read(b)
		switch {
		case !ok:
			p.book.Other++
			continue
		case l.kind != question || int(l.queue) != p.device.Queue:
			p.book.Wrong++
			continue
		}
		p.book.Received++
		p.book.Tags[strconv.FormatUint(l.tag, 10)]++
		if p.options.mode != "answer" {
			continue
		}
		l.kind = answer
		l.write(b)
		packets[n], packets[i] = packets[i], packets[n]
		n++
	}
	p.book.Sent += uint64(n)
	return n
}

// ask writes questions, as many as window and rate allow.
func (p *port) ask(q *busypoll.Queue, frames []xsk.Desc) int {
	if p.ending {
		return 0
	}
	due := uint64(time.Since(p.start).Seconds() * float64(p.options.rate))
	n := 0
	for n < len(frames) && uint64(len(p.pending)) < p.options.window && p.book.Sent < due {
		frames[n].Len = packetSize
		l := label{kind: question, tag: p.options.tag, queue: uint32(p.device.Queue), number: p.book.Sent}
		l.write(q.UMEM.Packet(frames[n]))
		if len(p.pending) == 0 {
			p.last = time.Now()
		}
		p.pending[l.number] = true
		p.book.Sent++
		n++
	}
	return n
}

// take reads answers.
func (p *port) take(q *busypoll.Queue, packets []xsk.Desc) int {
	for _, d := range packets {
		l, ok := read(q.UMEM.Packet(d))
		switch {
		case !ok:
			p.book.Other++
		case l.kind != answer || l.tag != p.options.tag || int(l.queue) != p.device.Queue || !p.pending[l.number]:
			p.book.Wrong++
		default:
			delete(p.pending, l.number)
			p.book.Received++
			p.last = time.Now()
		}
	}
	return 0
}
