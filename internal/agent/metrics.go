package agent

import (
	"slices"
	"time"

	"github.com/afxdp-project/afxdp/internal/lease"
	"github.com/afxdp-project/afxdp/internal/metrics"
	"github.com/afxdp-project/afxdp/internal/wire"
	"github.com/afxdp-project/afxdp/pkg/busypoll"
	"github.com/afxdp-project/afxdp/pkg/netdev"
	"github.com/afxdp-project/afxdp/pkg/xsk"
)

// opened counts a socket that a pod asked for.
func (a *Agent) opened(pool string, took time.Duration, refused *wire.Error) {
	refusal := ""
	if refused != nil {
		refusal = refused.Code.String()
	}
	a.metrics.Opened(pool, took, refusal)
}

// look takes a snapshot for the metrics. The kernel is asked on a connection of its own and without the lease manager's
// lock: where a NIC is slow, that is the snapshot's trouble alone. So the sockets' descriptors, which hold their queues,
// are there only while nothing is waited for.
func (a *Agent) look() metrics.Snapshot {
	s := metrics.Snapshot{Taken: time.Now(), Pools: a.inventory.pools(), Allocations: a.allocations.count()}
	if a.chain != nil {
		s.Chained = new(a.chain.Status().Chained)
	}
	listed, _ := a.inventory.last()
	for pool, devices := range listed {
		for _, d := range devices {
			s.Devices = append(s.Devices, metrics.Device{Pool: pool, Cause: d.Cause})
		}
	}
	o := a.leases.Observe()
	var sockets []observedSocket
	for _, l := range o.Leases {
		s.Leases = append(s.Leases, metrics.Lease{Pool: l.Settings.Pool, State: string(l.State)})
		if socket := o.Sockets[l.Device]; socket != nil {
			sockets = append(sockets, observeSocket(l, socket))
		}
	}
	_ = o.Close()
	nics := make(map[netdev.Identity]*observedNIC)
	for _, socket := range sockets {
		id := socket.lease.Identity
		if nics[id] == nil {
			nics[id] = observe(a.observer, id)
		}
		s.Sockets = append(s.Sockets, socket.on(nics[id]))
	}
	for nic, counts := range o.Unclaimed {
		for q, n := range counts {
			s.Unclaimed = append(s.Unclaimed, metrics.Unclaimed{Netdev: nic, Queue: q, Packets: n})
		}
	}
	return s
}

// observedSocket is a socket as it was during one look.
type observedSocket struct {
	lease      lease.Lease
	statistics *xsk.Statistics // nil: not known
	busyPoll   *busypoll.State // nil: not known
}

func observeSocket(l lease.Lease, socket *xsk.Socket) observedSocket {
	o := observedSocket{lease: l}
	if st, err := socket.Statistics(); err == nil {
		o.statistics = &st
	}
	if state, err := busypoll.Read(socket.FD()); err == nil {
		o.busyPoll = &state
	}
	return o
}

// on makes metrics of the socket, given its NIC.
func (o observedSocket) on(nic *observedNIC) metrics.Socket {
	l := o.lease
	m := metrics.Socket{
		Pool: l.Settings.Pool, Netdev: l.Identity.Name, Queue: l.Queue, Namespace: l.Pod.Namespace, Pod: l.Pod.Name,
		Statistics: o.statistics, RXPackets: nic.received(l.Queue),
	}
	if l.Socket != nil {
		m.ZeroCopy, m.Frames = l.Socket.ZeroCopy, l.Socket.Frames
	}
	if o.busyPoll != nil {
		facts := nic.facts(l.Queue)
		facts.ZeroCopy = m.ZeroCopy
		m.BusyPolling = busypoll.Assess(*o.busyPoll, facts).Active
	}
	return m
}

// observedNIC is a NIC as the kernel shows it during one look.
type observedNIC struct {
	handle     *netdev.Handle
	index      int            // 0: it is gone
	queues     []netdev.Queue // nil: not known
	statistics []netdev.QueueStatistics
	settings   *busypoll.Deferral // of the whole NIC; nil: not known
}

// observe looks at a NIC. What cannot be found out is left open: it may be gone, and old kernels do not tell all.
func observe(h *netdev.Handle, id netdev.Identity) *observedNIC {
	n := &observedNIC{handle: h}
	if link, err := h.LinkByIndex(id.Index); err != nil || !netdev.Same(link, id) {
		return n
	}
	n.index = id.Index
	n.queues, _ = h.Queues(n.index)
	n.statistics, _ = h.QueueStatistics(n.index)
	if s, err := h.DeviceSettings(n.index); err == nil {
		n.settings = deferral(netdev.NAPISettings{DeferHardIRQs: s.DeferHardIRQs, GROFlushTimeout: s.GROFlushTimeout})
	}
	return n
}

func deferral(s netdev.NAPISettings) *busypoll.Deferral {
	if s.DeferHardIRQs == nil || s.GROFlushTimeout == nil {
		return nil
	}
	return &busypoll.Deferral{HardIRQs: int(*s.DeferHardIRQs), GROFlushTimeout: *s.GROFlushTimeout}
}

// received returns the packets that a queue has received, or nil where its driver does not count them.
func (n *observedNIC) received(queue int) *uint64 {
	i := slices.IndexFunc(n.statistics, func(s netdev.QueueStatistics) bool { return s.Type == netdev.RX && s.Index == queue })
	if i < 0 {
		return nil
	}
	return n.statistics[i].Packets
}

// facts returns what the NIC says of a queue's busy polling.
func (n *observedNIC) facts(queue int) busypoll.Facts {
	f := busypoll.Facts{Deferral: n.settings}
	i := slices.IndexFunc(n.queues, func(q netdev.Queue) bool { return q.Type == netdev.RX && q.Index == queue })
	if i < 0 {
		return f
	}
	id := n.queues[i].NAPI
	f.QueueNAPI = &id
	if id == 0 {
		return f
	}
	if napi, err := n.handle.NAPI(id); err == nil {
		if d := deferral(napi.Settings); d != nil {
			f.Deferral = d // where one NAPI has the settings, those of the whole NIC do not count
		}
	}
	return f
}
