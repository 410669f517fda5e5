package netdev

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/testutil"
)

// watch starts a watch that ends with the test and must then leave nothing behind.
func watch(t *testing.T, h *Handle) <-chan Event {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	events, err := h.Watch(ctx)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		drained(t, events)
	})
	return events
}

func drained(t *testing.T, events <-chan Event) {
	t.Helper()
	timeout := time.After(10 * time.Second)
	for {
		select {
		case _, ok := <-events:
			if !ok {
				return
			}
		case <-timeout:
			t.Fatal("the channel is still open 10 s after the end of its context")
		}
	}
}

// await reads events until one matches.
func await(t *testing.T, events <-chan Event, what string, match func(e Event) bool) {
	t.Helper()
	var seen []Event
	timeout := time.After(10 * time.Second)
	for {
		select {
		case e, ok := <-events:
			if !ok || e.Kind == Failed {
				t.Fatalf("the watch ended before %s: %v; seen: %v", what, e.Err, seen)
			}
			if match(e) {
				return
			}
			seen = append(seen, e)
		case <-timeout:
			t.Fatalf("no event within 10 s: %s; seen: %v", what, seen)
		}
	}
}

func TestWatchTellsTheLifeOfADevice(t *testing.T) {
	h := open(t)
	lo, err := h.LinkByIndex(1)
	must(t, err)
	events := watch(t, h)
	is := func(kind EventKind, index int, name string) func(e Event) bool {
		return func(e Event) bool { return e.Kind == kind && e.Index == index && e.Name == name }
	}
	// A device that was there before is changed, not added.
	must(t, testutil.SetMTU("lo", 60000))
	await(t, events, "lo is changed", is(LinkChanged, 1, "lo"))
	must(t, testutil.SetMTU("lo", lo.MTU))

	must(t, testutil.AddVeth(testutil.VethPair{Near: "nvnear", Far: "nvfar", Queues: 4}))
	l := byName(t, h, "nvnear")
	await(t, events, "nvnear is added", is(LinkAdded, l.Index, "nvnear"))
	must(t, testutil.Rename("nvnear", "nvrenamed"))
	await(t, events, "nvrenamed has its name", is(LinkChanged, l.Index, "nvrenamed"))
	must(t, testutil.SetDown("nvrenamed"))
	await(t, events, "nvrenamed is down", func(e Event) bool {
		now, err := h.LinkByIndex(l.Index)
		return err == nil && !now.Up && e.Kind == LinkChanged && e.Index == l.Index
	})
	setChannels(t, h, l.Index, 2)
	await(t, events, "its channels are changed", is(QueuesChanged, l.Index, ""))
	must(t, testutil.DelLink("nvrenamed"))
	await(t, events, "it is removed", is(LinkRemoved, l.Index, "nvrenamed"))
}

func TestWatchTellsOfMovesBetweenNetns(t *testing.T) {
	h := open(t)
	l := veth(t, h, 1)
	ns := testutil.NewNetns(t)
	events := watch(t, h)
	must(t, testutil.MoveToNetns("nvnear", ns.FD()))
	await(t, events, "nvnear is gone", func(e Event) bool { return e.Kind == LinkRemoved && e.Index == l.Index })
	here, err := os.Open("/proc/thread-self/ns/net")
	must(t, err)
	defer func() { _ = here.Close() }()
	must(t, ns.Do(func() error { return testutil.MoveToNetns("nvnear", int(here.Fd())) }))
	await(t, events, "nvnear is back", func(e Event) bool { return e.Kind == LinkAdded && e.Name == "nvnear" })
}

func TestWatchTellsThatTheUplinksMayBeOthers(t *testing.T) {
	inNetns(t, func(h *Handle) {
		addPair(t, "up0", "peer0")
		events := watch(t, h)
		for _, args := range [][]string{
			{"addr", "add", "10.0.0.2/24", "dev", "up0"},
			{"route", "add", "default", "via", "10.0.0.1"},
			{"-6", "addr", "add", "2001:db8::2/64", "dev", "up0", "nodad"},
			{"-6", "route", "add", "default", "via", "2001:db8::1"},
			{"nexthop", "add", "id", "1", "via", "10.0.0.1", "dev", "up0"},
			{"route", "del", "default"},
			{"addr", "del", "10.0.0.2/24", "dev", "up0"},
		} {
			quiet(events)
			ip(t, args...)
			await(t, events, fmt.Sprint("ip ", args), func(e Event) bool { return e.Kind == RoutingChanged })
		}
	})
}

// quiet reads events until none comes for a moment.
func quiet(events <-chan Event) {
	for {
		select {
		case <-events:
		case <-time.After(100 * time.Millisecond):
			return
		}
	}
}

func TestADeviceThatLeavesABridgeIsNotRemoved(t *testing.T) {
	inNetns(t, func(h *Handle) {
		addPair(t, "port0", "peer0")
		ip(t, "link", "add", "br0", "type", "bridge")
		ip(t, "link", "set", "port0", "master", "br0")
		l := byName(t, h, "port0")
		events := watch(t, h)
		ip(t, "link", "set", "port0", "nomaster")
		ip(t, "link", "set", "port0", "mtu", "1234")
		await(t, events, "port0 has its MTU", func(e Event) bool {
			if e.Kind == LinkRemoved {
				t.Errorf("reported as removed: %+v", e)
			}
			now, err := h.LinkByIndex(l.Index)
			return err == nil && now.MTU == 1234 && e.Index == l.Index
		})
	})
}

func TestWatchTellsOfXDPFeatures(t *testing.T) {
	h := open(t)
	l := veth(t, h, 1)
	far := byName(t, h, "nvfar")
	events := watch(t, h)
	before, err := h.XDPFeatures(l.Index)
	must(t, err)
	// A veth can be redirected to as soon as its peer runs a program.
	attachXDP(t, far.Index, link.XDPDriverMode)
	await(t, events, "the features of nvnear change", func(e Event) bool {
		return e.Kind == QueuesChanged && e.Index == l.Index
	})
	if after, err := h.XDPFeatures(l.Index); err != nil || before.NDOXmit || !after.NDOXmit {
		t.Errorf("features before %+v and after %+v, %v", before, after, err)
	}
}

func TestAProgramAttachedThroughABPFLinkIsNotAnnounced(t *testing.T) {
	h := open(t)
	l := veth(t, h, 1)
	far := byName(t, h, "nvfar")
	events := watch(t, h)
	quiet(events) // operational states
	for _, flags := range []link.XDPAttachFlags{link.XDPGenericMode, link.XDPDriverMode} {
		attached, id := attachXDP(t, l.Index, flags)
		must(t, attached.Close())
		must(t, testutil.SetMTU("nvfar", 1000+int(flags)))
		await(t, events, "nvfar has its MTU", func(e Event) bool {
			if e.Kind == LinkChanged && e.Index == l.Index {
				t.Errorf("attaching program %d was announced: %+v", id, e)
			}
			return e.Kind == LinkChanged && e.Index == far.Index
		})
	}
}

func TestLostNotificationsAreAResync(t *testing.T) {
	h := open(t)
	l := veth(t, h, 1)
	s := &subscription{protocol: unix.NETLINK_ROUTE, groups: []uint32{unix.RTNLGRP_LINK}, decode: decodeRouteEvent}
	must(t, s.open(h.cookie))
	defer func() { _ = s.nl.Close() }()
	must(t, s.nl.SetReadBuffer(1)) // the kernel's minimum
	for mtu := range 50 {          // more than fit, while nobody reads
		must(t, testutil.SetMTU("nvnear", 1000+mtu))
	}
	ctx, cancel := context.WithCancel(context.Background())
	raw := make(chan Event)
	done := make(chan struct{})
	go func() { defer close(done); s.read(ctx, raw) }()
	defer func() { cancel(); _ = s.nl.Close(); <-done }()
	await(t, raw, "the loss is told", func(e Event) bool { return e.Kind == Resync })
	must(t, testutil.SetMTU("nvnear", 1500))
	await(t, raw, "the watch goes on", func(e Event) bool { return e.Kind == LinkChanged && e.Index == l.Index })
}

func TestWatchInAnotherNetnsIsRefused(t *testing.T) {
	h := open(t)
	inNetns(t, func(*Handle) {
		if events, err := h.Watch(t.Context()); !errors.Is(err, ErrOtherNetns) || events != nil {
			t.Errorf("watch from another namespace: %v, %v; want ErrOtherNetns", events, err)
		}
	})
}

func TestWatchEndsWithItsContextAlthoughNobodyReads(t *testing.T) {
	h := open(t)
	l := veth(t, h, 1)
	before := runtime.NumGoroutine()
	fds := testutil.OpenFDs()
	ctx, cancel := context.WithCancel(context.Background())
	events, err := h.Watch(ctx)
	must(t, err)
	for i := range 10 {
		must(t, testutil.SetMTU("nvnear", 1000+i))
	}
	cancel()
	drained(t, events)
	eventually(t, "the goroutines are gone", func() bool { return runtime.NumGoroutine() <= before })
	if leaked := testutil.LeakedFDs(fds); leaked != nil {
		t.Errorf("left open: %v", leaked)
	}
	if _, err := h.LinkByIndex(l.Index); err != nil {
		t.Errorf("the handle after the end of a watch: %v", err)
	}
}

func TestUnreadEventsAreMerged(t *testing.T) {
	changed := func(i int, name string) Event { return Event{Kind: LinkChanged, Index: i, Name: name} }
	added := func(i int, name string) Event { return Event{Kind: LinkAdded, Index: i, Name: name} }
	removed := func(i int) Event { return Event{Kind: LinkRemoved, Index: i} }
	routing, queues := Event{Kind: RoutingChanged}, Event{Kind: QueuesChanged, Index: 3}
	for name, c := range map[string]struct{ in, want []Event }{
		"changes of one device": {
			[]Event{changed(3, "a"), changed(4, "b"), changed(3, "c")},
			[]Event{changed(3, "c"), changed(4, "b")},
		},
		"added, then changed": {
			[]Event{added(3, "a"), changed(3, "b")},
			[]Event{added(3, "b")},
		},
		"removed in between": {
			[]Event{changed(3, "a"), removed(3), added(3, "b")},
			[]Event{changed(3, "a"), removed(3), added(3, "b")},
		},
		"routing": {
			[]Event{routing, changed(3, "a"), routing},
			[]Event{routing, changed(3, "a")},
		},
		"queues between changes": {
			[]Event{changed(3, "a"), queues, changed(3, "b"), queues},
			[]Event{changed(3, "b"), queues},
		},
		"resync is said once":     {[]Event{{Kind: Resync}, {Kind: Resync}}, []Event{{Kind: Resync}}},
		"a failure is never lost": {[]Event{routing, {Kind: Failed}}, []Event{routing, {Kind: Failed}}},
	} {
		var got []Event
		for _, e := range c.in {
			got = enqueue(got, e)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	var backlog []Event
	for i := range 3 * watchBacklog {
		backlog = enqueue(backlog, removed(i))
		if len(backlog) > watchBacklog {
			t.Fatalf("%d events wait", len(backlog))
		}
	}
	if !slices.Contains(backlog, Event{Kind: Resync}) {
		t.Error("events were dropped without a resync")
	}
}

func TestAFailedWatchSaysWhyAndEnds(t *testing.T) {
	raw, events := make(chan Event), make(chan Event)
	cause := errors.New("cause")
	done := make(chan struct{})
	go func() { defer close(done); merge(t.Context(), raw, events, map[int]bool{}) }()
	raw <- Event{Kind: RoutingChanged}
	raw <- Event{Kind: Failed, Err: cause}
	if e := <-events; e.Kind != RoutingChanged {
		t.Errorf("first %v", e)
	}
	if e := <-events; e.Kind != Failed || !errors.Is(e.Err, cause) {
		t.Errorf("last %v", e)
	}
	<-done
}
