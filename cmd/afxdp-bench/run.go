package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/afxdp-project/afxdp/pkg/busypoll"
)

// lease is what a run needs to know of the connection to the agent.
type lease interface {
	Done() <-chan struct{} // closed when the queues are no longer ours
	Err() error
	Pool() string
	Resumes() uint64
}

// How a run ended.
const (
	endDuration = "duration"
	endPackets  = "packets"
	endSignal   = "signal"
	endError    = "error"
	endNone     = "running" // not yet
)

const (
	// showInterval is how often the live line is drawn and the busy-poll status is asked for.
	showInterval  = time.Second
	checkInterval = 10 * time.Millisecond // how often the count of packets is looked at
	drainLimit    = 500 * time.Millisecond
)

// run is a measurement over all ports.
type run struct {
	options *options
	ports   []*port
	lease   lease
	threads []thread
	// progress is given a summary at the interval that the options say.
	progress func(*report) error

	start   time.Time
	elapsed time.Duration
	end     string
	err     error
}

// thread is a loop with the ports that it serves.
type thread struct {
	loop  *busypoll.Loop
	ports []*port
}

// newRun prepares a run. Its loops are not started.
func newRun(o *options, ports []*port, l lease) (*run, error) {
	r := &run{options: o, ports: ports, lease: l}
	return r, r.prepare()
}

func (r *run) prepare() error {
	o, ports := r.options, r.ports
	for i, p := range ports {
		switch o.mode {
		case rxDrop:
			p.queue.Handle = drop
		case l2fwd:
			p.queue.Handle = newForwarder()
		case txOnly:
			p.queue.Generate = newGenerator(o.source, o.target, o.packetSize, share(o.packets, i, len(ports))).generate
		}
		p.assess()
	}
	n := o.threads
	if n == 0 {
		n = runtime.NumCPU()
	}
	n = min(n, len(ports))
	r.threads = make([]thread, n)
	for i, p := range ports {
		t := &r.threads[i%n]
		t.ports = append(t.ports, p)
	}
	for i := range r.threads {
		t := &r.threads[i]
		queues := make([]*busypoll.Queue, len(t.ports))
		for j, p := range t.ports {
			queues[j] = p.queue
		}
		var err error
		if t.loop, err = busypoll.NewLoop(queues, busypoll.Config{Batch: o.batch}); err != nil {
			return err
		}
	}
	return nil
}

// share returns how many of total packets port i of n sends; without a total there is no end.
func share(total uint64, i, n int) uint64 {
	if total == 0 {
		return 1<<64 - 1
	}
	s := total / uint64(n)
	if uint64(i) < total%uint64(n) {
		s++
	}
	return s
}

// run measures until the options or ctx end it, the lease ends or a queue fails; the latter two are errors.
func (r *run) run(ctx context.Context, live *liveLine) error {
	// Threads that spin must not keep this goroutine from running, whatever the CPU limit.
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), len(r.threads)+1))

	if r.err = r.fill(); r.err != nil {
		return r.err
	}
	inner, stop := context.WithCancel(context.Background())
	defer stop()
	loops, inner := errgroup.WithContext(inner)
	r.start = time.Now()
	for _, t := range r.threads {
		loops.Go(func() error { return t.loop.Run(inner) })
	}
	r.end, r.err = r.watch(ctx, inner, live)
	for _, p := range r.ports {
		p.assess() // as long as it runs
	}
	stop()
	if err := loops.Wait(); err != nil {
		r.end, r.err = endError, errors.Join(err, r.err)
	}
	r.elapsed = time.Since(r.start)
	r.drain()
	return r.err
}

// fill hands the kernel the frames for reception, so that no packet that comes once the run goes finds none.
func (r *run) fill() error {
	if r.options.mode == txOnly {
		return nil
	}
	for _, t := range r.threads {
		entries := 0
		for _, p := range t.ports {
			entries = max(entries, p.queue.Rings.Fill.Size())
		}
		for range entries/r.options.batch + 1 {
			if _, err := t.loop.Round(); err != nil {
				return err
			}
		}
	}
	return nil
}

// watch waits for the end, which it returns, and shows meanwhile how it goes.
func (r *run) watch(ctx, loops context.Context, live *liveLine) (string, error) {
	var over <-chan time.Time
	if r.options.duration > 0 {
		over = time.After(r.options.duration)
	}
	show := time.NewTicker(showInterval)
	defer show.Stop()
	check := time.NewTicker(checkInterval)
	defer check.Stop()
	if r.options.packets == 0 {
		check.Stop()
	}
	var tell <-chan time.Time
	if r.options.progress > 0 {
		ticker := time.NewTicker(r.options.progress)
		defer ticker.Stop()
		tell = ticker.C
		if err := r.tell(); err != nil {
			return endError, err
		}
	}
	last := r.counters()
	for {
		select {
		case <-ctx.Done():
			return endSignal, nil
		case <-over:
			return endDuration, nil
		case <-loops.Done(): // one has failed
			return endError, nil
		case <-r.lease.Done():
			if err := r.lease.Err(); err != nil {
				return endError, fmt.Errorf("the lease ended: %w", err)
			}
			return endError, errors.New("the lease ended")
		case <-check.C:
			if r.enough() {
				return endPackets, nil
			}
		case <-tell:
			if err := r.tell(); err != nil {
				return endError, err
			}
		case <-show.C:
			for _, p := range r.ports {
				p.assess()
			}
			now := r.counters()
			live.draw(r.liveText(last, now))
			last = now
		}
	}
}

// tell gives a summary of the run so far.
func (r *run) tell() error { return r.progress(r.summary(time.Since(r.start), endNone)) }

func (r *run) enough() bool {
	var sum uint64
	for _, p := range r.ports {
		c := p.queue.Counters()
		if r.options.mode == txOnly {
			sum += c.Completed
		} else {
			sum += c.RXPackets
		}
	}
	return sum >= r.options.packets
}

// drain waits for what is still being sent. A port whose device is gone has lost it.
func (r *run) drain() {
	for _, t := range r.threads {
		_, _ = t.loop.Drain(drainLimit)
		for _, p := range t.ports {
			p.left = p.queue.InFlight()
		}
	}
}

// sample is the counters of all ports at one time.
type sample struct {
	at     time.Time
	queues []busypoll.Counters
}

func (r *run) counters() sample {
	s := sample{at: time.Now()}
	for _, p := range r.ports {
		s.queues = append(s.queues, p.queue.Counters())
	}
	return s
}

// liveText says what happened between two samples.
func (r *run) liveText(before, now sample) string {
	seconds := now.at.Sub(before.at).Seconds()
	var rx, tx float64
	var each strings.Builder
	for i, p := range r.ports {
		qrx := mpps(now.queues[i].RXPackets-before.queues[i].RXPackets, seconds)
		qtx := mpps(now.queues[i].Completed-before.queues[i].Completed, seconds)
		rx, tx = rx+qrx, tx+qtx
		fmt.Fprintf(&each, "  %s %.2f/%.2f", p.name(), qrx, qtx)
	}
	return fmt.Sprintf("%4.0fs  Mpps rx/tx %.2f/%.2f %s", now.at.Sub(r.start).Seconds(), rx, tx, each.String())
}

func mpps(packets uint64, seconds float64) float64 {
	if seconds <= 0 {
		return 0
	}
	return float64(packets) / seconds / 1e6
}
