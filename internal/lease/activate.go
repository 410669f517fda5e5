package lease

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/afxdp-project/afxdp/pkg/netdev"
)

// Request asks for the leases of all devices of a pod.
type Request struct {
	Pod         Pod
	NetnsCookie uint64 // of the pod's network namespace
	Attachment  Attachment
	Devices     []DeviceRequest
}

// DeviceRequest is a device with the settings of its pool.
type DeviceRequest struct {
	Device
	Settings Settings
}

// Activate makes the leases of a request active. It succeeds also when they are already, so it can be repeated; an
// attachment of its own is added each time. On error everything that it did is undone.
//
// A lease of another pod, or of an earlier sandbox of this one, is ended first: kubelet has given the device to the pod
// that asks, so the DEL for the other one is late.
//
// It may take a second or two, in which every other call waits: drivers reset their rings for an XDP program and for
// the trial bind, and a queue that the kernel is still releasing is waited for.
func (m *Manager) Activate(r Request) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.checkRequest(r); err != nil {
		return err
	}
	var undos []func() error
	for _, d := range r.Devices {
		undo, err := m.activate(r, d)
		if undo != nil {
			undos = append(undos, undo)
		}
		if err == nil {
			continue
		}
		errs := []error{fmt.Errorf("activate %s: %w", d.ID, err)}
		for _, undo := range slices.Backward(undos) {
			if err := undo(); err != nil {
				errs = append(errs, fmt.Errorf("undo it: %w", err))
			}
		}
		return errors.Join(errs...)
	}
	return nil
}

func (m *Manager) checkRequest(r Request) error {
	switch {
	case m.uninstalled:
		return errUninstalled
	case r.NetnsCookie == 0:
		return refuse("the pod's network namespace is not known")
	case r.NetnsCookie == m.cookie:
		return refuse("host-network pods are not supported: the pod is in the network namespace of the NICs")
	case r.Pod.UID == "" || r.Attachment.ContainerID == "":
		return refuse("pod UID or sandbox id is missing")
	case len(r.Devices) == 0:
		return refuse("no devices")
	}
	return nil
}

// activate makes the lease of one device, or adds the attachment to the one that there is. It returns, also beside an
// error, what undoes it, or nil when there is nothing to undo.
func (m *Manager) activate(r Request, d DeviceRequest) (undo func() error, err error) {
	old := m.leases[d.ID]
	if old != nil && serves(old, r, d) {
		return m.join(old, r.Attachment)
	}
	var predecessor *Pod
	if old != nil {
		if predecessor, err = m.supersede(old); err != nil {
			return nil, err
		}
	}
	return m.begin(r, d, predecessor)
}

// serves reports whether a lease is the one that the request asks for.
func serves(l *lease, r Request, d DeviceRequest) bool {
	return l.doc.State == StateActive && l.doc.Pod.UID == r.Pod.UID && l.doc.NetnsCookie == r.NetnsCookie &&
		l.doc.Sandbox() == r.Attachment.ContainerID && l.doc.Queue == d.Queue && netdev.Same(d.Link, l.doc.Identity)
}

// join adds an attachment to a lease.
func (m *Manager) join(l *lease, a Attachment) (undo func() error, err error) {
	if _, _, err := m.inForce(l); err != nil {
		return nil, err
	}
	if slices.Contains(l.doc.Attachments, a) {
		return nil, nil
	}
	before := l.doc.Attachments
	l.doc.Attachments = append(slices.Clone(before), a)
	undo = func() error {
		l.doc.Attachments = before
		return m.writeLease(l)
	}
	return undo, m.writeLease(l)
}

// supersede ends the lease that another pod sandbox has of a device. It returns the pod whose processes may hold the
// queue after that, or nil.
func (m *Manager) supersede(l *lease) (holder *Pod, err error) {
	switch {
	case l.doc.State != StateHeld:
		if err := m.end(l, "the device was given to another pod sandbox"); err != nil {
			return nil, err
		}
	case time.Since(l.heldSince) > heldGrace && !m.isFree(l):
		return nil, refuse("the queue is still held by a process of pod %s, whose lease has ended", l.doc.holder())
	}
	if l.doc.State != StateHeld {
		return nil, nil
	}
	pod := l.doc.holder()
	return &pod, nil
}

// begin makes a lease.
func (m *Manager) begin(r Request, d DeviceRequest, predecessor *Pod) (undo func() error, err error) {
	n, err := m.nicFor(d.Link, d.Settings)
	if err != nil {
		return nil, err
	}
	// The caller's look at the NIC is old: it may show the program of a lease that has ended.
	if d.Link, err = m.find(n.doc.Identity); err != nil {
		return nil, err
	}
	if err := m.admit(n, d); err != nil {
		return nil, err
	}
	l := &lease{doc: Lease{
		Device: d.ID, NIC: n.key, Identity: d.Link.Identity(), Queue: d.Queue,
		Pod: r.Pod, NetnsCookie: r.NetnsCookie, Attachments: []Attachment{r.Attachment}, Predecessor: predecessor,
		Epoch: m.nextEpoch(), State: StateActivating, Settings: d.Settings,
	}}
	if err := m.writeLease(l); err != nil {
		return nil, err
	}
	m.leases[d.ID] = l
	m.nics[n.key] = n
	return func() error { return m.end(l, "its activation failed") }, m.bringUp(n, l, d)
}

// admit returns an error when a device cannot be leased as things stand.
func (m *Manager) admit(n *nic, d DeviceRequest) error {
	if n.doc.MultiBuffer != d.Settings.MultiBuffer {
		return refuse("pool %s wants multiBuffer %t, but %s runs with %t for another pool's lease: the pools must agree",
			d.Settings.Pool, d.Settings.MultiBuffer, d.Link.Name, n.doc.MultiBuffer)
	}
	// Also, a NIC that is down does not tell its NAPIs: it would be taken for one that has no settings by NAPI.
	if !d.Link.Up {
		return refuse("%s is administratively down; set it up", d.Link.Name)
	}
	rx, _, err := m.config.NICs.QueueCount(d.Link.Index)
	if err != nil {
		return err
	}
	if d.Queue < 0 || d.Queue >= rx {
		return refuse("%s has no rx queue %d: it has %d now", d.Link.Name, d.Queue, rx)
	}
	return nil
}

// bringUp changes the NIC for a lease that is in the journal.
func (m *Manager) bringUp(n *nic, l *lease, d DeviceRequest) error {
	// The original settings are read, and are in the journal, before the program is attached: that may reset them.
	if err := m.hold(n, d.Link, l); err != nil {
		return err
	}
	if err := m.writeNIC(n); err != nil {
		return err
	}
	if err := m.attach(n, d.Link, d.Settings); err != nil {
		return err
	}
	if err := m.findZeroCopy(n, d); err != nil {
		return err
	}
	if err := m.tunePatiently(n); err != nil {
		return err
	}
	l.doc.State = StateActive
	return m.writeLease(l)
}

// Check returns an error unless all devices of a request have leases of its attachment that are in force.
func (m *Manager) Check(r Request) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range r.Devices {
		l := m.leases[d.ID]
		switch {
		case l == nil || !serves(l, r, d):
			return refuse("%s is not leased to pod %s", d.ID, r.Pod)
		case !slices.Contains(l.doc.Attachments, r.Attachment):
			return refuse("the lease of %s has no attachment %s of network %s", d.ID, r.Attachment.Ifname, r.Attachment.Network)
		}
		if _, _, err := m.inForce(l); err != nil {
			return err
		}
	}
	return nil
}
