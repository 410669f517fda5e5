package lease

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/afxdp-project/afxdp/pkg/netdev"
)

// heldGrace is how long the kernel may take to release a queue after the last descriptor is gone (30 to 70 ms were
// measured) before the device is called unhealthy.
const heldGrace = time.Second

// Detach takes an attachment out of all leases that have it. A lease without any is ended. It succeeds on what is gone,
// and never touches a lease that a later ADD made for the same device: that has another sandbox.
func (m *Manager) Detach(a Attachment) error {
	return m.release("the pod's network was taken down", func(other Attachment) bool { return other == a })
}

// CollectGarbage takes the attachments of a network that are not in valid out of all leases.
func (m *Manager) CollectGarbage(network string, valid []Attachment) error {
	return m.release("the container runtime does not know the pod's sandbox any more", func(a Attachment) bool {
		return a.Network == network && !slices.ContainsFunc(valid, func(v Attachment) bool {
			return v.ContainerID == a.ContainerID && v.Ifname == a.Ifname
		})
	})
}

// EndStale ends the leases for which stale gives a reason. The function is called with copies, under the Manager's
// lock.
func (m *Manager) EndStale(stale func(Lease) (reason string, is bool)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var errs []error
	for _, l := range m.sorted() {
		if l.doc.State == StateHeld {
			continue
		}
		if reason, is := stale(l.copy()); is {
			errs = append(errs, m.end(l, reason))
		}
	}
	return errors.Join(errs...)
}

func (m *Manager) release(reason string, drop func(Attachment) bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var errs []error
	for _, l := range m.sorted() {
		if l.doc.State == StateHeld || !slices.ContainsFunc(l.doc.Attachments, drop) {
			continue
		}
		if left := slices.DeleteFunc(slices.Clone(l.doc.Attachments), drop); len(left) > 0 {
			l.doc.Attachments = left
			errs = append(errs, m.writeLease(l))
			continue
		}
		errs = append(errs, m.end(l, reason))
	}
	return errors.Join(errs...)
}

// end ends a lease that is not held. Each step is tried even if an earlier one failed: what can be put back is, also if
// the journal takes no documents any more. On error the lease stays ending, and the next Maintain goes on.
func (m *Manager) end(l *lease, reason string) error {
	l.doc.State = StateEnding
	journalled := m.writeLease(l)
	m.dropOpen(l, reason)
	if n := m.nics[l.doc.NIC]; n != nil {
		if err := m.putBack(n, l); err != nil {
			return fmt.Errorf("end lease of %s: %w", l.doc.Device, errors.Join(journalled, err))
		}
	}
	if l.doc.Socket == nil && l.doc.Predecessor == nil {
		return m.removeLease(l)
	}
	// The pod's processes may hold the queue still, and the kernel lets go of it some time after the last one.
	l.doc.State = StateHeld
	l.heldSince = time.Now()
	return m.writeLease(l)
}

// putBack undoes what was changed for a lease, and what was changed for its NIC when no other lease is left there.
func (m *Manager) putBack(n *nic, l *lease) error {
	var errs []error
	if l.doc.Socket != nil {
		errs = append(errs, m.takeOut(n, l.doc.Queue))
	}
	// A driver may be resetting the queue, since the pod has just closed its socket.
	errs = append(errs, m.tunePatiently(n))
	if !m.inUse(n) {
		errs = append(errs, m.retire(n))
	}
	return errors.Join(errs...)
}

// inUse reports whether a lease needs the NIC changed.
func (m *Manager) inUse(n *nic) bool {
	for _, l := range m.leases {
		if l.needs(n) {
			return true
		}
	}
	return false
}

// needs reports whether a lease needs a NIC changed.
func (l *lease) needs(n *nic) bool {
	return l.doc.NIC == n.key && (l.doc.State == StateActivating || l.doc.State == StateActive)
}

// retire takes our program off a NIC that no lease needs, and forgets the NIC unless settings are left to be put back.
func (m *Manager) retire(n *nic) error {
	if err := m.detach(n); err != nil {
		return err
	}
	if len(n.doc.Knobs) == 0 {
		return m.removeNIC(n)
	}
	if n.dirty {
		return m.writeNIC(n)
	}
	return nil
}

// Held returns for each device that is still held after its lease's end, and longer than the kernel needs to release
// it, a reason.
func (m *Manager) Held() map[string]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	held := make(map[string]string)
	for id, l := range m.leases {
		if l.doc.State == StateHeld && time.Since(l.heldSince) > heldGrace {
			held[id] = fmt.Sprintf("the queue is still held by a process of pod %s, whose lease has ended", l.doc.holder())
		}
	}
	return held
}

// Maintain goes on with leases whose end failed, and tries by a trial bind whether held queues are free by now. It
// reports whether there is anything left to do.
func (m *Manager) Maintain() (pending bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var errs []error
	for _, l := range m.sorted() {
		switch l.doc.State {
		case StateEnding:
			errs = append(errs, m.end(l, "its end was interrupted"))
		case StateHeld:
			if m.isFree(l) {
				errs = append(errs, m.removeLease(l))
			}
		}
	}
	for _, l := range m.leases {
		pending = pending || l.doc.State == StateEnding || l.doc.State == StateHeld
	}
	return pending, errors.Join(errs...)
}

// isFree reports whether a trial bind shows that the queue of an ended lease is held no more.
func (m *Manager) isFree(l *lease) bool {
	link, err := m.find(l.doc.Identity)
	if err != nil {
		return errors.Is(err, netdev.ErrNoDevice)
	}
	return queueIsFree(link.Index, l.doc.Queue)
}

func (m *Manager) sorted() []*lease {
	all := make([]*lease, 0, len(m.leases))
	for _, l := range m.leases {
		all = append(all, l)
	}
	slices.SortFunc(all, func(a, b *lease) int { return strings.Compare(a.doc.Device, b.doc.Device) })
	return all
}
