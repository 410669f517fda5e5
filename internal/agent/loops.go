package agent

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"time"

	"github.com/afxdp-project/afxdp/internal/config"
	"github.com/afxdp-project/afxdp/internal/kubelet"
	"github.com/afxdp-project/afxdp/internal/lease"
)

const (
	// settle is how long changes of the node are collected before it is looked at.
	settle = 100 * time.Millisecond
	// rescanPeriod catches what no notification tells: queues that come and go, a program that was detached.
	rescanPeriod = 10 * time.Second
	// maintainPeriod is for ends of leases that are not done: a held queue is tried again.
	maintainPeriod  = 200 * time.Millisecond
	reconcilePeriod = 30 * time.Second
)

// watch keeps what kubelet knows of the node's devices true, and leased devices tuned.
func (a *Agent) watch(ctx context.Context) error {
	events, err := a.nics.Watch(ctx)
	if err != nil {
		return err
	}
	a.adopt()
	ticker := time.NewTicker(rescanPeriod)
	defer ticker.Stop()
	unclaimed := "" // why claims are not known
	for {
		claims, err := a.claims(ctx)
		switch {
		case err == nil:
			a.inventory.claimed(claims)
			unclaimed = ""
		case err.Error() != unclaimed:
			a.log.Error("find out which devices pods have", "error", err)
			unclaimed = err.Error()
		}
		if devices, err := a.inventory.scan(); err != nil {
			a.log.Error("look at the node's NICs", "error", err)
		} else {
			a.announce(devices)
			a.lookedAtNode(devices)
			a.scanned.Store(true)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-a.rescans:
		case _, ok := <-events:
			if !ok {
				if ctx.Err() != nil {
					return nil
				}
				return errors.New("the kernel's notifications of network devices ended")
			}
			drain(ctx, settle, events)
		}
		if err := a.leases.Retune(); err != nil {
			a.log.Error("tune leased queues again", "error", err)
		}
	}
}

// drain takes what comes in for a while.
func drain[T any](ctx context.Context, d time.Duration, c <-chan T) {
	after := time.After(d)
	for {
		select {
		case _, ok := <-c:
			if !ok {
				return
			}
		case <-after:
			return
		case <-ctx.Done():
			return
		}
	}
}

// adopt serves the allocations of an earlier agent, and those that kubelet's checkpoint has: a pod that runs goes on
// using what it was given. It comes before any device is called healthy.
func (a *Agent) adopt() {
	cp, _, err := a.kubelet.Checkpoint()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		a.log.Error("read kubelet's checkpoint", "error", err)
	}
	if err := a.allocations.adopt(cp, a.inventory.pool); err != nil {
		a.log.Error("serve earlier allocations", "error", err)
	}
}

// keep finishes what ends of leases have left, and ends leases whose pods are gone.
func (a *Agent) keep(ctx context.Context) error {
	reconcile := time.NewTicker(reconcilePeriod)
	defer reconcile.Stop()
	stale := make(map[string]string)
	pending := true // what the journal held
	a.reconcile(ctx, stale)
	for {
		var again <-chan time.Time
		if pending {
			again = time.After(maintainPeriod)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-reconcile.C:
			a.reconcile(ctx, stale)
		case <-a.maintenance:
		case <-again:
		}
		was := pending
		var err error
		if pending, err = a.leases.Maintain(); err != nil {
			a.log.Error("finish the end of leases", "error", err)
		}
		a.teller.notRestored(err)
		if was || pending {
			a.rescan()
		}
	}
}

// reconcile ends leases of pods that kubelet does not know any more: their DEL came while no agent ran. A lease is ended
// when two looks in a row say so; seen has what the last one said.
func (a *Agent) reconcile(ctx context.Context, seen map[string]string) {
	leases := a.leases.Leases()
	cp, found, err := a.kubelet.Checkpoint()
	if err != nil || !found {
		clear(seen)
		return
	}
	if err := a.allocations.prune(cp, time.Now()); err != nil {
		a.log.Error("remove old allocations", "error", err)
	}
	if len(leases) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, reconcilePeriod/2)
	defer cancel()
	pods, err := a.kubelet.List(ctx)
	if err != nil {
		a.log.Warn("compare leases with kubelet", "error", err)
		clear(seen)
		return
	}
	now := make(map[string]string)
	for _, l := range leases {
		if reason, is := staleReason(l, cp, pods); is {
			now[leaseKey(l)] = reason
		}
	}
	err = a.leases.EndStale(func(l lease.Lease) (string, bool) {
		reason, is := now[leaseKey(l)]
		_, before := seen[leaseKey(l)]
		if is && before {
			a.log.Info("lease ended", "device", l.Device, "pod", l.Pod.String(), "reason", reason)
		}
		return reason, is && before
	})
	if err != nil {
		a.log.Error("end stale leases", "error", err)
	}
	clear(seen)
	for k, v := range now {
		seen[k] = v
	}
}

func leaseKey(l lease.Lease) string { return l.Device + " " + l.Pod.UID + " " + l.Sandbox() }

// staleReason says why a lease's pod cannot have the device any more.
func staleReason(l lease.Lease, cp kubelet.Checkpoint, pods []kubelet.PodDevices) (string, bool) {
	resource := config.ResourceDomain + "/" + l.Settings.Pool
	mine, others := false, false
	for _, e := range cp.Entries {
		if e.Resource == resource && slices.Contains(e.DeviceIDs, l.Device) {
			mine = mine || e.PodUID == l.Pod.UID
			others = others || e.PodUID != l.Pod.UID
		}
	}
	if others && !mine {
		return "kubelet has given the device to another pod", true
	}
	listed := slices.ContainsFunc(pods, func(p kubelet.PodDevices) bool {
		return p.Namespace == l.Pod.Namespace && p.Name == l.Pod.Name
	})
	if !listed {
		return "kubelet does not know the pod any more", true
	}
	return "", false
}
