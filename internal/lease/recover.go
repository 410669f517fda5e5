package lease

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/afxdp-project/afxdp/internal/xdpprog"
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
	found(m.load())
	if slices.ContainsFunc(findings, func(err error) bool { return errors.Is(err, errVersion) }) {
		return findings
	}
	for _, n := range m.nics {
		found(m.reopen(n))
	}
	for _, l := range m.sorted() {
		switch {
		case l.doc.State == StateActivating:
			found(m.end(l, "its activation was interrupted"))
		case l.doc.State == StateEnding:
			found(m.end(l, "its end was interrupted"))
		case l.doc.State == StateActive && m.nics[l.doc.NIC] == nil:
			found(fmt.Errorf("the journal has no document of the NIC of %s", l.doc.Device))
			found(m.end(l, "its NIC is not known"))
		}
	}
	for _, n := range m.nics {
		found(m.recoverNIC(n))
	}
	found(m.removeStrayPins())
	return findings
}

// load reads the documents. NICs of other network namespaces, and their leases, are left alone: they may be within
// reach of a later agent.
func (m *Manager) load() error {
	elsewhere := make(map[string]bool)
	nics := m.journal.readAll(kindNIC, func(key string, body []byte) error {
		n := &nic{key: key, unpinned: make(map[knobScope]error)}
		if err := json.Unmarshal(body, &n.doc); err != nil {
			return err
		}
		if n.doc.NetnsCookie != m.cookie {
			elsewhere[key] = true
			return fmt.Errorf("%s is in another network namespace; its settings are left as they are", n.doc.Identity.Name)
		}
		for _, k := range n.doc.Knobs {
			if k == nil || k.Holders == nil {
				return errors.New("a knob is not whole")
			}
			k.set = true
			n.intend(k)
		}
		m.nics[key] = n
		m.remember(n)
		return nil
	})
	leases := m.journal.readAll(kindLease, func(_ string, body []byte) error {
		l := &lease{heldSince: time.Now()}
		if err := json.Unmarshal(body, &l.doc); err != nil {
			return err
		}
		if !elsewhere[l.doc.NIC] {
			m.epoch = max(m.epoch, l.doc.Epoch)
			m.leases[l.doc.Device] = l
		}
		return nil
	})
	return errors.Join(nics, leases)
}

// recoverNIC has our program on a NIC that has leases, tuned as they want it, and forgets one that has none.
func (m *Manager) recoverNIC(n *nic) error {
	if !m.inUse(n) {
		return errors.Join(m.tune(n), m.retire(n))
	}
	link, err := m.find(n.doc.Identity)
	if err != nil {
		// The leases stay until their pods go; nothing can be opened meanwhile.
		return errors.Join(err, m.tune(n))
	}
	return errors.Join(m.reattach(n, link), m.tune(n))
}

// reattach attaches the program for leases whose attachment is lost. Their sockets are put into the new XSKMAP when
// their clients resume.
func (m *Manager) reattach(n *nic, link netdev.Link) error {
	if n.attachment != nil {
		return nil
	}
	for _, l := range m.sorted() {
		if l.needs(n) {
			return m.attach(n, link, l.doc.Settings)
		}
	}
	return nil
}

// removeStrayPins removes our program from NICs of which the journal has no readable document.
func (m *Manager) removeStrayPins() error {
	entries, err := os.ReadDir(m.config.PinDir)
	if err != nil {
		return fmt.Errorf("read pin directory: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), m.keyPrefix()) && m.nics[e.Name()] == nil {
			dir := filepath.Join(m.config.PinDir, e.Name())
			errs = append(errs, fmt.Errorf("%s belongs to no NIC in the journal; it is removed", dir), xdpprog.Remove(dir))
		}
	}
	return errors.Join(errs...)
}
