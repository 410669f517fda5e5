package fakekubelet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// Container is a container of a pod.
type Container struct {
	Name      string
	Init      bool           // an init container: its devices are passed on to those after it
	Sidecar   bool           // with Init: one that is restarted always, which keeps its devices
	Resources map[string]int // the limits, by resource
}

// Pod is a pod on the node. Init containers come before the others whatever their order here.
type Pod struct {
	UID, Namespace, Name string
	Containers           []Container
}

type allocationKey struct{ uid, container, resource string }

type allocation struct {
	byNode   map[int64][]string // device ids by NUMA node, -1: none
	response *pluginapi.ContainerAllocateResponse
}

// Started is how the runtime starts a container.
type Started struct {
	Env    map[string]string
	Mounts []*pluginapi.Mount
}

// AddPod admits a pod: it allocates the devices of each of its containers and writes the checkpoint. A pod that cannot
// have its devices is not added.
func (k *Kubelet) AddPod(ctx context.Context, pod Pod) error {
	k.admission.Lock()
	defer k.admission.Unlock()
	k.mu.Lock()
	for _, p := range k.pods {
		if p.UID == pod.UID {
			k.mu.Unlock()
			return fmt.Errorf("add pod %s/%s: UID %s is on the node already", pod.Namespace, pod.Name, pod.UID)
		}
	}
	k.pods = append(k.pods, pod)
	k.mu.Unlock()
	reusable := make(map[string]map[string]bool) // resource, id
	for _, c := range slices.SortedStableFunc(slices.Values(pod.Containers), initFirst) {
		if err := k.allocate(ctx, pod, c, reusable); err != nil {
			return errors.Join(fmt.Errorf("admit pod %s/%s: container %s: %w", pod.Namespace, pod.Name, c.Name, err),
				k.RemovePod(pod.UID))
		}
	}
	return nil
}

func initFirst(a, b Container) int {
	switch {
	case a.Init == b.Init:
		return 0
	case a.Init:
		return -1
	}
	return 1
}

// RemovePod takes a pod off the node. As with kubelet its devices are free again, and gone from the checkpoint, only
// when the next pod is admitted or pod-resources is asked for its list, and the checkpoint is written next.
func (k *Kubelet) RemovePod(uid string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	before := len(k.pods)
	k.pods = slices.DeleteFunc(k.pods, func(p Pod) bool { return p.UID == uid })
	if len(k.pods) == before {
		return fmt.Errorf("remove pod: UID %s is not on the node", uid)
	}
	return nil
}

// cleanUp frees the devices of pods that are gone. k.mu is held.
func (k *Kubelet) cleanUp() {
	maps.DeleteFunc(k.allocated, func(key allocationKey, _ allocation) bool {
		return !slices.ContainsFunc(k.pods, func(p Pod) bool { return p.UID == key.uid })
	})
}

// allocate does what kubelet does for one container. reusable has the devices of the init containers before it.
func (k *Kubelet) allocate(ctx context.Context, pod Pod, c Container, reusable map[string]map[string]bool) error {
	for _, resource := range slices.Sorted(maps.Keys(c.Resources)) {
		k.mu.Lock()
		k.cleanUp()
		plugin := k.clients[resource]
		k.mu.Unlock()
		if plugin == nil {
			return fmt.Errorf("cannot allocate unregistered device %s", resource)
		}
		ids, err := k.choose(ctx, plugin, resource, c.Resources[resource], reusable[resource])
		if err != nil {
			return err
		}
		resp, err := plugin.api.Allocate(ctx, &pluginapi.AllocateRequest{
			ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: ids}},
		})
		if err != nil {
			return err
		}
		if len(resp.GetContainerResponses()) == 0 {
			return fmt.Errorf("no containers in the allocation response for %s", resource)
		}
		k.insert(allocationKey{pod.UID, c.Name, resource}, ids, resp.GetContainerResponses()[0])
		if reusable[resource] == nil {
			reusable[resource] = make(map[string]bool)
		}
		for _, id := range ids {
			if c.Init && !c.Sidecar {
				reusable[resource][id] = true
			} else {
				delete(reusable[resource], id)
			}
		}
	}
	if len(c.Resources) == 0 {
		return nil
	}
	return k.WriteCheckpoint()
}

// choose picks n devices: first those of earlier init containers, then what the plugin prefers, then any.
func (k *Kubelet) choose(
	ctx context.Context, plugin *client, resource string, n int, reusable map[string]bool,
) ([]string, error) {
	chosen := slices.Sorted(maps.Keys(reusable))
	if len(chosen) >= n {
		return chosen[:n], nil
	}
	available := k.available(resource)
	if needed := n - len(chosen); len(available) < needed {
		return nil, fmt.Errorf("requested number of devices unavailable for %s. Requested: %d, Available: %d",
			resource, needed, len(available))
	}
	order := available
	if plugin.options.GetGetPreferredAllocationAvailable() {
		resp, err := plugin.api.GetPreferredAllocation(ctx, &pluginapi.PreferredAllocationRequest{
			ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{{
				AvailableDeviceIDs:   slices.Concat(available, chosen),
				MustIncludeDeviceIDs: chosen,
				AllocationSize:       int32(n),
			}},
		})
		if err != nil {
			return nil, fmt.Errorf("device plugin GetPreferredAllocation rpc failed with err: %w", err)
		}
		if len(resp.GetContainerResponses()) > 0 {
			order = slices.Concat(resp.GetContainerResponses()[0].GetDeviceIDs(), available)
		}
	}
	for _, id := range order {
		if len(chosen) < n && slices.Contains(available, id) && !slices.Contains(chosen, id) {
			chosen = append(chosen, id)
		}
	}
	return chosen, nil
}

// available returns the ids of a resource's devices that are healthy and nobody's.
func (k *Kubelet) available(resource string) []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	taken := make(map[string]bool)
	for key, a := range k.allocated {
		if key.resource == resource {
			for _, id := range a.ids() {
				taken[id] = true
			}
		}
	}
	var out []string
	for id, d := range k.devices[resource] {
		if d.GetHealth() == pluginapi.Healthy && !taken[id] {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

func (k *Kubelet) insert(key allocationKey, ids []string, resp *pluginapi.ContainerAllocateResponse) {
	k.mu.Lock()
	defer k.mu.Unlock()
	byNode := make(map[int64][]string)
	for _, id := range ids {
		nodes := k.devices[key.resource][id].GetTopology().GetNodes()
		if len(nodes) == 0 {
			byNode[-1] = append(byNode[-1], id)
		}
		for _, node := range nodes {
			byNode[node.GetID()] = append(byNode[node.GetID()], id)
		}
	}
	k.allocated[key] = allocation{byNode, resp}
	k.broadcast()
}

func (a allocation) ids() []string {
	return slices.Compact(slices.Sorted(slices.Values(slices.Concat(slices.Collect(maps.Values(a.byNode))...))))
}

// Allocated returns the ids of the devices that a container has of a resource, sorted.
func (k *Kubelet) Allocated(uid, container, resource string) []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.allocated[allocationKey{uid, container, resource}].ids()
}

// Grant gives devices to a container of a pod that was added, without asking a plugin, and writes the checkpoint.
func (k *Kubelet) Grant(uid, container, resource string, ids ...string) error {
	k.insert(allocationKey{uid, container, resource}, ids, &pluginapi.ContainerAllocateResponse{})
	return k.WriteCheckpoint()
}

// StartContainer does what kubelet does before each start of a container: it calls PreStartContainer of each plugin
// that wants it, with the container's ids, and hands out what Allocate answered when the pod was admitted.
func (k *Kubelet) StartContainer(ctx context.Context, uid, container string) (Started, error) {
	started := Started{Env: make(map[string]string)}
	k.mu.Lock()
	own := make(map[string]allocation)
	for key, a := range k.allocated {
		if key.uid == uid && key.container == container {
			own[key.resource] = a
		}
	}
	k.mu.Unlock()
	for _, resource := range slices.Sorted(maps.Keys(own)) {
		k.mu.Lock()
		plugin := k.clients[resource]
		k.mu.Unlock()
		if plugin == nil {
			return Started{}, fmt.Errorf("endpoint not found in cache for a registered resource: %s", resource)
		}
		if plugin.options.GetPreStartRequired() {
			ctx, cancel := context.WithTimeout(ctx, pluginapi.KubeletPreStartContainerRPCTimeoutInSecs*time.Second)
			_, err := plugin.api.PreStartContainer(ctx, &pluginapi.PreStartContainerRequest{DevicesIds: own[resource].ids()})
			cancel()
			if err != nil {
				return Started{}, fmt.Errorf("device plugin PreStartContainer rpc failed with err: %w", err)
			}
		}
		maps.Copy(started.Env, own[resource].response.GetEnvs())
		started.Mounts = append(started.Mounts, own[resource].response.GetMounts()...)
	}
	return started, nil
}
