package lease

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/xdpprog"
	"github.com/afxdp-project/afxdp/pkg/netdev"
)

// nicOf returns the NIC that a link is, or nil when it is not in the journal.
func (m *Manager) nicOf(link netdev.Link) *nic {
	for _, n := range m.nics {
		if netdev.Same(link, n.doc.Identity) {
			return n
		}
	}
	return nil
}

// nicFor returns the NIC that a link is, for a lease with the given settings. A new one is not in the journal yet.
func (m *Manager) nicFor(link netdev.Link, s Settings) (*nic, error) {
	n := m.nicOf(link)
	if n != nil && m.inUse(n) {
		return n, nil
	}
	if n != nil {
		// It is still here because its last lease's end failed, or because its settings could not be put back while it
		// was down.
		if err := m.retire(n); err != nil {
			return nil, err
		}
	}
	if n = m.nicOf(link); n == nil {
		n = m.newNIC(link)
	}
	n.doc.MultiBuffer, n.doc.CountUnclaimed = s.MultiBuffer, s.CountUnclaimed
	return n, nil
}

func (m *Manager) newNIC(link netdev.Link) *nic {
	id := link.Identity()
	key := fmt.Sprintf("%s%d", m.keyPrefix(), id.Index)
	if m.nics[key] != nil {
		// Of a NIC that is gone and had the same index.
		key = fmt.Sprintf("%s-%d", key, m.nextEpoch())
	}
	return &nic{key: key, unpinned: make(map[knobScope]error), doc: nicDoc{Identity: id, NetnsCookie: m.cookie, PinDir: filepath.Join(m.config.PinDir, key)}}
}

// keyPrefix begins the keys of all NICs of this network namespace.
func (m *Manager) keyPrefix() string { return fmt.Sprintf("%d-", m.cookie) }

// find returns a NIC's link as it is now. The error is netdev.ErrNoDevice when it is gone, also if another NIC has its
// index by now.
func (m *Manager) find(id netdev.Identity) (netdev.Link, error) {
	link, err := m.config.NICs.LinkByIndex(id.Index)
	if err != nil {
		return netdev.Link{}, fmt.Errorf("find %s: %w", id.Name, err)
	}
	if !netdev.Same(link, id) {
		return netdev.Link{}, fmt.Errorf("find %s: %w: another device has its index", id.Name, netdev.ErrNoDevice)
	}
	return link, nil
}

// inForce returns the NIC of a lease, or an error when it does not run our program.
func (m *Manager) inForce(l *lease) (*nic, netdev.Link, error) {
	link, err := m.find(l.doc.Identity)
	if err != nil {
		return nil, link, fmt.Errorf("device %s: %w (the NIC that was leased is gone)", l.doc.Device, err)
	}
	n := m.nics[l.doc.NIC]
	return n, link, verify(n, link)
}

// attach has our program on the NIC.
func (m *Manager) attach(n *nic, link netdev.Link, s Settings) error {
	if n.attachment != nil {
		return verify(n, link)
	}
	if link.XDP.Mode != netdev.XDPNone {
		return foreign(link)
	}
	a, err := xdpprog.Attach(xdpprog.Config{
		Ifindex: link.Index, Queues: max(link.RxQueues, 1), MultiBuffer: n.doc.MultiBuffer,
		CountUnclaimed: n.doc.CountUnclaimed, AllowGeneric: s.AllowGeneric, PinDir: n.doc.PinDir, Fault: m.config.Fault,
	})
	switch {
	case err == nil:
		n.attachment = a
		return nil
	case errors.Is(err, xdpprog.ErrOccupied):
		// Attached by someone since we looked.
		if now, ferr := m.find(n.doc.Identity); ferr == nil && now.XDP.Mode != netdev.XDPNone {
			return foreign(now)
		}
	case errors.Is(err, unix.ERANGE), errors.Is(err, unix.EINVAL):
		return refuse("%v; the MTU of %s is %d", err, link.Name, link.MTU)
	case errors.Is(err, unix.EOPNOTSUPP):
		return refuse("%v; the NIC is %s", err, link.Name)
	}
	return err
}

// shows reports whether a program is the one that a device runs natively or in generic mode.
func shows(link netdev.Link, program uint32) bool {
	return program != 0 && (link.XDP.NativeProgID == program || link.XDP.GenericProgID == program)
}

func foreign(link netdev.Link) error {
	var programs []string
	for _, id := range []uint32{link.XDP.NativeProgID, link.XDP.GenericProgID, link.XDP.OffloadProgID} {
		if id == 0 {
			continue
		}
		p := fmt.Sprintf("id %d", id)
		if name := xdpprog.ProgramName(id); name != "" {
			p += " " + name
		}
		programs = append(programs, p)
	}
	return refuse("%s has another XDP program (%s, mode %s); it is not ours to remove: detach it, or take the NIC out of "+
		"the pool", link.Name, strings.Join(programs, ", "), link.XDP.Mode)
}

// verify returns an error unless the NIC shows our program.
func verify(n *nic, link netdev.Link) error {
	switch {
	case n == nil || n.attachment == nil:
		return refuse("our XDP program is not attached to %s", link.Name)
	case shows(link, n.attachment.ProgramID()):
		return nil
	case link.XDP.Mode == netdev.XDPNone:
		return refuse("our XDP program is not on %s any more: someone detached it, or the NIC was moved or reset", link.Name)
	}
	return foreign(link)
}

// takeOut has the packets of a queue go to the stack again.
func (m *Manager) takeOut(n *nic, queue int) error {
	if n.attachment == nil {
		return nil
	}
	if err := m.step("take socket out of XSKMAP"); err != nil {
		return err
	}
	return n.attachment.Remove(queue)
}

// detach removes our program and its pins.
func (m *Manager) detach(n *nic) error {
	if n.attachment == nil {
		return xdpprog.Remove(n.doc.PinDir)
	}
	err := n.attachment.Detach()
	n.attachment = nil
	return err
}

// reopen takes up the attachment that an earlier agent has pinned. Without one, it clears away what is left of it.
func (m *Manager) reopen(n *nic) error {
	a, err := xdpprog.Open(n.doc.PinDir)
	if errors.Is(err, fs.ErrNotExist) {
		return xdpprog.Remove(n.doc.PinDir)
	}
	if err != nil {
		return err
	}
	n.attachment = a
	return nil
}

// Problems returns for each NIC, by ifindex, what keeps its leases from working.
func (m *Manager) Problems() map[int]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	problems := make(map[int]string)
	for _, n := range m.nics {
		if !m.inUse(n) {
			continue
		}
		link, err := m.find(n.doc.Identity)
		if err == nil {
			err = verify(n, link)
		}
		if err != nil && !errors.Is(err, netdev.ErrNoDevice) {
			problems[n.doc.Identity.Index] = err.Error()
		}
	}
	return problems
}

// Manages reports whether a NIC, as its link showed it, ran our program for a lease.
func (m *Manager) Manages(link netdev.Link) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return verify(m.nicOf(link), link) == nil
}

// Unclaimed returns the packets that found no socket, by NIC name and queue, of NICs with leases that count them.
func (m *Manager) Unclaimed() map[string][]uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make(map[string][]uint64)
	for _, n := range m.nics {
		if n.attachment == nil || !n.doc.CountUnclaimed {
			continue
		}
		link, err := m.find(n.doc.Identity)
		if err != nil {
			continue
		}
		counts := make([]uint64, n.attachment.Queues())
		for q := range counts {
			counts[q], _ = n.attachment.Unclaimed(q)
		}
		all[link.Name] = counts
	}
	return all
}
