package client_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/afxdp-project/afxdp/internal/handoff/handofftest"
	"github.com/afxdp-project/afxdp/internal/wire"
	"github.com/afxdp-project/afxdp/pkg/busypoll"
	"github.com/afxdp-project/afxdp/pkg/client"
	"github.com/afxdp-project/afxdp/pkg/xsk"
)

// A pod can turn the socket's options off: the status is that of the moment, also while the agent is away.
func TestStatusOfBusyPollingIsReadWhenAsked(t *testing.T) {
	n := handofftest.New(t)
	p := n.NewPod("a")
	settings := handofftest.DefaultSettings
	settings.BusyPollBudget, settings.BusyPollTimeout = busypoll.DefaultBudget, busypoll.DefaultTimeout
	settings.DeferHardIRQs, settings.GROFlushTimeout = 2, 200*time.Microsecond
	p.Add(settings, 0)
	path := n.Serve("x", 0)
	var c *client.Client
	err := p.Netns.Do(func() (err error) {
		c, err = client.Connect(context.Background(), path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	set, err := c.OpenAll(client.AllConfig{FramesPerQueue: 64})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	defer func() { _ = set.Close() }()
	q := set.Queues[0]
	want := func(when, reason string) {
		t.Helper()
		if s, err := q.BusyPolling(); err != nil || s.Active || !strings.Contains(s.Reason, reason) {
			t.Errorf("%s: %+v, %v; want %q", when, s, err, reason)
		}
	}
	want("opened", "the driver links this queue to no NAPI")
	if err := busypoll.Disable(q.Socket.FD()); err != nil {
		t.Fatal(err)
	}
	want("turned off", "busy polling is off on the socket")
	err = busypoll.Enable(q.Socket.FD(), busypoll.Options{Budget: 64, Timeout: busypoll.DefaultTimeout})
	if err != nil {
		t.Fatal(err)
	}
	want("turned on again", "the driver links this queue to no NAPI")

	n.Stop()
	within(t, "the client to notice that the agent is gone", func() bool {
		_, err := q.BusyPolling()
		return err != nil
	})
	if err := busypoll.Disable(q.Socket.FD()); err != nil {
		t.Fatal(err)
	}
	s, err := q.BusyPolling()
	if err == nil || s.Active || !strings.Contains(s.Reason, "busy polling is off on the socket") {
		t.Errorf("without the agent: %+v, %v", s, err)
	}
	n.Start() // its end is in New
}

// The queue's side is the agent's word of the moment, and not that of when the queue was opened.
func TestStatusFollowsTheQueuesNAPI(t *testing.T) {
	socket, err := xsk.NewSocket()
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	umem, err := xsk.NewUMEM(xsk.UMEMConfig{Frames: 64})
	if err != nil {
		t.Fatal(err)
	}
	defer umem.Close()
	n := handofftest.New(t)
	sizes := xsk.RingSizes{Fill: 64, Completion: 64, RX: 64, TX: 64}
	for _, err := range []error{
		socket.RegisterUMEM(umem.Bytes(), umem.Config), socket.SetRings(sizes),
		socket.Bind(xsk.BindConfig{Ifindex: n.Link.Index, Mode: xsk.ZeroCopyOff}),
		busypoll.Enable(socket.FD(), busypoll.Options{Budget: 64, Timeout: busypoll.DefaultTimeout}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	var napi atomic.Uint32 // of the queue
	opened := &wire.Opened{Socket: wire.Socket{
		Fill: 64, Completion: 64, RX: 64, TX: 64, QueueNAPI: 71, Flags: wire.SocketNAPIKnown | wire.SocketBusyPoll,
	}}
	fd := socket.FD()
	path := fakeAgent(t, func(c *wire.Conn) {
		answer(c, func(r wire.Received) {
			switch r.Message.(type) {
			case *wire.UMEM:
				_ = c.Send(r.ID, &wire.UMEMOK{}, -1, time.Second)
			case *wire.Open:
				_ = c.Send(r.ID, opened, fd, time.Second)
			case *wire.Tuning:
				_ = c.Send(r.ID, &wire.Tuned{Flags: wire.SocketNAPIKnown, QueueNAPI: napi.Load()}, -1, time.Second)
			case *wire.Close:
				_ = c.Send(r.ID, &wire.Closed{}, -1, time.Second)
			}
		})
	})
	c, err := client.Connect(context.Background(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	own, err := c.Register(client.UMEMConfig{UMEMConfig: xsk.UMEMConfig{Frames: 64}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = own.Close() }()
	q, err := c.Open(0, own, client.OpenConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = q.Close() }()
	for now, reason := range map[uint32]string{72: "the queue has NAPI 72 but the socket", 0: "links this queue to no NAPI"} {
		napi.Store(now)
		if s, err := q.BusyPolling(); err != nil || s.Active || !strings.Contains(s.Reason, reason) {
			t.Errorf("NAPI %d: %+v, %v; want %q", now, s, err, reason)
		}
	}
	if *q.Mode.QueueNAPI != 71 {
		t.Errorf("what was negotiated has changed: %+v", q.Mode)
	}
}
