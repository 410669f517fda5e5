package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/afxdp-project/afxdp/pkg/busypoll"
	"github.com/afxdp-project/afxdp/pkg/client"
)

// port is a queue that packets go through.
type port struct {
	device client.Device
	mode   client.Mode
	queue  *busypoll.Queue
	ask    func() (busypoll.Status, error) // whether it busy-polls now
	status busypoll.Status                 // as of the last time that it was asked for
	left   int                             // descriptors that had not come back when the run ended
}

func (p *port) name() string { return fmt.Sprintf("%s-q%d", p.device.Netdev, p.device.Queue) }

// allocation is everything that the pod was given.
type allocation struct {
	client *client.Client
	set    *client.Set
	ports  []*port
}

// open connects to the node agent and opens all queues.
func open(ctx context.Context, o *options) (_ *allocation, err error) {
	if o.path == "" {
		if o.path, err = client.DefaultPath(); err != nil {
			return nil, fmt.Errorf("find the node agent: %w (or name its directory with --path)", err)
		}
	}
	a := &allocation{}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.Close())
		}
	}()
	if a.client, err = client.Connect(ctx, o.path); err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(a.client.Devices(), func(d client.Device) bool { return d.Leased }) {
		return nil, fmt.Errorf("no queue of pool %s is leased to this pod: the CNI plugin has not attached its network", a.client.Pool())
	}
	a.set, err = a.client.OpenAll(client.AllConfig{
		FramesPerQueue: o.frames, FrameSize: o.frameSize, Headroom: o.headroom, ZeroCopy: o.zeroCopy,
		Open: client.OpenConfig{Rings: o.rings, NoBusyPoll: o.noBusyPoll},
	})
	if err != nil {
		return nil, err
	}
	for i, q := range a.set.Queues {
		p := &port{device: q.Device, mode: q.Mode, ask: q.BusyPolling}
		p.queue = &busypoll.Queue{
			Name: p.name(), Socket: q.Socket, Rings: q.Rings, UMEM: q.UMEM, Frames: a.set.Frames[i], KickTX: q.Kick,
		}
		if o.mode == txOnly && p.device.MTU > 0 && o.packetSize > p.device.MTU+ethHeader {
			return nil, fmt.Errorf("--packet-size: %d is more than %s with its MTU of %d sends", o.packetSize, p.device.Netdev, p.device.MTU)
		}
		a.ports = append(a.ports, p)
	}
	return a, nil
}

// Close gives the queues back.
func (a *allocation) Close() error {
	var errs []error
	if a.set != nil {
		errs = append(errs, a.set.Close())
	}
	if a.client != nil {
		errs = append(errs, a.client.Close())
	}
	return errors.Join(errs...)
}

// assess finds out whether the port's socket really busy-polls, and has the loop go by it.
func (p *port) assess() {
	status, err := p.ask()
	if err != nil {
		status.Reason += fmt.Sprintf(" (as the agent last said; %v)", err)
	}
	p.status = status
	p.queue.SetBusyPolling(status.Active)
}
