package lease

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/afxdp-project/afxdp/pkg/netdev"
)

// recover takes up the journal after a start.
func (m *Manager) recover() []error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var findings []error
	found := func(err error) {
		if err != nil {
			findings = append(findings, err)
		}
	}
	found(m.journal.readAll(kindNIC, func(key string, body []byte) error {
		n := &nic{key: key}
		if err := json.Unmarshal(body, &n.doc); err != nil {
			return err
		}
		if n.doc.NetnsCookie != m.cookie {
			return fmt.Errorf("%s is in another network namespace; its settings are left as they are", n.doc.Identity.Name)
		}
		m.nics[key] = n
		return nil
	}))
	found(m.journal.readAll(kindLease, func(_ string, body []byte) error {
		l := &lease{}
		if err := json.Unmarshal(body, &l.doc); err != nil {
			return err
		}
		l.held.since = time.Now()
		m.epoch = max(m.epoch, l.doc.Epoch)
		m.leases[l.doc.Device] = l
		return nil
	}))
	for _, n := range m.nics {
		found(m.reopen(n))
	}
	for _, l := range m.sorted() {
		switch {
		case l.doc.State == StateActivating:
			found(m.end(l, "its activation was interrupted"))
		case l.doc.State == StateActive && m.nics[l.doc.NIC] == nil:
			found(fmt.Errorf("the journal has no document of the NIC of %s", l.doc.Device))
			found(m.end(l, "its NIC is not known"))
		case l.doc.State == StateEnding:
			found(m.end(l, "its end was interrupted"))
		}
	}
	for _, n := range m.nics {
		found(m.recoverNIC(n))
	}
	return findings
}

// recoverNIC puts back what nobody holds, and has our program on a NIC that has leases.
func (m *Manager) recoverNIC(n *nic) error {
	link, err := m.find(n)
	if errors.Is(err, netdev.ErrNoDevice) {
		n.doc.Knobs = nil
		if m.inUse(n, nil) {
			// The leases stay until their pods go; nothing can be opened meanwhile.
			return errors.Join(m.detach(n), m.writeNIC(n))
		}
	} else if err != nil {
		return err
	}
	var errs []error
	gone := make(map[string]bool)
	for _, k := range n.doc.Knobs {
		for device := range k.Holders {
			l := m.leases[device]
			gone[device] = l == nil || l.doc.NIC != n.key || l.doc.State != StateActive
		}
	}
	for device, is := range gone {
		if is {
			errs = append(errs, m.untune(n, link, device))
		}
	}
	if m.inUse(n, nil) {
		if n.attachment == nil {
			errs = append(errs, m.reattach(n))
		}
		return errors.Join(errs...)
	}
	if err := errors.Join(append(errs, m.detach(n))...); err != nil {
		return err
	}
	delete(m.nics, n.key)
	return m.journal.remove(kindNIC, n.key)
}

// reattach attaches the program for leases whose attachment is lost. Their sockets are put into the new XSKMAP when
// their clients resume.
func (m *Manager) reattach(n *nic) error {
	for _, l := range m.leases {
		if l.doc.NIC == n.key && l.doc.State == StateActive {
			return m.attach(n, l.doc.Settings)
		}
	}
	return nil
}
