package lease

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/xdpprog"
	"github.com/afxdp-project/afxdp/pkg/netdev"
	"github.com/afxdp-project/afxdp/pkg/xsk"
)

// Config says where a Manager works.
type Config struct {
	StateDir string         // the journal; 0700, on a filesystem that does not outlive a boot
	PinDir   string         // a directory for the pins, made on a bpffs; its name and those in it have no dots
	NICs     *netdev.Handle // the network namespace whose NICs are changed
	// Fault, if set, is called before each change of a NIC or of the journal; one for which it returns an error fails with
	// that. Tests let things go wrong there, or end the process.
	Fault func(step string) error

	napis napis // a stand-in for those of NICs
}

// napis are the NAPIs of the NICs.
type napis interface {
	Queues(index int) ([]netdev.Queue, error)
	NAPIs(index int) ([]netdev.NAPI, error)
	NAPI(id uint32) (netdev.NAPI, error)
	SetNAPI(id uint32, s netdev.NAPISettings) error
	IRQAffinity(irq int) (netdev.CPUs, error)
	SetIRQAffinity(irq int, cpus netdev.CPUs) error
	ThreadAffinity(n netdev.NAPI) (netdev.CPUs, error)
	SetThreadAffinity(n netdev.NAPI, cpus netdev.CPUs) error
}

// Manager is the one writer of journal and NICs. Its methods may be called from any goroutine.
type Manager struct {
	config  Config
	cookie  uint64 // of the NICs' network namespace
	journal *journal

	mu       sync.Mutex
	nics     map[string]*nic   // by key
	leases   map[string]*lease // by device id
	zeroCopy map[trialKey]zeroCopy
	epoch    uint64

	uninstalled bool // nothing is leased any more
}

type nic struct {
	key        string
	doc        nicDoc
	dirty      bool // the document in the journal is older
	away       bool // a queue with settings to be put back had no NAPI when it was tuned last
	attachment *xdpprog.Attachment
	unpinned   map[knobScope]error // why threads are not on the CPUs that leases want
}

type lease struct {
	doc       Lease
	open      *open     // the connection that has the device open, or nil
	heldSince time.Time // in StateHeld
}

type open struct {
	socket *xsk.Socket // the agent's descriptor
	revoke func(reason string)
}

// New opens the journal and takes up what it says: leases that were active go on, what was half done is undone, what
// nobody holds is put back. The returned error leaves no Manager; problems with single NICs or leases, which leave the
// rest in working order, come as findings.
func New(c Config) (_ *Manager, findings []error, err error) {
	if err := xdpprog.CheckBPFFS(filepath.Dir(c.PinDir)); err != nil {
		return nil, nil, err
	}
	if err := os.MkdirAll(c.PinDir, 0o700); err != nil {
		return nil, nil, fmt.Errorf("make pin directory: %w", err)
	}
	j, err := openJournal(c.StateDir)
	if err != nil {
		return nil, nil, err
	}
	if c.napis == nil {
		c.napis = c.NICs
	}
	m := &Manager{
		config: c, cookie: c.NICs.NetnsCookie(), journal: j,
		nics: make(map[string]*nic), leases: make(map[string]*lease), zeroCopy: make(map[trialKey]zeroCopy),
	}
	findings = m.recover()
	if err := errors.Join(findings...); errors.Is(err, errVersion) {
		return nil, nil, errors.Join(err, m.Close())
	}
	return m, findings, nil
}

// Close closes the Manager's descriptors. NICs, leases and the pods' sockets stay as they are. The Manager knows no
// leases afterwards, and must not be asked for any.
func (m *Manager) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var errs []error
	for _, l := range m.leases {
		if l.open != nil {
			errs = append(errs, l.open.socket.Close())
		}
	}
	for _, n := range m.nics {
		if n.attachment != nil {
			errs = append(errs, n.attachment.Close())
		}
	}
	clear(m.leases)
	clear(m.nics)
	return errors.Join(append(errs, m.journal.close())...)
}

// Leases returns copies of all leases, sorted by device.
func (m *Manager) Leases() []Lease {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []Lease
	for _, id := range slices.Sorted(maps.Keys(m.leases)) {
		all = append(all, m.leases[id].copy())
	}
	return all
}

// Lease returns a copy of a device's lease.
func (m *Manager) Lease(device string) (Lease, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l, ok := m.leases[device]
	if !ok {
		return Lease{}, false
	}
	return l.copy(), true
}

func (l *lease) copy() Lease {
	c := l.doc
	c.Attachments = slices.Clone(c.Attachments)
	if c.Socket != nil {
		s := *c.Socket
		c.Socket = &s
	}
	return c
}

// NetnsCookie returns the cookie of the network namespace whose NICs are managed.
func (m *Manager) NetnsCookie() uint64 { return m.cookie }

// The journal's kinds of documents.
const (
	kindNIC        = "nic"
	kindLease      = "lease"
	kindAllocation = "allocation"
)

// step comes before each change.
func (m *Manager) step(name string) error {
	if m.config.Fault == nil {
		return nil
	}
	return m.config.Fault(name)
}

func (m *Manager) writeLease(l *lease) error {
	if err := m.step("write lease " + string(l.doc.State)); err != nil {
		return err
	}
	return m.journal.write(kindLease, l.doc.Device, &l.doc)
}

func (m *Manager) removeLease(l *lease) error {
	if err := m.step("remove lease"); err != nil {
		return err
	}
	if err := m.journal.remove(kindLease, l.doc.Device); err != nil {
		return err
	}
	delete(m.leases, l.doc.Device)
	return nil
}

func (m *Manager) writeNIC(n *nic) error {
	n.dirty = true
	if err := m.step("write nic"); err != nil {
		return err
	}
	if err := m.journal.write(kindNIC, n.key, &n.doc); err != nil {
		return err
	}
	n.dirty = false
	return nil
}

func (m *Manager) removeNIC(n *nic) error {
	if err := m.step("remove nic"); err != nil {
		return err
	}
	if err := m.journal.remove(kindNIC, n.key); err != nil {
		return err
	}
	delete(m.nics, n.key)
	return nil
}

// nextEpoch returns a number larger than that of any lease before, also before a restart: the journal does not outlive
// a boot, and this clock is set by no one.
func (m *Manager) nextEpoch() uint64 {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) // fails only for a clock that does not exist
	m.epoch = max(m.epoch+1, uint64(now.Nano()))
	return m.epoch
}

// SaveAllocation remembers which devices an allocation has; a restarted agent serves its socket again.
func (m *Manager) SaveAllocation(id string, body any) error {
	return m.journal.write(kindAllocation, id, body)
}

// RemoveAllocation forgets an allocation.
func (m *Manager) RemoveAllocation(id string) error { return m.journal.remove(kindAllocation, id) }

// Allocations calls f with each saved allocation.
func (m *Manager) Allocations(f func(id string, body json.RawMessage) error) error {
	return m.journal.readAll(kindAllocation, func(key string, body []byte) error { return f(key, body) })
}
