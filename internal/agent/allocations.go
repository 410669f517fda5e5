package agent

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/afxdp-project/afxdp/internal/config"
	"github.com/afxdp-project/afxdp/internal/handoff"
	"github.com/afxdp-project/afxdp/internal/kubelet"
	"github.com/afxdp-project/afxdp/internal/lease"
	"github.com/afxdp-project/afxdp/internal/wire"
)

// allocations are the directories that pods have mounted, each with a listening socket.
type allocations struct {
	dir    string // RunDir/alloc
	leases *lease.Manager
	server *handoff.Server

	mu     sync.Mutex
	all    map[string]allocation // by id
	unseen map[string]time.Time  // since when kubelet's checkpoint has not had it
}

// allocation is the journal's document.
type allocation struct {
	Pool           string   `json:"pool"`
	Devices        []string `json:"devices"` // in the order in which the client sees them
	MaxConnections int      `json:"maxConnections"`
}

// allocationID is a pure function of the devices, whatever their order: kubelet may ask again and must get the same
// answer, also from an agent that has forgotten the first one.
func allocationID(devices []string) string {
	sorted := slices.Sorted(slices.Values(devices))
	sum := sha256.Sum256([]byte(strings.Join(sorted, "\n")))
	return hex.EncodeToString(sum[:8])
}

func newAllocations(dir string, leases *lease.Manager, server *handoff.Server) (*allocations, error) {
	// Pods see nothing but the one directory that is mounted for them; others on the node have no business here.
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, fmt.Errorf("make allocation directory: %w", err)
	}
	return &allocations{
		dir: dir, leases: leases, server: server, all: make(map[string]allocation), unseen: make(map[string]time.Time),
	}, nil
}

// serve has the socket of an allocation listen, and returns the directory that it is in. An existing directory is used as
// it is, whoever made it: a pod may have it mounted.
func (a *allocations) serve(pool config.Pool, devices []string) (dir string, err error) {
	if len(devices) > wire.MaxDevices {
		return "", fmt.Errorf("%d devices in one container are more than the %d that the handoff can describe", len(devices), wire.MaxDevices)
	}
	id := allocationID(devices)
	doc := allocation{pool.Name, slices.SortedFunc(slices.Values(devices), compareDevices), pool.Limits.MaxConnections}
	a.mu.Lock()
	defer a.mu.Unlock()
	if known, ok := a.all[id]; !ok || known.MaxConnections != doc.MaxConnections || known.Pool != doc.Pool {
		if err := a.leases.SaveAllocation(id, doc); err != nil {
			return "", err
		}
	}
	if err := a.listen(id, doc); err != nil {
		return "", err
	}
	return filepath.Join(a.dir, id), nil
}

func (a *allocations) listen(id string, doc allocation) error {
	dir := filepath.Join(a.dir, id)
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("make allocation directory: %w", err)
	}
	// The container runtime makes a missing directory with other permissions, and umask has its word.
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	err := a.server.Serve(handoff.Allocation{
		ID: id, Dir: dir, Pool: doc.Pool, Devices: doc.Devices, MaxConnections: doc.MaxConnections,
	})
	if err != nil {
		return err
	}
	a.all[id] = doc
	delete(a.unseen, id)
	return nil
}

// count returns how many allocations there are, by pool.
func (a *allocations) count() map[string]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	count := make(map[string]int)
	for _, doc := range a.all {
		count[doc.Pool]++
	}
	return count
}

// socket returns the path of the socket of the allocation with these devices.
func (a *allocations) socket(devices []string) string {
	return filepath.Join(a.dir, allocationID(devices), handoff.SocketName)
}

// adopt serves again what an earlier agent served, and what kubelet's checkpoint says is allocated.
func (a *allocations) adopt(cp kubelet.Checkpoint, pools func(string) config.Pool) error {
	var errs []error
	a.mu.Lock()
	errs = append(errs, a.leases.Allocations(func(id string, body json.RawMessage) error {
		var doc allocation
		if err := json.Unmarshal(body, &doc); err != nil {
			return err
		}
		return a.listen(id, doc)
	}))
	a.mu.Unlock()
	for _, e := range cp.Entries {
		name, ok := poolOf(e.Resource)
		if !ok || len(e.DeviceIDs) == 0 {
			continue
		}
		if _, err := a.serve(pools(name), e.DeviceIDs); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// allocationGrace is how long an allocation that kubelet's checkpoint does not have is kept: it may have been answered
// a moment ago, and kubelet forgets pods before their containers are gone.
const allocationGrace = 10 * time.Minute

// prune removes allocations that neither kubelet's checkpoint nor a lease has had for a while.
func (a *allocations) prune(cp kubelet.Checkpoint, now time.Time) error {
	used := make(map[string]bool)
	for _, e := range cp.Entries {
		if _, ok := poolOf(e.Resource); ok {
			used[allocationID(e.DeviceIDs)] = true
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	var errs []error
	for id, doc := range a.all {
		leased := slices.ContainsFunc(doc.Devices, func(d string) bool { _, ok := a.leases.Lease(d); return ok })
		if used[id] || leased {
			delete(a.unseen, id)
			continue
		}
		since, seen := a.unseen[id]
		if !seen {
			a.unseen[id] = now
		}
		if !seen || now.Sub(since) < allocationGrace {
			continue
		}
		a.server.Stop(id)
		delete(a.all, id)
		delete(a.unseen, id)
		errs = append(errs, os.RemoveAll(filepath.Join(a.dir, id)), a.leases.RemoveAllocation(id))
	}
	return errors.Join(errs...)
}

// empty removes the socket from the directory of an allocation that nobody serves any more.
func (a *allocations) empty(id string) error {
	return remove(filepath.Join(a.dir, id, handoff.SocketName))
}

// compareDevices orders by NIC, then by the queue's number.
func compareDevices(a, b string) int {
	an, aq := splitDevice(a)
	bn, bq := splitDevice(b)
	return cmp.Or(cmp.Compare(an, bn), cmp.Compare(aq, bq), cmp.Compare(a, b))
}

// splitDevice splits "eth1-q2" into "eth1" and 2.
func splitDevice(id string) (nic string, queue int) {
	i := strings.LastIndex(id, "-q")
	if i < 0 {
		return id, -1
	}
	queue, err := strconv.Atoi(id[i+2:])
	if err != nil {
		return id, -1
	}
	return id[:i], queue
}

// poolOf returns the pool behind a resource name of ours.
func poolOf(resource string) (string, bool) {
	if !kubelet.InDomain(resource, config.ResourceDomain) {
		return "", false
	}
	return strings.TrimPrefix(resource, config.ResourceDomain+"/"), true
}
