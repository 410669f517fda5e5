package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/afxdp-project/afxdp/internal/handoff"
	"github.com/afxdp-project/afxdp/internal/testutil"
	"github.com/afxdp-project/afxdp/pkg/busypoll"
	"github.com/afxdp-project/afxdp/pkg/client"
	"github.com/afxdp-project/afxdp/pkg/netdev"
	"github.com/afxdp-project/afxdp/pkg/xsk"
	"github.com/afxdp-project/afxdp/test/vm/report"
)

// once fills in the row of a mode that is gone through on one NIC only.
func (t *tester) once(n *nic, mode string, row *report.Row) error {
	switch mode {
	case report.ModePinned:
		return t.pinned(n, row)
	case report.ModeHandoff:
		return t.handoff(n, row)
	}
	return fmt.Errorf("there is no mode %q", mode)
}

// pinned has a lease pin a thread that the operator has pinned elsewhere, through a link that goes down and up.
func (t *tester) pinned(n *nic, row *report.Row) (err error) {
	const operators, pools netdev.CPUs = "0", "1"
	row.LeasedQueues = []int{testQueue}
	others := (testQueue + 1) % t.task.Queues
	thread := func(queue int) (netdev.NAPI, error) {
		queues, err := t.nics.Queues(n.index)
		if err != nil {
			return netdev.NAPI{}, err
		}
		for _, q := range queues {
			if q.Type == netdev.RX && q.Index == queue {
				return t.nics.NAPI(q.NAPI)
			}
		}
		return netdev.NAPI{}, fmt.Errorf("there is no queue %d", queue)
	}
	set := func(mode netdev.ThreadedMode) error {
		for _, q := range []int{testQueue, others} {
			napi, err := thread(q)
			if err != nil {
				return err
			}
			if err := t.nics.SetNAPI(napi.ID, netdev.NAPISettings{Threaded: &mode}); err != nil {
				return err
			}
		}
		return nil
	}
	if err := set(netdev.ThreadedOn); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, set(netdev.ThreadedOff)) }()
	cpus := func(queue int) (string, error) {
		napi, err := thread(queue)
		if err != nil {
			return "", err
		}
		cpus, err := t.nics.ThreadAffinity(napi)
		return string(cpus), err
	}
	p := &report.Pin{}
	row.Pin = p
	if p.Unpinned, err = cpus(testQueue); err != nil {
		return err
	}
	for _, q := range []int{testQueue, others} {
		napi, err := thread(q)
		if err == nil {
			err = t.nics.SetThreadAffinity(napi, operators)
		}
		if err != nil {
			return err
		}
	}
	if p.Before, err = cpus(testQueue); err != nil {
		return err
	}
	release, err := t.activate(n, mode{threaded: true, cpus: pools}, row.LeasedQueues)
	if err != nil {
		return err
	}
	err = func() (err error) {
		if p.During, err = cpus(testQueue); err != nil {
			return err
		}
		if p.Other, err = cpus(others); err != nil {
			return err
		}
		p.Unmet = t.leases.Unmet()[deviceID(n, testQueue)]
		if err := errors.Join(testutil.SetDown(n.device), testutil.SetUp(n.device), t.settle(n)); err != nil {
			return err
		}
		if err := t.leases.Retune(); err != nil {
			return err
		}
		p.AfterFlap, err = cpus(testQueue)
		return err
	}()
	if err := errors.Join(err, release(), t.settle(n)); err != nil {
		return err
	}
	p.After, err = cpus(testQueue)
	return err
}

const allocationDir = "/run/alloc/vm"

// handoff goes the whole way: the agent's lease manager and server on one side, the client library in the pod's network
// namespace on the other.
func (t *tester) handoff(n *nic, row *report.Row) (err error) {
	row.LeasedQueues = []int{testQueue}
	if row.Settings.Before, err = t.snapshot(n); err != nil {
		return err
	}
	release, err := t.activate(n, mode{budget: busypoll.DefaultBudget}, row.LeasedQueues)
	if err != nil {
		return err
	}
	err = t.served(n, row)
	if err := errors.Join(err, release(), t.settle(n)); err != nil {
		return err
	}
	xdp, err := t.xdpMode(n)
	if err != nil {
		return err
	}
	if row.Settings.After, err = t.snapshot(n); err != nil {
		return err
	}
	row.Settings.Restored = xdp == netdev.XDPNone && same(row.Settings.Before, row.Settings.After)
	return nil
}

// served opens the leased queue by way of the agent's socket, and uses it.
func (t *tester) served(n *nic, row *report.Row) (err error) {
	server := handoff.NewServer(t.leases, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), burstTime)
		defer cancel()
		err = errors.Join(err, server.Close(ctx))
	}()
	if err := os.MkdirAll(allocationDir, 0o755); err != nil {
		return err
	}
	a := handoff.Allocation{ID: filepath.Base(allocationDir), Dir: allocationDir, Pool: "test", Devices: []string{deviceID(n, testQueue)}}
	if err := server.Serve(a); err != nil {
		return err
	}
	var c *client.Client
	err = t.pod.Do(func() (err error) {
		c, err = client.Connect(context.Background(), allocationDir)
		return err
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	set, err := c.OpenAll(client.AllConfig{
		FramesPerQueue: queueFrames, FrameSize: xsk.MinFrameSize, ZeroCopy: xsk.ZeroCopyRequire,
		Open: client.OpenConfig{Rings: sizes},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, set.Close()) }()
	if err := t.settle(n); err != nil {
		return err
	}
	if err := t.leases.Retune(); err != nil {
		return err
	}
	return t.use(n, row, set)
}

// use sends and receives on a queue that was handed out, and asks for its status as things change.
func (t *tester) use(n *nic, row *report.Row, set *client.Set) error {
	opened := set.Queues[0]
	q := &queue{number: opened.Device.Queue, tag: t.tag}
	q.Name, q.Socket, q.Rings, q.UMEM, q.Frames = deviceID(n, q.number), opened.Socket, opened.Rings, opened.UMEM, set.Frames[0]
	q.KickTX, q.Handle, q.Generate = opened.Kick, q.take, q.generate
	r, err := newRunner(&sockets{queues: []*queue{q}})
	if err != nil {
		return err
	}
	row.Bound, row.TX.Kick = "copy", "socket"
	if opened.Mode.ZeroCopy {
		row.Bound = "zero-copy"
	}
	if opened.Kick != nil {
		row.TX.Kick = "second socket"
	}
	row.NAPI.Separate, row.NAPI.Socket = opened.Mode.SeparateNAPI, opened.Mode.NAPI
	row.NAPI.Known = row.NAPI.Socket != 0
	h := &report.Handoff{}
	row.Handoff = h
	ask := func(what *report.BusyPoll) error {
		time.Sleep(handoff.LookTime) // what the agent saw before is not told again
		s, err := opened.BusyPolling()
		what.Accepted, what.Active, what.Reason = opened.Mode.BusyPoll, s.Active, s.Reason
		return err
	}
	row.BusyPoll = &report.BusyPoll{}
	if err := ask(row.BusyPoll); err != nil {
		return err
	}
	q.SetBusyPolling(row.BusyPoll.Active)
	receive := func() (uint64, error) {
		if err := t.start(n); err != nil {
			return 0, err
		}
		defer t.stop(n)
		before := q.received
		err := r.rounds(firstTime, func() bool { return q.received > before })
		return q.received - before, err
	}
	if row.RX.Received, err = receive(); err != nil {
		return err
	}
	row.RX.EveryQueue = row.RX.Received > 0
	if err := r.quietBursts(mode{}, row); err != nil {
		return err
	}
	// What was true when it was opened need not be true later.
	if err := errors.Join(busypoll.Disable(q.Socket.FD()), ask(&h.TurnedOff)); err != nil {
		return err
	}
	options := busypoll.Options{Budget: busypoll.DefaultBudget, Timeout: busypoll.DefaultTimeout}
	if err := errors.Join(busypoll.Enable(q.Socket.FD(), options), testutil.SetDown(n.device), ask(&h.Down)); err != nil {
		return err
	}
	if err := errors.Join(testutil.SetUp(n.device), t.settle(n), t.leases.Retune(), ask(&h.UpAgain)); err != nil {
		return err
	}
	q.SetBusyPolling(h.UpAgain.Active)
	time.Sleep(100 * time.Millisecond)
	h.ReceivedAgain, err = receive()
	return err
}
