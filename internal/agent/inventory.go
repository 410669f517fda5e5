package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/afxdp-project/afxdp/internal/config"
	"github.com/afxdp-project/afxdp/internal/deviceplugin"
	"github.com/afxdp-project/afxdp/internal/lease"
	"github.com/afxdp-project/afxdp/pkg/netdev"
)

// inventory is the node's devices: what the pools select of what is there, with their health.
type inventory struct {
	nics   *netdev.Handle
	leases *lease.Manager
	log    *slog.Logger

	mu       sync.Mutex
	config   *config.Config
	former   map[string]config.Pool           // that are not in config any more, as they were, while pods have devices of them
	claims   []claim                          // of kubelet's checkpoint
	grants   []grant                          // of the last moments
	devices  map[string]device                // by id
	listed   map[string][]deviceplugin.Device // by pool
	problems []string                         // as last logged
}

type device struct {
	pool  config.Pool
	link  netdev.Link
	queue int
}

// scan looks at the node and returns the devices of each pool.
func (v *inventory) scan() (map[string][]deviceplugin.Device, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	links, err := v.nics.Links()
	if err != nil {
		return nil, err
	}
	uplinks, err := v.nics.Uplinks()
	if err != nil {
		return nil, err
	}
	byName := make(map[string]netdev.Link)
	var nics []config.NIC
	for _, l := range links {
		if l.Loopback {
			continue
		}
		rx, _, err := v.nics.QueueCount(l.Index)
		if errors.Is(err, netdev.ErrNoDevice) {
			continue // gone since
		}
		if err != nil {
			return nil, err
		}
		byName[l.Name] = l
		nics = append(nics, config.NIC{
			Name: l.Name, Driver: l.Driver, PCI: l.PCI, MAC: address(l), NUMANode: l.NUMANode, Queues: rx,
			UplinkReason: uplinkReason(uplinks[l.Index]),
		})
	}
	assigned, problems := v.config.Assign(nics)
	v.report(problems)
	trouble, held, taken := v.leases.Problems(), v.leases.Held(), v.taken(time.Now())
	v.devices = make(map[string]device)
	all := make(map[string][]deviceplugin.Device)
	for _, pool := range v.config.Pools {
		all[pool.Name] = []deviceplugin.Device{}
		shared := make(map[string]map[int]int)
		for _, d := range assigned[pool.Name] {
			link := byName[d.NIC]
			if !pool.AllowSharedNAPI {
				if shared[d.NIC] == nil {
					shared[d.NIC] = v.firstOnNAPI(link)
				}
				if first, ok := shared[d.NIC][d.Queue]; ok && first != d.Queue {
					continue // the device of the first queue stands for all on its NAPI
				}
			}
			v.devices[d.ID()] = device{pool, link, d.Queue}
			cause, reason := v.ill(pool, link, trouble)
			if r := held[d.ID()]; cause == "" && r != "" {
				cause, reason = causeHeld, r
			}
			if r := taken.from(pool.Name, d.ID()); cause == "" && r != "" {
				cause, reason = causeOtherPool, r
			}
			all[pool.Name] = append(all[pool.Name], deviceplugin.Device{
				ID: d.ID(), Healthy: cause == "", Reason: reason, Cause: string(cause), NUMANode: link.NUMANode, NIC: d.NIC, Queue: d.Queue,
			})
		}
	}
	// A pool that was taken out stays without devices while pods have some of it: kubelet needs its plugin whenever one
	// of their containers starts again.
	pools := taken.pools()
	for pool := range pools {
		if _, ok := all[pool]; !ok {
			all[pool] = []deviceplugin.Device{}
		}
	}
	maps.DeleteFunc(v.former, func(name string, _ config.Pool) bool { return !pools[name] })
	v.listed = all
	return all, nil
}

// last returns what the last scan found: the devices of each pool, and what does not fit. It is not to be changed.
func (v *inventory) last() (map[string][]deviceplugin.Device, []string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.listed, v.problems
}

// cause is why a device is not healthy, in one word; empty: it is.
type cause string

const (
	causeDown           cause = "down"            // the NIC is administratively down
	causeNoLink         cause = "no_link"         // the NIC has no carrier
	causeProgramLost    cause = "program_lost"    // the NIC has leases and does not run our program any more
	causeForeignProgram cause = "foreign_program" // the NIC runs a program that is not ours
	causeNoNativeXDP    cause = "no_native_xdp"   // the pool does not allow generic XDP, and the driver has no other
	causeHeld           cause = "held"            // a process holds the queue, whose lease has ended
	causeOtherPool      cause = "other_pool"      // a pod has the queue from the pool that had it before
)

// forget has no devices any more.
func (v *inventory) forget() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.devices, v.listed = nil, nil
}

// ill returns why a NIC's devices are not healthy, in a word and in a sentence, or "".
func (v *inventory) ill(pool config.Pool, link netdev.Link, trouble map[int]string) (cause, string) {
	runs := link.XDP.Mode != netdev.XDPNone
	switch {
	case !link.Up:
		return causeDown, link.Name + " is administratively down"
	case !link.Carrier:
		return causeNoLink, fmt.Sprintf("%s has no link (operational state %s)", link.Name, link.OperState)
	case trouble[link.Index] != "" && runs:
		return causeForeignProgram, trouble[link.Index]
	case trouble[link.Index] != "":
		return causeProgramLost, trouble[link.Index]
	case runs && !v.leases.Manages(link):
		return causeForeignProgram, fmt.Sprintf("%s has another XDP program (id %d)", link.Name,
			max(link.XDP.NativeProgID, link.XDP.GenericProgID, link.XDP.OffloadProgID))
	}
	features, err := v.nics.XDPFeatures(link.Index)
	if err == nil && !features.Basic && !pool.AllowGeneric {
		return causeNoNativeXDP, fmt.Sprintf("the driver of %s has no native XDP, and pool %s does not allow generic", link.Name, pool.Name)
	}
	return "", ""
}

// firstOnNAPI returns for each rx queue of a NIC the first one on the same NAPI. Queues without a link to a NAPI are not
// in it.
func (v *inventory) firstOnNAPI(link netdev.Link) map[int]int {
	queues, err := v.nics.Queues(link.Index)
	if err != nil {
		return map[int]int{}
	}
	first, byQueue := make(map[uint32]int), make(map[int]int)
	for _, q := range queues {
		if q.Type != netdev.RX || q.NAPI == 0 {
			continue
		}
		if f, ok := first[q.NAPI]; !ok || q.Index < f {
			first[q.NAPI] = q.Index
		}
	}
	for _, q := range queues {
		if q.Type == netdev.RX && q.NAPI != 0 {
			byQueue[q.Index] = first[q.NAPI]
		}
	}
	return byQueue
}

// report logs what does not fit between configuration and node, when it changes.
func (v *inventory) report(problems []config.Problem) {
	now := make([]string, len(problems))
	for i, p := range problems {
		now[i] = p.String()
	}
	for i, p := range now {
		if !slices.Contains(v.problems, p) {
			v.log.Warn("configuration does not fit the node", "pool", problems[i].Pool, "netdev", problems[i].NIC, "problem", problems[i].Msg)
		}
	}
	v.problems = now
}

// find returns a device of a pool.
func (v *inventory) find(pool, id string) (device, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.lookUp(pool, id)
}

func (v *inventory) lookUp(pool, id string) (device, error) {
	d, ok := v.devices[id]
	if !ok {
		return device{}, fmt.Errorf("unknown device %s: this node has %d devices in its pools", id, len(v.devices))
	}
	if d.pool.Name != pool {
		return device{}, fmt.Errorf("device %s belongs to pool %s, not %s", id, d.pool.Name, pool)
	}
	return d, nil
}

// use has another configuration take effect with the next scan. Leases keep the settings with which they were made.
func (v *inventory) use(c *config.Config) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, p := range v.config.Pools {
		v.former[p.Name] = p
	}
	for _, p := range c.Pools {
		delete(v.former, p.Name)
	}
	v.config = c
}

// current returns the configuration in force.
func (v *inventory) current() *config.Config {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.config
}

// pool returns a pool. One that was taken out of the configuration while pods hold its devices is as it was, or, after a
// restart, has the defaults: what they hold is served as long as they live.
func (v *inventory) pool(name string) config.Pool {
	v.mu.Lock()
	defer v.mu.Unlock()
	p, ok := v.config.Pool(name)
	if !ok {
		p, ok = v.former[name]
	}
	if !ok {
		p = config.DefaultPool()
		p.Name = name
	}
	return p
}

// pools returns the names of the pools, and of those that were taken out and of which pods have devices.
func (v *inventory) pools() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	names := v.taken(time.Now()).pools()
	for _, p := range v.config.Pools {
		names[p.Name] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// uplinkReason makes a predicate of what netdev says of a NIC that the node needs.
func uplinkReason(s string) string {
	switch {
	case s == "":
		return ""
	case strings.HasPrefix(s, "default route"), strings.HasPrefix(s, "address"):
		return "has the " + s
	}
	return "is a " + s
}

// address returns the permanent address of a NIC where it has one, else the present one.
func address(l netdev.Link) string {
	if len(l.PermMAC) > 0 {
		return l.PermMAC.String()
	}
	return l.MAC.String()
}

// settings returns what a lease keeps of its pool.
func settings(p config.Pool) lease.Settings {
	return lease.Settings{
		Pool: p.Name, ZeroCopy: lease.ZeroCopy(p.ZeroCopy), NeedWakeup: p.NeedWakeup, MultiBuffer: p.MultiBuffer,
		AllowGeneric: p.AllowGeneric, CountUnclaimed: p.CountUnclaimed,
		BusyPollBudget: p.BusyPoll.Budget, BusyPollTimeout: p.BusyPoll.Timeout,
		DeferHardIRQs: uint32(p.BusyPoll.DeferHardIRQs), GROFlushTimeout: p.BusyPoll.GROFlushTimeout,
		IRQSuspendTimeout: p.BusyPoll.IRQSuspendTimeout, Threaded: p.BusyPoll.Threaded, ThreadCPUs: p.BusyPoll.ThreadCPUs,
		IRQCPUs: p.BusyPoll.IRQCPUs,
		MaxUMEM: uint64(p.Limits.MaxUMEM), MaxFrames: uint32(p.Limits.MaxFrames), MaxRingSize: uint32(p.Limits.MaxRingSize),
	}
}
