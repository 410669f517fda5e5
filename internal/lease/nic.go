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
	"github.com/afxdp-project/afxdp/pkg/xsk"
)

// nicFor returns the NIC, which is a new one, not yet in the journal, when it has no lease.
func (m *Manager) nicFor(link netdev.Link, s Settings) *nic {
	id := link.Identity()
	key := nicKey(m.cookie, id)
	if n := m.nics[key]; n != nil {
		return n
	}
	return &nic{key: key, doc: nicDoc{
		Identity: id, NetnsCookie: m.cookie, PinDir: filepath.Join(m.config.PinDir, key), MultiBuffer: s.MultiBuffer,
	}}
}

// find returns the NIC's link as it is now. The error is netdev.ErrNoDevice when it is gone, also if another NIC has its
// index or name by now.
func (m *Manager) find(n *nic) (netdev.Link, error) {
	link, err := m.config.NICs.LinkByIndex(n.doc.Identity.Index)
	if err != nil {
		return netdev.Link{}, err
	}
	if !netdev.Same(link, n.doc.Identity) {
		return netdev.Link{}, fmt.Errorf("%s: %w: another device has its index", n.doc.Identity.Name, netdev.ErrNoDevice)
	}
	return link, nil
}

// attach has our program on the NIC.
func (m *Manager) attach(n *nic, s Settings) error {
	// As it is now: the end of an earlier lease, or another device of the same request, may have changed it.
	link, err := m.find(n)
	if err != nil {
		return err
	}
	if n.attachment != nil {
		return m.verify(n, link)
	}
	if link.XDP.Mode != netdev.XDPNone {
		return foreign(link)
	}
	m.config.Fault("attach")
	a, err := xdpprog.Attach(xdpprog.Config{
		Ifindex: link.Index, Queues: max(link.RxQueues, 1), MultiBuffer: s.MultiBuffer,
		CountUnclaimed: s.CountUnclaimed, AllowGeneric: s.AllowGeneric, PinDir: n.doc.PinDir,
	})
	if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EEXIST) {
		if now, ferr := m.find(n); ferr == nil && now.XDP.Mode != netdev.XDPNone {
			return foreign(now)
		}
	}
	if errors.Is(err, unix.ERANGE) || errors.Is(err, unix.EINVAL) {
		err = fmt.Errorf("%w; the MTU of %s is %d", err, link.Name, link.MTU)
	}
	if err != nil {
		return err
	}
	n.attachment = a
	return nil
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
	return refuse("%s has another XDP program (%s, mode %s); it is not ours to remove: detach it, or take the NIC out of the pool",
		link.Name, strings.Join(programs, ", "), link.XDP.Mode)
}

// verify returns an error unless the NIC shows our program.
func (m *Manager) verify(n *nic, link netdev.Link) error {
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

// detach removes our program and its pins.
func (m *Manager) detach(n *nic) error {
	m.config.Fault("detach")
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
		link, err := m.find(n)
		if err == nil {
			err = m.verify(n, link)
		}
		if err != nil && !errors.Is(err, netdev.ErrNoDevice) {
			problems[n.doc.Identity.Index] = err.Error()
		}
	}
	return problems
}

// Manages reports whether a NIC shows our program for a lease.
func (m *Manager) Manages(link netdev.Link) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.nics[nicKey(m.cookie, link.Identity())]
	return n != nil && m.verify(n, link) == nil
}

// Unclaimed returns the packets that found no socket, by NIC name and queue, of NICs with leases.
func (m *Manager) Unclaimed() map[string][]uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make(map[string][]uint64)
	for _, n := range m.nics {
		if n.attachment == nil {
			continue
		}
		counts := make([]uint64, n.attachment.Queues())
		for q := range counts {
			counts[q], _ = n.attachment.Unclaimed(q)
		}
		all[n.doc.Identity.Name] = counts
	}
	return all
}

// findZeroCopy finds out by one trial bind whether the NIC can do zero-copy, and remembers it.
func (m *Manager) findZeroCopy(n *nic, d DeviceRequest) error {
	if n.doc.ZeroCopy != nil || d.Settings.ZeroCopy == ZeroCopyNever {
		return nil
	}
	m.config.Fault("try zero-copy")
	err := trialBind(xsk.BindConfig{
		Ifindex: d.Link.Index, Queue: uint32(d.Queue), Mode: xsk.ZeroCopyRequire,
		NeedWakeup: d.Settings.NeedWakeup, MultiBuffer: d.Settings.MultiBuffer,
	})
	switch can := err == nil; {
	case errors.Is(err, unix.EBUSY):
		// Not found out. The next ADD, or the open, will tell.
		return nil
	case !can && d.Settings.ZeroCopy == ZeroCopyRequire:
		return refuse("pool %s requires zero-copy, which %s cannot: %v", d.Settings.Pool, d.Link.Name, err)
	default:
		n.doc.ZeroCopy = &can
	}
	return m.writeNIC(n)
}

// isFree reports whether a trial bind shows that the queue of an ended lease is held no more.
func (m *Manager) isFree(l *lease) bool {
	n := m.nics[l.doc.NIC]
	if n == nil {
		n = &nic{key: l.doc.NIC, doc: nicDoc{Identity: l.doc.Identity}}
	}
	link, err := m.find(n)
	if err != nil {
		return errors.Is(err, netdev.ErrNoDevice)
	}
	err = trialBind(xsk.BindConfig{Ifindex: link.Index, Queue: uint32(l.doc.Queue), Mode: xsk.ZeroCopyOff})
	return err == nil || !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ENETDOWN)
}

// trialBind binds a small socket and closes it.
func trialBind(c xsk.BindConfig) (err error) {
	umem, err := xsk.NewUMEM(xsk.UMEMConfig{Frames: 64})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, umem.Close()) }()
	s, err := xsk.NewSocket()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if err := s.RegisterUMEM(umem.Bytes(), umem.Config); err != nil {
		return err
	}
	if err := s.SetRings(xsk.RingSizes{Fill: 64, Completion: 64, RX: 64, TX: 64}); err != nil {
		return err
	}
	return s.Bind(c)
}
