package lease

import (
	"errors"

	"github.com/afxdp-project/afxdp/pkg/xsk"
)

// Observation is how leases and their sockets stand at one moment.
type Observation struct {
	Leases []Lease // sorted by device
	// Sockets are those that are open, by device, as descriptors of their own.
	Sockets map[string]*xsk.Socket
	// Unclaimed are the packets that found no socket, by the name that the NIC had when it was leased, and by queue, of
	// NICs with leases that count them.
	Unclaimed map[string][]uint64
}

// Observe looks at all leases. It asks nothing of a NIC, so that it is quick whatever its driver does; what is asked of
// the sockets is asked without the Manager's lock. The caller closes the observation.
func (m *Manager) Observe() Observation {
	m.mu.Lock()
	defer m.mu.Unlock()
	o := Observation{Sockets: make(map[string]*xsk.Socket), Unclaimed: make(map[string][]uint64)}
	for _, l := range m.sorted() {
		o.Leases = append(o.Leases, l.copy())
		if l.open == nil {
			continue
		}
		if s, err := l.open.socket.Dup(); err == nil { // out of descriptors: its counters are left out this time
			o.Sockets[l.doc.Device] = s
		}
	}
	for _, n := range m.nics {
		if n.attachment == nil || !n.doc.CountUnclaimed {
			continue
		}
		counts := make([]uint64, n.attachment.Queues())
		for q := range counts {
			counts[q], _ = n.attachment.Unclaimed(q)
		}
		o.Unclaimed[n.doc.Identity.Name] = counts
	}
	return o
}

// Close closes the descriptors.
func (o Observation) Close() error {
	var errs []error
	for _, s := range o.Sockets {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}
