package lease

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// kindUninstall is the journal's document that says that an uninstallation has begun.
const kindUninstall = "uninstall"

// errUninstalled is why nothing is leased any more.
var errUninstalled = &RefusedError{"the node agent is being uninstalled: no queue of this node is handed out any more"}

// BeginUninstall remembers that an agent's uninstallation has begun, so that it goes on after a crash. The id is the
// agent's; it has no dots and slashes.
func (m *Manager) BeginUninstall(id string) error {
	if err := m.step("write uninstall"); err != nil {
		return err
	}
	return m.journal.write(kindUninstall, id, id)
}

// UninstallBegun reports whether the agent's uninstallation has begun. That of another agent is forgotten.
func (m *Manager) UninstallBegun(id string) (begun bool, err error) {
	err = m.journal.readAll(kindUninstall, func(key string, _ []byte) error {
		if key == id {
			begun = true
			return nil
		}
		return m.journal.remove(kindUninstall, key)
	})
	return begun, err
}

// EndAll ends all leases and puts all NICs back, and refuses any further lease. It returns copies of the leases that it
// ended; the error is of NICs that are not as they were. It can be repeated: what could not be put back is tried again.
// Maintain finds out which queues are held still.
func (m *Manager) EndAll(reason string) (ended []Lease, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.uninstalled = true
	for _, l := range m.sorted() {
		if l.doc.State == StateHeld {
			continue
		}
		if l.doc.State == StateActive {
			ended = append(ended, l.copy())
		}
		_ = m.end(l, reason) // what of it matters now is looked at below
	}
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(m.nics)) {
		n := m.nics[key]
		if err := errors.Join(m.tune(n), m.retire(n), n.unreached()); err != nil {
			errs = append(errs, fmt.Errorf("put %s back: %w", n.doc.Identity.Name, err))
		}
	}
	return ended, errors.Join(errs...)
}

// unreached returns an error while a NIC has settings that are to be put back.
func (n *nic) unreached() error {
	var names []string
	for _, k := range n.doc.Knobs {
		names = append(names, string(k.Name))
	}
	if names == nil {
		return nil
	}
	return fmt.Errorf("%s cannot be reached now: the NIC is down, its driver is resetting it, or the thread cannot be seen",
		strings.Join(names, ", "))
}

// Dismantle removes the journal and the pin directory after EndAll, and closes the Manager. Leases of which the queue is
// held still are forgotten. While a NIC has not been put back all stays as it is, also for a later agent, and the error
// says so.
func (m *Manager) Dismantle() error {
	entries, err := os.ReadDir(m.config.StateDir)
	if errors.Is(err, fs.ErrNotExist) {
		return m.Close()
	}
	if err != nil {
		return fmt.Errorf("remove the journal: %w", err)
	}
	var paths, last []string
	for _, e := range entries {
		path := filepath.Join(m.config.StateDir, e.Name())
		switch {
		case strings.HasPrefix(e.Name(), kindNIC+"-"):
			return m.notPutBack(path)
		case strings.HasPrefix(e.Name(), kindUninstall+"-"):
			last = append(last, path)
		default:
			paths = append(paths, path)
		}
	}
	// Until the very end the journal says that the uninstallation has begun.
	for _, path := range slices.Concat([]string{m.config.PinDir}, paths, last, []string{m.config.StateDir}) {
		if err := m.step("remove " + filepath.Base(path)); err != nil {
			return err
		}
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			continue // on a read-only filesystem even its removal fails
		}
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("remove what the agent has kept: %w", err)
		}
	}
	return m.Close()
}

// notPutBack says of which NIC a document is left.
func (m *Manager) notPutBack(path string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, n := range m.nics {
		if m.journal.path(kindNIC, n.key) == path {
			return fmt.Errorf("%s is not as it was before; what is to be put back is kept in %s", n.doc.Identity.Name, path)
		}
	}
	return fmt.Errorf("%s is of a NIC in another network namespace, or cannot be read; it is kept", path)
}
