package netdev

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// EventKind says what happened.
type EventKind string

const (
	// LinkAdded: a device was made, or moved into the network namespace.
	LinkAdded EventKind = "link added"
	// LinkChanged: a device's state, name, address, MTU, XDP program or the like is another now.
	LinkChanged EventKind = "link changed"
	// LinkRemoved: a device was removed, or moved out of the network namespace.
	LinkRemoved EventKind = "link removed"
	// QueuesChanged: a device's channels were set (ethtool), or its XDP features are others now.
	QueuesChanged EventKind = "queues changed"
	// RoutingChanged: an address or a route was added or removed: the uplinks may be others.
	RoutingChanged EventKind = "routing changed"
	// Resync: notifications were lost. Look at everything anew.
	Resync EventKind = "resync"
	// Failed: the watch cannot go on, Err says why. It is the last event.
	Failed EventKind = "failed"
)

// Event is a notification. It says where to look, not what is there: by the time that it is read, more may have
// changed.
type Event struct {
	Kind  EventKind
	Index int    // of the device; 0 for RoutingChanged, Resync and Failed
	Name  string // the device's name at the time; "" for QueuesChanged and where Index is 0
	Err   error  // for Failed
}

const (
	// Room for notifications in the kernel, in bytes, as far as net.core.rmem_max allows.
	watchBuffer = 1 << 20
	// More events than this that nobody reads become one Resync.
	watchBacklog = 1024
)

// Watch reports changes of devices, addresses and routes until ctx ends, then closes the channel. Whatever changes
// after it has returned is reported, as far as the kernel tells: it does not when a program is attached or detached
// through a BPF link. Events of one kind for one device that nobody has read yet become one. A slow reader loses
// nothing but detail: it gets a Resync.
//
// It must be called in the handle's network namespace, since its sockets are made on the calling thread;
// [ErrOtherNetns] says that it was not. It outlives the handle.
func (h *Handle) Watch(ctx context.Context) (<-chan Event, error) {
	subs := []*subscription{
		{protocol: unix.NETLINK_ROUTE, decode: decodeRouteEvent, groups: []uint32{
			unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
			unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_NEXTHOP,
		}},
		{protocol: unix.NETLINK_GENERIC, decode: h.decodeQueueEvent},
	}
	for _, g := range []struct {
		family family
		name   string
	}{{h.ethtool, "monitor"}, {h.netdev, "mgmt"}} {
		if id, ok := g.family.group(g.name); ok {
			subs[1].groups = append(subs[1].groups, id)
		}
	}
	closeAll := func() {
		for _, s := range subs {
			if s.nl != nil {
				_ = s.nl.Close()
			}
		}
	}
	for _, s := range subs {
		if err := s.open(h.cookie); err != nil {
			closeAll()
			return nil, fmt.Errorf("watch network devices: %w", err)
		}
	}
	// Asked for after the subscription, so that no device slips through in between.
	known, err := h.knownLinks()
	if err != nil {
		closeAll()
		return nil, fmt.Errorf("watch network devices: %w", err)
	}

	ctx, cancel := context.WithCancel(ctx)
	raw := make(chan Event)
	done := make(chan struct{}, len(subs))
	for _, s := range subs {
		go func() {
			s.read(ctx, raw)
			done <- struct{}{}
		}()
	}
	events := make(chan Event)
	go func() {
		merge(ctx, raw, events, known)
		cancel()
		closeAll() // ends the reads
		for range subs {
			<-done
		}
		close(events)
	}()
	return events, nil
}

func (h *Handle) knownLinks() (map[int]bool, error) {
	links, err := h.rawLinks()
	if err != nil {
		return nil, err
	}
	known := make(map[int]bool, len(links))
	for _, l := range links {
		known[l.Index] = true
	}
	return known, nil
}

// subscription is a socket that multicast groups send to.
type subscription struct {
	protocol int
	groups   []uint32
	decode   func(m netlink.Message) (Event, bool)
	nl       *netlink.Conn
}

func (s *subscription) open(cookie uint64) error {
	nl, err := netlink.Dial(s.protocol, &netlink.Config{Strict: true})
	if err != nil {
		return err
	}
	s.nl = nl
	raw, err := nl.SyscallConn()
	if err != nil {
		return err
	}
	var here uint64
	var cookieErr error
	if err := raw.Control(func(fd uintptr) { here, cookieErr = CookieOfSocket(int(fd)) }); err != nil {
		return err
	}
	if cookieErr != nil {
		return cookieErr
	}
	if here != cookie {
		return fmt.Errorf("%w: the calling thread's has the cookie %d and the handle's %d", ErrOtherNetns, here, cookie)
	}
	_ = nl.SetReadBuffer(watchBuffer) // with less room there are more Resyncs, no worse
	for _, g := range s.groups {
		if err := nl.JoinGroup(g); err != nil {
			return fmt.Errorf("join multicast group %d: %w", g, err)
		}
	}
	return nil
}

// read passes on what the groups send until ctx ends or the socket is closed.
func (s *subscription) read(ctx context.Context, raw chan<- Event) {
	send := func(e Event) bool {
		select {
		case raw <- e:
			return true
		case <-ctx.Done():
			return false
		}
	}
	for {
		msgs, err := s.nl.Receive()
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, unix.ENOBUFS):
			if !send(Event{Kind: Resync}) {
				return
			}
			continue
		case err != nil:
			send(Event{Kind: Failed, Err: fmt.Errorf("receive notifications: %w", err)})
			return
		}
		for _, m := range msgs {
			if e, ok := s.decode(m); ok && !send(e) {
				return
			}
		}
	}
}

// merge passes events on to a reader who takes his time. It returns when ctx ends or after the last event.
func merge(ctx context.Context, raw <-chan Event, events chan<- Event, known map[int]bool) {
	var pending []Event
	var last bool
	for !last || len(pending) > 0 {
		in, out := raw, events
		var next Event
		if len(pending) > 0 {
			next = pending[0]
		} else {
			out = nil
		}
		if last {
			in = nil
		}
		select {
		case <-ctx.Done():
			return
		case out <- next:
			pending = pending[1:]
		case e := <-in:
			last = e.Kind == Failed
			pending = enqueue(pending, name(e, known))
		}
	}
}

// name tells a device that was added from one that changed: the kernel's message is the same.
func name(e Event, known map[int]bool) Event {
	switch e.Kind {
	case LinkChanged:
		if !known[e.Index] {
			e.Kind = LinkAdded
		}
		known[e.Index] = true
	case LinkRemoved:
		delete(known, e.Index)
	}
	return e
}

// enqueue adds an event to those that nobody has read yet. One that says the same as a later one goes; the order in
// which a device was added, changed and removed stays.
func enqueue(pending []Event, e Event) []Event {
	switch e.Kind {
	case RoutingChanged, Resync, QueuesChanged:
		if slices.ContainsFunc(pending, func(p Event) bool { return p.Kind == e.Kind && p.Index == e.Index }) {
			return pending
		}
	case LinkChanged:
		for i := len(pending) - 1; i >= 0; i-- {
			if p := &pending[i]; p.Index == e.Index && p.Kind != QueuesChanged {
				if p.Kind == LinkChanged || p.Kind == LinkAdded {
					p.Name = e.Name
					return pending
				}
				break
			}
		}
	}
	if len(pending) >= watchBacklog && e.Kind != Failed {
		return []Event{{Kind: Resync}}
	}
	return append(pending, e)
}

func decodeRouteEvent(m netlink.Message) (Event, bool) {
	switch m.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		// A bridge reports its ports in the same group and with the same types, as another family: the device that
		// leaves a bridge is not removed.
		if len(m.Data) == 0 || m.Data[0] != unix.AF_UNSPEC {
			return Event{}, false
		}
		l, err := decodeLink(m.Data)
		if err != nil {
			return Event{Kind: Resync}, true
		}
		kind := LinkChanged
		if m.Header.Type == unix.RTM_DELLINK {
			kind = LinkRemoved
		}
		return Event{Kind: kind, Index: l.Index, Name: l.Name}, true
	case unix.RTM_NEWADDR, unix.RTM_DELADDR, unix.RTM_NEWROUTE, unix.RTM_DELROUTE,
		unix.RTM_NEWNEXTHOP, unix.RTM_DELNEXTHOP:
		return Event{Kind: RoutingChanged}, true
	}
	return Event{}, false
}

func (h *Handle) decodeQueueEvent(m netlink.Message) (Event, bool) {
	var g genetlink.Message
	if g.UnmarshalBinary(m.Data) != nil {
		return Event{}, false
	}
	index := 0
	var err error
	switch family := uint16(m.Header.Type); {
	case family == h.ethtool.id && g.Header.Command == unix.ETHTOOL_MSG_CHANNELS_NTF:
		err = attributes(g.Data, func(ad *netlink.AttributeDecoder) {
			if ad.Type() == unix.ETHTOOL_A_CHANNELS_HEADER {
				nested(ad, func(ad *netlink.AttributeDecoder) {
					if ad.Type() == unix.ETHTOOL_A_HEADER_DEV_INDEX {
						index = int(ad.Uint32())
					}
				})
			}
		})
	case family == h.netdev.id && g.Header.Command == netdevCmdDevChangeNtf:
		err = attributes(g.Data, func(ad *netlink.AttributeDecoder) {
			if ad.Type() == netdevDevIndex {
				index = int(ad.Uint32())
			}
		})
	}
	return Event{Kind: QueuesChanged, Index: index}, err == nil && index != 0
}
