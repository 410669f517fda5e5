package metrics

import (
	"sync"
	"time"

	"github.com/afxdp-project/afxdp/pkg/xsk"
)

// Snapshot is the node at one moment.
type Snapshot struct {
	Taken   time.Time // zero: never
	Pools   []string  // that are configured
	Devices []Device
	Leases  []Lease
	// Allocations are the allocations that are served, by pool.
	Allocations map[string]int
	Sockets     []Socket // that are open, one a queue
	Unclaimed   []Unclaimed
	Chained     *bool // the network configuration calls the CNI plugin; nil: the agent is not to see to that
}

// Device is one device's health.
type Device struct {
	Pool  string
	Cause string // why it is not healthy, in one word; empty: it is
}

// Lease is one device's lease.
type Lease struct{ Pool, State string }

// Socket is the AF_XDP socket of a leased queue.
type Socket struct {
	Pool, Netdev   string
	Queue          int
	Namespace, Pod string
	Statistics     *xsk.Statistics // nil: could not be read
	BusyPolling    bool            // is active now
	ZeroCopy       bool
	Frames         uint32  // of its UMEM; 0: not known
	RXPackets      *uint64 // received by the queue, as its driver counts; nil: it does not
}

// Unclaimed is how many packets of a queue found no socket.
type Unclaimed struct {
	Netdev  string
	Queue   int
	Packets uint64
}

// observer takes snapshots, one at a time. Taking one may take as long as the slowest NIC; waiting for one does not.
type observer struct {
	look     func() Snapshot
	patience time.Duration

	mu     sync.Mutex
	under  chan struct{} // closed when the look under way is done; nil: none is
	last   Snapshot
	closed bool
}

// latest returns a snapshot that is no older than the call, or the last one there is when that takes too long.
func (o *observer) latest() Snapshot {
	o.mu.Lock()
	if o.under == nil && !o.closed {
		done := make(chan struct{})
		o.under = done
		go func() {
			defer close(done)
			s := o.look()
			o.mu.Lock()
			defer o.mu.Unlock()
			o.last, o.under = s, nil
		}()
	}
	under := o.under
	o.mu.Unlock()
	if under != nil {
		timer := time.NewTimer(o.patience)
		defer timer.Stop()
		select {
		case <-under:
		case <-timer.C:
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.last
}

// close has no more looks begin, and waits for the one under way, as long as for a scrape.
func (o *observer) close() {
	o.mu.Lock()
	o.closed = true
	under := o.under
	o.mu.Unlock()
	if under == nil {
		return
	}
	select {
	case <-under:
	case <-time.After(o.patience):
	}
}
