package deviceplugin

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Manager keeps a device plugin for each pool. Its methods may be called concurrently.
type Manager struct {
	cfg Config

	mu      sync.Mutex
	run     context.Context // ends with all pools
	end     context.CancelFunc
	running bool
	ended   bool
	pools   map[string]*pool
	gone    map[string]<-chan struct{} // by name: closed when the last pool of that name has ended
	wg      sync.WaitGroup
}

// NewManager makes a manager without pools.
func NewManager(cfg Config) (*Manager, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	m := &Manager{cfg: cfg, pools: make(map[string]*pool), gone: make(map[string]<-chan struct{})}
	m.run, m.end = context.WithCancel(context.Background())
	return m, nil
}

// Update takes the full state: each pool with all its devices, which may be none yet. A new pool is registered, the
// devices of one that is missing are withdrawn from kubelet and its plugin ends. It does not wait for either, and may
// be called before Run.
func (m *Manager) Update(pools map[string][]Device) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended {
		return
	}
	for name, p := range m.pools {
		if _, ok := pools[name]; !ok {
			m.cfg.Logger.Info("pool is withdrawn", "pool", name)
			delete(m.pools, name)
			if !m.running {
				p.cancel()
				continue
			}
			m.gone[name] = p.done
			p.withdraw()
		}
	}
	for name, devices := range pools {
		p := m.pools[name]
		if p == nil {
			p = newPool(m.run, m.cfg, name, m.gone[name])
			m.pools[name] = p
			delete(m.gone, name)
			if m.running {
				m.wg.Go(p.run)
			}
		}
		p.update(devices)
	}
}

// Run serves the pools until ctx ends, then stops them and returns nil: their devices are not withdrawn, for an agent
// that restarts comes back with them. It is called once.
func (m *Manager) Run(ctx context.Context) error {
	m.mu.Lock()
	if m.running || m.ended {
		m.mu.Unlock()
		return errors.New("run the device plugins: called twice")
	}
	m.running = true
	for _, p := range m.pools {
		m.wg.Go(p.run)
	}
	m.mu.Unlock()
	m.watch(ctx)
	m.mu.Lock()
	m.ended, m.running = true, false
	m.mu.Unlock()
	m.end()
	m.wg.Wait()
	return nil
}

// Registered tells for each pool why kubelet does not know its devices: nil when it does.
func (m *Manager) Registered() map[string]error {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make(map[string]error, len(m.pools))
	for name, p := range m.pools {
		out[name] = p.registered()
	}
	return out
}

func (m *Manager) pokeAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.pools {
		p.poke()
	}
}

// watch has the pools look again when something happens to kubelet's socket, theirs, or the directory. They look from
// time to time without that too, so where the kernel has no more watches to give it only takes longer.
func (m *Manager) watch(ctx context.Context) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		m.cfg.Logger.Warn("cannot watch kubelet's directory: its restart is noticed seconds later", "err", err)
		<-ctx.Done()
		return
	}
	defer func() { _ = watcher.Close() }()
	dir := filepath.Join(m.cfg.KubeletRoot, "device-plugins")
	var watched identity
	follow := func() {
		id, err := identify(dir)
		id.made = time.Time{} // a directory's changes with its entries
		switch {
		case err != nil:
			watched = identity{}
		case id != watched:
			_ = watcher.Remove(dir) // of the directory that had the name before
			if watcher.Add(dir) == nil {
				watched = id
				m.pokeAll()
			}
		}
	}
	ticker := time.NewTicker(recheck)
	defer ticker.Stop()
	for {
		follow()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case err := <-watcher.Errors:
			m.cfg.Logger.Warn("lost events of kubelet's directory", "err", err)
			m.pokeAll()
		case event := <-watcher.Events:
			base := filepath.Base(event.Name)
			switch {
			case event.Name == dir: // removed or renamed
				watched = identity{}
			case base == kubeletSocket && event.Has(fsnotify.Create),
				strings.HasPrefix(base, "afxdp-") && event.Has(fsnotify.Remove|fsnotify.Rename):
				m.pokeAll()
			}
		}
	}
}
