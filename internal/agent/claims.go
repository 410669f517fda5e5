package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/afxdp-project/afxdp/internal/config"
	"github.com/afxdp-project/afxdp/internal/kubelet"
	"github.com/afxdp-project/afxdp/internal/lease"
)

// A queue can move from one pool to another while a pod has it: the configuration changed. To kubelet these are two
// devices, so the agent keeps it from giving the second one away.

const (
	// allocateGrace is how long kubelet may take to write to its checkpoint what it was answered.
	allocateGrace = 10 * time.Second
	// listTimeout is short, since what kubelet knows of devices waits for the answer.
	listTimeout = 2 * time.Second
)

// claim is a device that kubelet has given to a pod, as one of a pool.
type claim struct{ pool, device string }

// grant is a claim that may not be in kubelet's checkpoint yet.
type grant struct {
	claim
	at time.Time
}

// claims returns what kubelet has given to pods. Of a claim that does not fit the present pools it asks kubelet whether
// its pod is still there: the checkpoint has pods that have ended until the next one comes. Where kubelet does not
// answer, it is.
func (a *Agent) claims(ctx context.Context) ([]claim, error) {
	cp, _, err := a.kubelet.Checkpoint()
	if err != nil {
		return nil, err
	}
	var all, odd []claim
	for _, e := range cp.Entries {
		pool, ok := poolOf(e.Resource)
		if !ok {
			continue
		}
		for _, id := range e.DeviceIDs {
			c := claim{pool, id}
			if all = append(all, c); !a.inventory.has(c) {
				odd = append(odd, c)
			}
		}
	}
	if len(odd) == 0 {
		return all, nil
	}
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	pods, err := a.kubelet.List(ctx)
	if err != nil {
		a.log.Warn("find out whether pods still have devices that are another pool's now", "error", err)
		return all, nil
	}
	return slices.DeleteFunc(all, func(c claim) bool { return slices.Contains(odd, c) && !listed(pods, c) }), nil
}

// listed reports whether a pod that is there has a device.
func listed(pods []kubelet.PodDevices, c claim) bool {
	resource := config.ResourceDomain + "/" + c.pool
	for _, p := range pods {
		for _, container := range p.Containers {
			for _, d := range container.Devices {
				if d.Resource == resource && slices.Contains(d.IDs, c.device) {
					return true
				}
			}
		}
	}
	return false
}

// has reports whether a device is one of its pool, as of the last scan.
func (v *inventory) has(c claim) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	d, ok := v.devices[c.device]
	return ok && d.pool.Name == c.pool
}

// claimed takes what kubelet has given to pods, for the scans that follow.
func (v *inventory) claimed(all []claim) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.claims = all
}

// grant notes that kubelet is about to give devices of a pool to a container. From then on no other pool has them.
func (v *inventory) grant(pool string, devices []string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := time.Now()
	taken := v.taken(now)
	for _, id := range devices {
		if _, err := v.lookUp(pool, id); err != nil {
			return err
		}
		if reason := taken.from(pool, id); reason != "" {
			return fmt.Errorf("device %s of pool %s: %s", id, pool, reason)
		}
	}
	for _, id := range devices {
		v.grants = append(v.grants, grant{claim{pool, id}, now})
	}
	return nil
}

// takenDevices says by which pools devices were given away, and to whom, by device and pool.
type takenDevices map[string]map[string]string

// taken returns which devices leases, kubelet's checkpoint and allocations of a moment ago say are given away. The mutex
// is held.
func (v *inventory) taken(now time.Time) takenDevices {
	t := make(takenDevices)
	add := func(c claim, owner string) {
		if t[c.device] == nil {
			t[c.device] = make(map[string]string)
		}
		t[c.device][c.pool] = owner
	}
	for _, c := range v.claims {
		add(c, "a pod")
	}
	v.grants = slices.DeleteFunc(v.grants, func(g grant) bool { return now.Sub(g.at) > allocateGrace })
	for _, g := range v.grants {
		add(g.claim, "a pod")
	}
	for _, l := range v.leases.Leases() {
		if l.State != lease.StateHeld {
			add(claim{l.Settings.Pool, l.Device}, "pod "+l.Pod.String())
		}
	}
	return t
}

// from returns why a pool cannot give a device away, or "": a pod has it from another one.
func (t takenDevices) from(pool, device string) string {
	for _, other := range slices.Sorted(maps.Keys(t[device])) {
		if other != pool {
			return fmt.Sprintf("%s has the queue from pool %s, of which it was before the configuration changed", t[device][other], other)
		}
	}
	return ""
}

// pools returns the pools from which pods have devices.
func (t takenDevices) pools() map[string]bool {
	pools := make(map[string]bool)
	for _, by := range t {
		for pool := range by {
			pools[pool] = true
		}
	}
	return pools
}

// moved finds a device that kubelet's checkpoint says a pod has from a pool that does not have it any more.
func (a *Agent) moved(podUID, pool, id string) (device, bool) {
	cp, _, err := a.kubelet.Checkpoint()
	if err != nil {
		return device{}, false
	}
	p := a.inventory.pool(pool)
	has := slices.ContainsFunc(cp.Entries, func(e kubelet.Entry) bool {
		return e.PodUID == podUID && e.Resource == p.Resource() && slices.Contains(e.DeviceIDs, id)
	})
	if !has {
		return device{}, false
	}
	nic, queue := splitDevice(id)
	link, err := a.nics.LinkByName(nic)
	if err != nil || link.Name != nic || queue < 0 {
		return device{}, false
	}
	return device{p, link, queue}, true
}
