package kubelet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
)

// Pod names a pod. UID is empty where the container runtime does not tell it.
type Pod struct{ UID, Namespace, Name string }

// Allocation lists the devices of one resource that one container has. Those of two containers may overlap: an app
// container gets devices of the pod's init containers.
type Allocation struct {
	Resource  string
	Container string
	DeviceIDs []string // sorted, each once
}

// Source is where [PodAllocations] looks. [Client] is the real one and describes the methods.
type Source interface {
	PodDevices(ctx context.Context, namespace, name string) (containers []Container, found bool, err error)
	List(ctx context.Context) ([]PodDevices, error)
	Checkpoint() (cp Checkpoint, found bool, err error)
}

type (
	containerResource struct{ resource, container string }
	device            struct{ resource, id string }
)

// PodAllocations returns all devices of a domain that a pod has, sorted by resource and container. No allocation and
// no error means that the pod certainly has none; whenever that cannot be found out it is an error:
//
//   - With a UID the checkpoint's entries for it complete what pod-resources tells, and stand alone for a pod that
//     pod-resources does not list (any more): kubelet writes them before it has the pod's sandbox made.
//   - Without a UID the checkpoint can only show whether pod-resources is complete: it is when each device of the
//     domain in the checkpoint belongs to some pod that pod-resources lists.
//   - Without a checkpoint, which kubelet writes once a device plugin has registered, pod-resources must know the pod.
func PodAllocations(ctx context.Context, src Source, pod Pod, domain string) ([]Allocation, error) {
	fail := func(err error) ([]Allocation, error) {
		return nil, fmt.Errorf("find the %s devices of pod %s/%s: %w", domain, pod.Namespace, pod.Name, err)
	}
	containers, listed, err := src.PodDevices(ctx, pod.Namespace, pod.Name)
	if err != nil {
		return fail(err)
	}
	cp, written, err := src.Checkpoint()
	if err != nil {
		return fail(err)
	}
	// What is missing is written later as well, so a retry can help.
	switch {
	case !listed && !written:
		return fail(errors.New("kubelet's pod-resources API does not know the pod and kubelet has no device checkpoint"))
	case !listed && pod.UID == "":
		return fail(errors.New("kubelet's pod-resources API does not know the pod and the runtime passes no pod UID"))
	}
	found := make(map[containerResource][]string)
	for _, c := range containers {
		for _, d := range c.Devices {
			if InDomain(d.Resource, domain) {
				key := containerResource{d.Resource, c.Name}
				found[key] = append(found[key], d.IDs...)
			}
		}
	}
	entries := slices.DeleteFunc(slices.Clone(cp.Entries), func(e Entry) bool { return !InDomain(e.Resource, domain) })
	if pod.UID == "" {
		err = checkComplete(ctx, src, entries)
	} else {
		err = complete(found, entries, pod.UID)
	}
	if err != nil {
		return fail(err)
	}
	var out []Allocation
	for key, ids := range found {
		if len(ids) > 0 {
			out = append(out, Allocation{key.resource, key.container, sortedSet(ids)})
		}
	}
	slices.SortFunc(out, func(a, b Allocation) int {
		return cmp.Or(cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Container, b.Container))
	})
	return out, nil
}

// complete adds the checkpoint's entries for the pod's UID to what pod-resources found by name. Pod-resources knows
// names only, so it may have told of another pod of that name, which went or comes: the checkpoint gives it away.
func complete(found map[containerResource][]string, entries []Entry, uid string) error {
	owned, other := make(map[device]bool), make(map[device]string)
	for _, e := range entries {
		for _, id := range e.DeviceIDs {
			if e.PodUID == uid {
				owned[device{e.Resource, id}] = true
			} else {
				other[device{e.Resource, id}] = e.PodUID
			}
		}
	}
	for key, ids := range found {
		for _, id := range ids {
			d := device{key.resource, id}
			if owner := other[d]; owner != "" && !owned[d] {
				return fmt.Errorf("kubelet's pod-resources API lists device %s of %s for this name but its checkpoint "+
					"has it for pod UID %s, not %s: try again", id, key.resource, owner, uid)
			}
		}
	}
	for _, e := range entries {
		if e.PodUID == uid {
			key := containerResource{e.Resource, e.Container}
			found[key] = append(found[key], e.DeviceIDs...)
		}
	}
	return nil
}

// checkComplete fails when a device in the checkpoint belongs to no pod that pod-resources lists: it may be an
// ordinary init container's, of any pod.
func checkComplete(ctx context.Context, src Source, entries []Entry) error {
	if len(entries) == 0 {
		return nil
	}
	pods, err := src.List(ctx)
	if err != nil {
		return err
	}
	listed := make(map[device]bool)
	for _, p := range pods {
		for _, c := range p.Containers {
			for _, d := range c.Devices {
				for _, id := range d.IDs {
					listed[device{d.Resource, id}] = true
				}
			}
		}
	}
	for _, e := range entries {
		for _, id := range e.DeviceIDs {
			if !listed[device{e.Resource, id}] {
				return fmt.Errorf("device %s of %s is in kubelet's checkpoint (pod UID %s, container %s) but with no pod "+
					"of its pod-resources API, and the runtime passes no pod UID to tell whose it is: "+
					"use a runtime that sets K8S_POD_UID", id, e.Resource, e.PodUID, e.Container)
			}
		}
	}
	return nil
}
