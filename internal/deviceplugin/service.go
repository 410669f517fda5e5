package deviceplugin

import (
	"context"
	"fmt"
	"path"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

func options() *pluginapi.DevicePluginOptions {
	return &pluginapi.DevicePluginOptions{PreStartRequired: true, GetPreferredAllocationAvailable: true}
}

// GetDevicePluginOptions implements kubelet's API.
func (p *pool) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return options(), nil
}

// ListAndWatch sends each stream the full list at once, known or not yet, and again with each change. Changes that
// follow each other faster than kubelet takes them are sent as one.
func (p *pool) ListAndWatch(
	_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse],
) error {
	p.mu.Lock()
	p.streams++
	p.mu.Unlock()
	p.poke()
	defer func() {
		p.mu.Lock()
		p.streams--
		p.since = time.Now()
		p.mu.Unlock()
		p.poke()
	}()
	for {
		p.mu.Lock()
		list, changed, last := p.list, p.changed, p.withdrawn
		p.mu.Unlock()
		if err := stream.Send(list); err != nil || last {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		case <-p.ending:
			return nil
		}
	}
}

// GetPreferredAllocation implements kubelet's API.
func (p *pool) GetPreferredAllocation(
	_ context.Context, req *pluginapi.PreferredAllocationRequest,
) (*pluginapi.PreferredAllocationResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	resp := &pluginapi.PreferredAllocationResponse{}
	for _, c := range req.GetContainerRequests() {
		size := int(c.GetAllocationSize())
		ids, err := prefer(p.health.find, c.GetAvailableDeviceIDs(), c.GetMustIncludeDeviceIDs(), size)
		if err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "prefer devices of pool %s: %v", p.name, err)
		}
		resp.ContainerResponses = append(resp.ContainerResponses,
			&pluginapi.ContainerPreferredAllocationResponse{DeviceIDs: ids})
	}
	return resp, nil
}

// Allocate implements kubelet's API. All requests are checked before anything is allocated.
func (p *pool) Allocate(ctx context.Context, req *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	for _, c := range req.GetContainerRequests() {
		if err := p.check(c.GetDevicesIds()); err != nil {
			return nil, err
		}
	}
	resp := &pluginapi.AllocateResponse{}
	for _, c := range req.GetContainerRequests() {
		a, err := p.cfg.Backend.Allocate(ctx, p.name, c.GetDevicesIds())
		if err != nil {
			return nil, fmt.Errorf("allocate devices %q of pool %s: %w", c.GetDevicesIds(), p.name, err)
		}
		resp.ContainerResponses = append(resp.ContainerResponses, &pluginapi.ContainerAllocateResponse{
			Envs:   a.Env,
			Mounts: []*pluginapi.Mount{{HostPath: a.HostDir, ContainerPath: a.ContainerDir, ReadOnly: true}},
		})
	}
	return resp, nil
}

// check refuses what cannot be allocated. The health that counts is the present one: a device that is healthy again
// but not yet announced to be can be allocated, one that was lost after kubelet's decision cannot.
func (p *pool) check(ids []string) error {
	if len(ids) == 0 {
		return status.Errorf(codes.InvalidArgument, "allocate of pool %s: no devices asked for", p.name)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, id := range ids {
		d, ok := p.health.find(id)
		switch {
		case !ok:
			return status.Errorf(codes.InvalidArgument, "allocate device %q: pool %s has no such device", id, p.name)
		case slices.Contains(ids[:i], id):
			return status.Errorf(codes.InvalidArgument, "allocate device %q of pool %s: listed twice", id, p.name)
		case !d.Healthy:
			return status.Errorf(codes.FailedPrecondition, "allocate device %q of pool %s: not healthy: %s",
				id, p.name, d.Reason)
		}
	}
	return nil
}

// PreStartContainer implements kubelet's API. Devices are not checked here: a container restarts also while the link
// of one of them is down.
func (p *pool) PreStartContainer(
	ctx context.Context, req *pluginapi.PreStartContainerRequest,
) (*pluginapi.PreStartContainerResponse, error) {
	ids := req.GetDevicesIds()
	if len(ids) == 0 {
		return nil, status.Errorf(codes.InvalidArgument, "start a container of pool %s: no devices named", p.name)
	}
	if err := p.cfg.Backend.PreStart(ctx, p.name, ids); err != nil {
		return nil, fmt.Errorf("start a container with devices %q of pool %s: %w", ids, p.name, err)
	}
	return &pluginapi.PreStartContainerResponse{}, nil
}

// logFailure logs what kubelet is answered with: it shows it to the pod's owner only.
func (p *pool) logFailure(
	ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler,
) (any, error) {
	resp, err := handle(ctx, req)
	if err != nil {
		p.log.Warn("refused a call of kubelet", "call", path.Base(info.FullMethod), "err", err)
	}
	return resp, err
}

// toAPI leaves out the NUMA node where there is none: kubelet would take -1 for a node.
func toAPI(d Device) *pluginapi.Device {
	out := &pluginapi.Device{ID: d.ID, Health: pluginapi.Unhealthy}
	if d.Healthy {
		out.Health = pluginapi.Healthy
	}
	if d.NUMANode >= 0 {
		out.Topology = &pluginapi.TopologyInfo{Nodes: []*pluginapi.NUMANode{{ID: int64(d.NUMANode)}}}
	}
	return out
}
