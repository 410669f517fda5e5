package fakekubelet

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// lister serves pod-resources v1.
type lister struct {
	podresources.UnimplementedPodResourcesListerServer
	k *Kubelet
}

func (l *lister) List(
	context.Context, *podresources.ListPodResourcesRequest,
) (*podresources.ListPodResourcesResponse, error) {
	l.k.mu.Lock()
	defer l.k.mu.Unlock()
	l.k.cleanUp()
	resp := &podresources.ListPodResourcesResponse{}
	for _, p := range l.k.pods {
		resp.PodResources = append(resp.PodResources, l.k.podResources(p))
	}
	return resp, nil
}

// Get has no codes of its own, as kubelet's.
func (l *lister) Get(
	ctx context.Context, req *podresources.GetPodResourcesRequest,
) (*podresources.GetPodResourcesResponse, error) {
	switch {
	case l.k.cfg.GetUnimplemented:
		return l.UnimplementedPodResourcesListerServer.Get(ctx, req)
	case l.k.cfg.GetDisabled:
		return nil, fmt.Errorf("PodResources API Get method disabled")
	}
	l.k.mu.Lock()
	defer l.k.mu.Unlock()
	for _, p := range slices.Backward(l.k.pods) { // of one name the newest
		if p.Namespace == req.GetPodNamespace() && p.Name == req.GetPodName() {
			return &podresources.GetPodResourcesResponse{PodResources: l.k.podResources(p)}, nil
		}
	}
	return nil, fmt.Errorf("pod %s in namespace %s not found", req.GetPodName(), req.GetPodNamespace())
}

func (l *lister) GetAllocatableResources(
	context.Context, *podresources.AllocatableResourcesRequest,
) (*podresources.AllocatableResourcesResponse, error) {
	l.k.mu.Lock()
	defer l.k.mu.Unlock()
	resp := &podresources.AllocatableResourcesResponse{}
	for resource, devices := range l.k.devices {
		for id, d := range devices {
			if d.GetHealth() == pluginapi.Healthy {
				resp.Devices = append(resp.Devices, &podresources.ContainerDevices{
					ResourceName: resource, DeviceIds: []string{id}, Topology: topology(d),
				})
			}
		}
	}
	return resp, nil
}

// podResources has one list for each device, as kubelet's answer. k.mu is held.
func (k *Kubelet) podResources(p Pod) *podresources.PodResources {
	out := &podresources.PodResources{Name: p.Name, Namespace: p.Namespace}
	for _, c := range slices.SortedStableFunc(slices.Values(p.Containers), initFirst) {
		if c.Init && !c.Sidecar && !k.cfg.ListInitContainers {
			continue
		}
		resources := &podresources.ContainerResources{Name: c.Name}
		for key, a := range k.allocated {
			if key.uid != p.UID || key.container != c.Name {
				continue
			}
			for _, id := range a.ids() {
				resources.Devices = append(resources.Devices, &podresources.ContainerDevices{
					ResourceName: key.resource, DeviceIds: []string{id}, Topology: topology(k.devices[key.resource][id]),
				})
			}
		}
		out.Containers = append(out.Containers, resources)
	}
	return out
}

func topology(d *pluginapi.Device) *podresources.TopologyInfo {
	if d.GetTopology() == nil {
		return nil
	}
	info := &podresources.TopologyInfo{}
	for _, n := range d.GetTopology().GetNodes() {
		info.Nodes = append(info.Nodes, &podresources.NUMANode{ID: n.GetID()})
	}
	return info
}

// limiter is a token bucket.
type limiter struct {
	rate, burst float64

	mu     sync.Mutex
	tokens float64
	last   time.Time
}

func newLimiter(rate int) *limiter {
	const burst = 10
	return &limiter{rate: float64(rate), burst: burst, tokens: burst, last: time.Now()}
}

func (l *limiter) allow() bool {
	if l.rate == 0 {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.tokens = min(l.burst, l.tokens+l.rate*now.Sub(l.last).Seconds())
	l.last = now
	if l.tokens < 1 {
		return false
	}
	l.tokens--
	return true
}

func (l *limiter) intercept(
	ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler,
) (any, error) {
	if !l.allow() {
		return nil, status.Error(codes.ResourceExhausted, "rejected by rate limit")
	}
	return next(ctx, req)
}
