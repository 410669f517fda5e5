package lease

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/pkg/netdev"
	"github.com/afxdp-project/afxdp/pkg/xsk"
)

// zeroCopy is what is known of a NIC's zero-copy mode.
type zeroCopy struct {
	Can bool `json:"can"`
	// Obstacle says why it cannot, or why that was not found out.
	Obstacle string `json:"obstacle,omitempty"`
	// Settled says that another trial would bring the same.
	Settled bool `json:"settled"`
}

// trialKey is what the answer of a trial bind depends on.
type trialKey struct {
	nic         netdev.Identity
	multiBuffer bool
}

// findZeroCopy finds out by one trial bind whether the NIC can do zero-copy. That is remembered for as long as the NIC
// exists, since some drivers drop their link for it.
func (m *Manager) findZeroCopy(n *nic, d DeviceRequest) error {
	if d.Settings.ZeroCopy == ZeroCopyNever {
		return nil
	}
	key := trialKey{n.doc.Identity, n.doc.MultiBuffer}
	if known, ok := m.zeroCopy[key]; ok {
		n.dirty = n.dirty || n.doc.ZeroCopy == nil || *n.doc.ZeroCopy != known
		n.doc.ZeroCopy = &known
	} else {
		if err := m.step("try zero-copy"); err != nil {
			return err
		}
		found := tryZeroCopy(d)
		n.doc.ZeroCopy = &found
		m.remember(n)
		if err := m.writeNIC(n); err != nil {
			return err
		}
	}
	if d.Settings.ZeroCopy == ZeroCopyRequire && !n.doc.ZeroCopy.Can {
		return refuse("pool %s requires zero-copy, which %s cannot: %s",
			d.Settings.Pool, d.Link.Name, n.doc.ZeroCopy.Obstacle)
	}
	return nil
}

// remember keeps what is known of a NIC's zero-copy mode beyond its last lease.
func (m *Manager) remember(n *nic) {
	if n.doc.ZeroCopy != nil && n.doc.ZeroCopy.Settled {
		m.zeroCopy[trialKey{n.doc.Identity, n.doc.MultiBuffer}] = *n.doc.ZeroCopy
	}
}

// tryZeroCopy binds in zero-copy mode to the queue.
func tryZeroCopy(d DeviceRequest) zeroCopy {
	c := xsk.BindConfig{
		Ifindex: d.Link.Index, Queue: uint32(d.Queue), Mode: xsk.ZeroCopyRequire,
		NeedWakeup: d.Settings.NeedWakeup, MultiBuffer: d.Settings.MultiBuffer,
	}
	var err error
	// The kernel may not have let go yet of the socket that an earlier lease of the queue had.
	for deadline := time.Now().Add(heldGrace); ; time.Sleep(10 * time.Millisecond) {
		if err = trialBind(c); !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			break
		}
	}
	if err == nil {
		return zeroCopy{Can: true, Settled: true}
	}
	return zeroCopy{Obstacle: err.Error(), Settled: errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL)}
}

// queueIsFree reports whether a socket could be bound to a queue, or the queue is gone. What leaves that open counts as
// not free.
func queueIsFree(ifindex, queue int) bool {
	err := trialBind(xsk.BindConfig{Ifindex: ifindex, Queue: uint32(queue), Mode: xsk.ZeroCopyOff})
	return err == nil || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO)
}

// trialBind binds a small socket and closes it. After a success the kernel takes some 50 ms to release the queue.
func trialBind(c xsk.BindConfig) (err error) {
	umem, err := xsk.NewUMEM(xsk.UMEMConfig{Frames: 64})
	if err != nil {
		return fmt.Errorf("try to bind: %w", err)
	}
	defer func() { err = errors.Join(err, umem.Close()) }()
	s, err := xsk.NewSocket()
	if err != nil {
		return fmt.Errorf("try to bind: %w", err)
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if err := s.RegisterUMEM(umem.Bytes(), umem.Config); err != nil {
		return fmt.Errorf("try to bind: %w", err)
	}
	if err := s.SetRings(xsk.RingSizes{Fill: 64, Completion: 64, RX: 64, TX: 64}); err != nil {
		return fmt.Errorf("try to bind: %w", err)
	}
	return s.Bind(c)
}
