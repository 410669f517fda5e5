package lease

import (
	"errors"
	"fmt"

	"github.com/afxdp-project/afxdp/pkg/netdev"
	"github.com/afxdp-project/afxdp/pkg/xsk"
)

// Grant is the permission to make the socket of a device.
type Grant struct {
	Device string
	Queue  int
	Epoch  uint64
	// NetnsCookie is that of the pod, to which all sockets on one UMEM must belong.
	NetnsCookie uint64
	Link        netdev.Link
	Settings    Settings
	// ZeroCopy is what the NIC was found able to do.
	ZeroCopy bool
	Tuning   Tuning
}

// ErrNotLeased is what errors.Is finds when a device is not leased to the network namespace that asks.
var ErrNotLeased = errors.New("not leased")

// ErrBusy is what errors.Is finds when another connection has a device open.
var ErrBusy = errors.New("already open")

// ErrNotYours is what errors.Is finds when a socket is not the one that was made for the lease.
var ErrNotYours = errors.New("not the socket of this lease")

// leaseOf returns the active lease of a device, if it is the asking network namespace's.
func (m *Manager) leaseOf(device string, cookie uint64) (*lease, error) {
	l := m.leases[device]
	if l == nil || l.doc.State != StateActive || l.doc.NetnsCookie != cookie {
		return nil, fmt.Errorf("device %s: %w to the pod of this network namespace (the CNI plugin activates a pod's "+
			"devices when its network is set up)", device, ErrNotLeased)
	}
	return l, nil
}

// View is a device as a pod sees it.
type View struct {
	Leased, Open bool
	Link         netdev.Link // of a leased device
	Queue        int
	Epoch        uint64
	Settings     Settings
}

// View returns how a device stands for the pod with the given network namespace. Of one that is not leased to it,
// nothing is told.
func (m *Manager) View(device string, cookie uint64) View {
	m.mu.Lock()
	defer m.mu.Unlock()
	l, err := m.leaseOf(device, cookie)
	if err != nil {
		return View{}
	}
	v := View{Leased: true, Open: l.open != nil, Queue: l.doc.Queue, Epoch: l.doc.Epoch, Settings: l.doc.Settings}
	v.Link, _ = m.find(l.doc.Identity)
	return v
}

// Grant returns what is needed to open a device, for the pod with the given network namespace.
func (m *Manager) Grant(device string, cookie uint64) (Grant, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l, err := m.leaseOf(device, cookie)
	if err != nil {
		return Grant{}, err
	}
	if l.open != nil {
		return Grant{}, alreadyOpen(l)
	}
	n, link, err := m.inForce(l)
	if err != nil {
		return Grant{}, err
	}
	tuning, err := m.tuning(link, l)
	if err != nil {
		return Grant{}, err
	}
	return Grant{
		Device: l.doc.Device, Queue: l.doc.Queue, Epoch: l.doc.Epoch, NetnsCookie: l.doc.NetnsCookie, Link: link,
		Settings: l.doc.Settings, ZeroCopy: n.doc.ZeroCopy != nil && n.doc.ZeroCopy.Can, Tuning: tuning,
	}, nil
}

// Tuning reads how a leased device stands now.
func (m *Manager) Tuning(device string, cookie uint64) (Tuning, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l, err := m.leaseOf(device, cookie)
	if err != nil {
		return Tuning{}, err
	}
	_, link, err := m.inForce(l)
	if err != nil {
		return Tuning{}, err
	}
	return m.tuning(link, l)
}

// TuneAgain sets the knobs of a leased device where they are not as its lease wants them any more, and reads them back.
func (m *Manager) TuneAgain(device string, cookie uint64) (Tuning, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l, err := m.leaseOf(device, cookie)
	if err != nil {
		return Tuning{}, err
	}
	n, link, err := m.inForce(l)
	if err != nil {
		return Tuning{}, err
	}
	if err := m.tunePatiently(n); err != nil {
		return Tuning{}, err
	}
	return m.tuning(link, l)
}

// Socket returns the socket of a device that a connection has open, as a descriptor of its own for the caller to close,
// and where the device is.
func (m *Manager) Socket(device string, cookie uint64) (*xsk.Socket, Device, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l, err := m.leaseOf(device, cookie)
	if err != nil {
		return nil, Device{}, err
	}
	_, link, err := m.inForce(l)
	if err != nil {
		return nil, Device{}, err
	}
	if l.open == nil {
		return nil, Device{}, fmt.Errorf("device %s: %w", device, ErrNotYours)
	}
	s, err := l.open.socket.Dup()
	return s, Device{ID: device, Link: link, Queue: l.doc.Queue}, err
}

// PodZeroCopy reports whether the NICs of all devices of the pod with the given network namespace can do zero-copy and
// no pool forbids it, and names one that cannot.
func (m *Manager) PodZeroCopy(cookie uint64) (can bool, obstacle string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range m.sorted() {
		if l.doc.State != StateActive || l.doc.NetnsCookie != cookie {
			continue
		}
		n := m.nics[l.doc.NIC]
		switch {
		case l.doc.Settings.ZeroCopy == ZeroCopyNever:
			return false, fmt.Sprintf("pool %s has zeroCopy: never", l.doc.Settings.Pool)
		case n == nil || n.doc.ZeroCopy == nil:
			return false, fmt.Sprintf("%s was not tried", l.doc.Identity.Name)
		case !n.doc.ZeroCopy.Can:
			return false, fmt.Sprintf("%s: %s", l.doc.Identity.Name, n.doc.ZeroCopy.Obstacle)
		}
	}
	return true, ""
}

// Opened records the socket that was made with a grant and has the queue's packets go to it. On success the Manager
// takes over socket; the connection that made it is told by revoke, from a goroutine of its own, when the lease ends.
func (m *Manager) Opened(g Grant, socket *xsk.Socket, s Socket, revoke func(reason string)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	l, err := m.leaseOf(g.Device, g.NetnsCookie)
	if err != nil {
		return err
	}
	if l.doc.Epoch != g.Epoch {
		return fmt.Errorf("device %s: %w: its lease ended meanwhile", g.Device, ErrNotLeased)
	}
	n, err := m.openable(l)
	if err != nil {
		return err
	}
	before := l.doc
	l.doc.Socket, l.doc.Predecessor = &s, nil
	if err := m.writeLease(l); err != nil {
		l.doc = before
		return err
	}
	if err := m.takeIn(n, l, socket, revoke); err != nil {
		l.doc = before
		return errors.Join(err, m.writeLease(l))
	}
	return nil
}

// Resumed takes a socket back that was handed out before the agent was started anew, or whose connection was lost. The
// Manager takes it over on success.
func (m *Manager) Resumed(device string, cookie uint64, socket *xsk.Socket, revoke func(reason string)) (Lease, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l, err := m.leaseOf(device, cookie)
	if err != nil {
		return Lease{}, err
	}
	sc, err := socket.Cookie()
	if err != nil {
		return Lease{}, err
	}
	if l.doc.Socket == nil || l.doc.Socket.Cookie != sc {
		return Lease{}, fmt.Errorf("device %s: %w", device, ErrNotYours)
	}
	n, err := m.openable(l)
	if err != nil {
		return Lease{}, err
	}
	if err := m.takeIn(n, l, socket, revoke); err != nil {
		return Lease{}, err
	}
	return l.copy(), nil
}

// openable returns the NIC of a lease unless the device is open, or the lease is not in force.
func (m *Manager) openable(l *lease) (*nic, error) {
	if l.open != nil {
		return nil, alreadyOpen(l)
	}
	n, _, err := m.inForce(l)
	return n, err
}

func alreadyOpen(l *lease) error {
	return fmt.Errorf("device %s: %w by another connection of pod %s", l.doc.Device, ErrBusy, l.doc.Pod)
}

// takeIn has the packets of a lease's queue go to a socket.
func (m *Manager) takeIn(n *nic, l *lease, socket *xsk.Socket, revoke func(reason string)) error {
	if err := m.step("put socket into XSKMAP"); err != nil {
		return err
	}
	if err := n.attachment.Insert(l.doc.Queue, socket.FD()); err != nil {
		return err
	}
	l.open = &open{socket, revoke}
	m.prime(l)
	return nil
}

// Share returns a descriptor of its own, for the caller to close, of an open socket on the UMEM of which group is the
// first socket's cookie. Only sockets of the same pod count.
func (m *Manager) Share(group, cookie uint64) (*xsk.Socket, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range m.leases {
		if l.open != nil && l.doc.Socket.Group == group && l.doc.NetnsCookie == cookie {
			return l.open.socket.Dup()
		}
	}
	return nil, errors.New("no socket on this UMEM is open any more; register the UMEM again")
}

// Find returns the record of a pod's open socket by the socket's cookie.
func (m *Manager) Find(socket, cookie uint64) (Socket, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range m.leases {
		if l.open != nil && l.doc.Socket.Cookie == socket && l.doc.NetnsCookie == cookie {
			return *l.doc.Socket, nil
		}
	}
	return Socket{}, fmt.Errorf("%w: no device of the pod has it open", ErrNotYours)
}

// Closed drops the agent's descriptor of a device's socket, which was opened in epoch. The socket lives on as long as
// the pod holds it, and its packets keep going to it unless the pod has said that it is done with it.
func (m *Manager) Closed(device string, epoch uint64, done bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.leases[device]
	if l == nil || l.doc.Epoch != epoch || l.open == nil {
		return
	}
	if n := m.nics[l.doc.NIC]; done && n != nil {
		_ = m.takeOut(n, l.doc.Queue) // the kernel takes it out with the socket's end
	}
	_ = l.open.socket.Close()
	l.open = nil
}

// dropOpen takes the device away from the connection that has it open.
func (m *Manager) dropOpen(l *lease, reason string) {
	if l.open == nil {
		return
	}
	_ = l.open.socket.Close()
	go l.open.revoke(fmt.Sprintf("the lease of %s has ended: %s", l.doc.Device, reason))
	l.open = nil
}

// Statistics returns the counters of the sockets that are open, by device.
func (m *Manager) Statistics() map[string]xsk.Statistics {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make(map[string]xsk.Statistics)
	for id, l := range m.leases {
		if l.open == nil {
			continue
		}
		if st, err := l.open.socket.Statistics(); err == nil {
			all[id] = st
		}
	}
	return all
}
