package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/afxdp-project/afxdp/internal/deviceplugin"
	"github.com/afxdp-project/afxdp/internal/kubelet"
	"github.com/afxdp-project/afxdp/internal/lease"
	"github.com/afxdp-project/afxdp/internal/metrics"
)

// Allocate has the socket of an allocation listen before kubelet hears of it. Nothing of a NIC is changed yet.
func (a *Agent) Allocate(_ context.Context, pool string, devices []string) (_ deviceplugin.Allocation, err error) {
	defer func(begin time.Time) { a.metrics.Done(metrics.Allocate, begin, err) }(time.Now())
	p := a.inventory.pool(pool)
	if err := a.inventory.grant(pool, devices); err != nil {
		return deviceplugin.Allocation{}, err
	}
	dir, err := a.allocations.serve(p, devices)
	if err != nil {
		return deviceplugin.Allocation{}, err
	}
	a.log.Info("devices allocated", "pool", pool, "devices", devices)
	return deviceplugin.Allocation{
		HostDir: dir, ContainerDir: p.MountPath(), Env: map[string]string{p.EnvName(): p.MountPath()},
	}, nil
}

// PreStart lets a container start only with leases in force for all its devices: without them its resource would be
// dead, in silence.
func (a *Agent) PreStart(_ context.Context, pool string, devices []string) (err error) {
	p := a.inventory.pool(pool)
	var owners []string
	defer func() {
		if err != nil {
			a.refusedStart(p.Resource(), devices, owners, err)
		}
	}()
	cp, _, err := a.kubelet.Checkpoint()
	if err != nil {
		return err
	}
	owners = ownersOf(cp, p.Resource(), devices)
	if len(owners) == 0 {
		return fmt.Errorf("kubelet's checkpoint does not say to which pod %s belong", strings.Join(devices, ", "))
	}
	for _, uid := range owners {
		if a.covers(uid, devices) {
			_, err := a.allocations.serve(p, devices)
			return err
		}
	}
	return fmt.Errorf("%s of pool %s are not leased to pod %s: the CNI plugin afxdp-cni was not called for this pod "+
		"(put it into the node's CNI configuration, or attach it with Multus); host-network pods are not supported",
		strings.Join(devices, ", "), pool, strings.Join(owners, ", "))
}

// ownersOf returns the UIDs of the pods that have exactly these devices in one container.
func ownersOf(cp kubelet.Checkpoint, resource string, devices []string) []string {
	want := slices.Sorted(slices.Values(devices))
	var uids []string
	for _, e := range cp.Entries {
		if e.Resource == resource && slices.Equal(slices.Sorted(slices.Values(e.DeviceIDs)), want) && !slices.Contains(uids, e.PodUID) {
			uids = append(uids, e.PodUID)
		}
	}
	return uids
}

// covers reports whether a pod has active leases of all devices.
func (a *Agent) covers(podUID string, devices []string) bool {
	return !slices.ContainsFunc(devices, func(id string) bool {
		l, ok := a.leases.Lease(id)
		return !ok || l.State != lease.StateActive || l.Pod.UID != podUID
	})
}
