package agent

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"

	"github.com/afxdp-project/afxdp/internal/conflist"
	"github.com/afxdp-project/afxdp/internal/lease"
	"github.com/afxdp-project/afxdp/pkg/xsk"
)

// Status is the agent's view of the node, as /statusz serves it.
type Status struct {
	Version string         `json:"version"`
	Devices []DeviceStatus `json:"devices"`
	// CNI is how the plugin stands in the node's network configuration, where the agent is to keep it there.
	CNI *conflist.Status `json:"cni,omitempty"`
	// Problems are what does not fit between configuration and node.
	Problems []string `json:"problems,omitempty"`
	// Unclaimed are the packets that found no socket, by NIC and queue, of NICs with leases whose pool counts them.
	Unclaimed map[string][]uint64 `json:"unclaimed,omitempty"`
}

// DeviceStatus is one device.
type DeviceStatus struct {
	ID       string       `json:"id"`
	Pool     string       `json:"pool"`
	NUMANode int          `json:"numaNode"` // -1: unknown
	Healthy  bool         `json:"healthy"`
	Reason   string       `json:"reason,omitempty"` // why not
	Cause    string       `json:"cause,omitempty"`  // the reason in one word, as the metrics have it
	Lease    *LeaseStatus `json:"lease,omitempty"`
}

// LeaseStatus is the lease of a device.
type LeaseStatus struct {
	// Pool is the one that had the device when it was leased.
	Pool  string      `json:"pool"`
	Pod   lease.Pod   `json:"pod"`
	State lease.State `json:"state"`
	// Open: a connection has the device open. Only then the counters of its socket can be read.
	Open     bool          `json:"open"`
	ZeroCopy bool          `json:"zeroCopy"` // of the socket that was last made
	Drops    *DropCounters `json:"drops,omitempty"`
	// Unmet is what the pool asks for that the lease does not have, in words.
	Unmet string `json:"unmet,omitempty"`
}

// DropCounters are a socket's losses by cause, under the kernel's names (struct xdp_statistics).
type DropCounters struct {
	RXDropped      uint64 `json:"rx_dropped"`
	RXRingFull     uint64 `json:"rx_ring_full"`
	FillRingEmpty  uint64 `json:"rx_fill_ring_empty_descs"`
	RXInvalidDescs uint64 `json:"rx_invalid_descs"`
	TXInvalidDescs uint64 `json:"tx_invalid_descs"`
}

func (a *Agent) status() Status {
	s := Status{Version: a.config.Version, Unclaimed: a.leases.Unclaimed(), Devices: []DeviceStatus{}}
	if a.chain != nil {
		chained := a.chain.Status()
		s.CNI = &chained
	}
	drops, unmet := a.leases.Statistics(), a.leases.Unmet()
	devices, problems := a.inventory.last()
	s.Problems = problems
	leases := make(map[string]*LeaseStatus)
	for _, l := range a.leases.Leases() {
		st, open := drops[l.Device]
		leases[l.Device] = &LeaseStatus{
			Pool: l.Settings.Pool, Pod: l.Pod, State: l.State, Open: open, ZeroCopy: l.Socket != nil && l.Socket.ZeroCopy, Unmet: unmet[l.Device],
		}
		if open {
			leases[l.Device].Drops = dropCounters(st)
		}
	}
	for _, pool := range slices.Sorted(maps.Keys(devices)) {
		for _, d := range devices[pool] {
			s.Devices = append(s.Devices, DeviceStatus{
				ID: d.ID, Pool: pool, NUMANode: d.NUMANode, Healthy: d.Healthy, Reason: d.Reason, Cause: d.Cause, Lease: leases[d.ID],
			})
			delete(leases, d.ID)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(leases)) {
		s.Devices = append(s.Devices, DeviceStatus{ID: id, Pool: leases[id].Pool, NUMANode: -1, Reason: "no pool has it any more", Lease: leases[id]})
	}
	return s
}

func dropCounters(s xsk.Statistics) *DropCounters {
	return &DropCounters{s.RXDropped, s.RXRingFull, s.FillRingEmpty, s.RXInvalid, s.TXInvalid}
}

func (a *Agent) serveStatus(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	_ = e.Encode(a.status())
}
