package lease

import (
	"errors"
	"fmt"
	"slices"
	"time"
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
func (m *Manager) Activate(r Request) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.checkRequest(r); err != nil {
		return err
	}
	var made []*lease
	var grown []*lease
	fail := func(err error) error {
		var errs []error
		for _, l := range slices.Backward(made) {
			errs = append(errs, m.end(l, "its activation failed"))
		}
		for _, l := range grown {
			errs = append(errs, m.removeAttachment(l, r.Attachment))
		}
		if undo := errors.Join(errs...); undo != nil {
			return fmt.Errorf("%w; undoing it: %w", err, undo)
		}
		return err
	}
	for _, d := range r.Devices {
		if old := m.leases[d.ID]; old != nil {
			if m.serves(old, r, d) {
				if !slices.Contains(old.doc.Attachments, r.Attachment) {
					old.doc.Attachments = append(old.doc.Attachments, r.Attachment)
					grown = append(grown, old)
					if err := m.writeLease(old); err != nil {
						return fail(err)
					}
				}
				continue
			}
			if old.doc.State == StateHeld && time.Since(old.held.since) > heldGrace && !m.isFree(old) {
				return fail(refuse("%s is still held by a process of pod %s, whose lease has ended", d.ID, old.doc.Pod))
			}
			if err := m.end(old, "the device was given to another pod sandbox"); err != nil {
				return fail(fmt.Errorf("end the earlier lease of %s: %w", d.ID, err))
			}
		}
		l, err := m.begin(r, d)
		if l != nil {
			made = append(made, l)
		}
		if err != nil {
			return fail(fmt.Errorf("activate %s: %w", d.ID, err))
		}
	}
	return nil
}

func (m *Manager) checkRequest(r Request) error {
	switch {
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

// serves reports whether a lease is the one that the request asks for.
func (m *Manager) serves(l *lease, r Request, d DeviceRequest) bool {
	return l.doc.State == StateActive && l.doc.Pod.UID == r.Pod.UID && l.doc.NetnsCookie == r.NetnsCookie &&
		l.doc.Sandbox() == r.Attachment.ContainerID && l.doc.NIC == nicKey(m.cookie, d.Link.Identity())
}

// begin makes one lease. When it returns a lease beside an error, what was done for it is to be undone by ending it.
func (m *Manager) begin(r Request, d DeviceRequest) (*lease, error) {
	n := m.nicFor(d.Link, d.Settings)
	if n.doc.MultiBuffer != d.Settings.MultiBuffer {
		return nil, refuse("pool %s wants multiBuffer %t, but %s runs with %t for another pool's lease: the pools must agree",
			d.Settings.Pool, d.Settings.MultiBuffer, d.Link.Name, n.doc.MultiBuffer)
	}
	l := &lease{doc: Lease{
		Device: d.ID, NIC: n.key, Identity: d.Link.Identity(), Queue: d.Queue,
		Pod: r.Pod, NetnsCookie: r.NetnsCookie, Attachments: []Attachment{r.Attachment},
		Epoch: m.nextEpoch(), State: StateActivating, Settings: d.Settings,
	}}
	if err := m.writeLease(l); err != nil {
		return nil, err
	}
	m.leases[d.ID] = l
	m.nics[n.key] = n
	if err := m.writeNIC(n); err != nil {
		return l, err
	}
	if err := m.attach(n, d.Settings); err != nil {
		return l, err
	}
	if err := m.findZeroCopy(n, d); err != nil {
		return l, err
	}
	if err := m.tune(n, l); err != nil {
		return l, err
	}
	l.doc.State = StateActive
	if err := m.writeLease(l); err != nil {
		return l, err
	}
	return l, nil
}

// Check returns an error unless all devices of a request have leases of its attachment that are in force.
func (m *Manager) Check(r Request) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range r.Devices {
		l := m.leases[d.ID]
		switch {
		case l == nil || !m.serves(l, r, d):
			return refuse("%s is not leased to pod %s", d.ID, r.Pod)
		case !slices.Contains(l.doc.Attachments, r.Attachment):
			return refuse("the lease of %s has no attachment %s of network %s", d.ID, r.Attachment.Ifname, r.Attachment.Network)
		}
		n := m.nics[l.doc.NIC]
		if err := m.verify(n, d.Link); err != nil {
			return err
		}
	}
	return nil
}
