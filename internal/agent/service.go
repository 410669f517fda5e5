package agent

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/afxdp-project/afxdp/internal/agentapi"
	"github.com/afxdp-project/afxdp/internal/lease"
	"github.com/afxdp-project/afxdp/internal/metrics"
)

// service is what the CNI plugin calls.
type service struct {
	agentapi.UnimplementedAgentServer
	*Agent
}

// Attach activates the leases of a pod.
func (s service) Attach(ctx context.Context, r *agentapi.AttachRequest) (_ *agentapi.AttachResponse, err error) {
	defer func(begin time.Time) {
		s.metrics.Done(metrics.Add, begin, err)
		s.refusedAdd(ctx, pod(r.GetPod()), err)
	}(time.Now())
	request, nics, err := s.request(r.GetAttachment(), r.GetPod(), r.GetNetnsCookie(), r.GetAllocations())
	if err != nil {
		return nil, err
	}
	log := s.log.With("pod", request.Pod.String(), "sandbox", request.Attachment.ContainerID, "network", request.Attachment.Network)
	// Kubelet need not have asked this agent: after a reboot it goes on with what its checkpoint says.
	for _, a := range r.GetAllocations() {
		pool, _ := poolOf(a.GetResource())
		if _, err := s.allocations.serve(s.inventory.pool(pool), a.GetDeviceIds()); err != nil {
			return nil, status.Error(codes.Unavailable, err.Error())
		}
	}
	if err := s.leases.Activate(request); err != nil {
		log.Error("activate leases", "error", err)
		return nil, toStatus(err)
	}
	if err := ctx.Err(); err != nil {
		// The plugin has given up and said so to the runtime, whose DEL may have come before this is done.
		return nil, errors.Join(status.FromContextError(err).Err(), s.leases.Detach(request.Attachment))
	}
	log.Info("leases activated", "devices", deviceIDs(request))
	s.rescan()
	return &agentapi.AttachResponse{Nics: nics}, nil
}

// Detach takes out an attachment.
func (s service) Detach(_ context.Context, r *agentapi.DetachRequest) (*agentapi.DetachResponse, error) {
	begin, a := time.Now(), attachment(r.GetAttachment())
	err := s.leases.Detach(a)
	s.metrics.Done(metrics.Del, begin, err)
	if err != nil {
		// The journal has it as ending, and Maintain goes on: the runtime need not try again.
		s.teller.notRestored(err)
		s.log.Error("end leases", "sandbox", a.ContainerID, "network", a.Network, "error", err)
	}
	s.maintain()
	return &agentapi.DetachResponse{}, nil
}

// Check verifies the leases of an attachment.
func (s service) Check(_ context.Context, r *agentapi.CheckRequest) (*agentapi.CheckResponse, error) {
	request, nics, err := s.request(r.GetAttachment(), r.GetPod(), r.GetNetnsCookie(), r.GetAllocations())
	if err != nil {
		return nil, err
	}
	if err := s.leases.Check(request); err != nil {
		return nil, toStatus(err)
	}
	return &agentapi.CheckResponse{Nics: nics}, nil
}

// CollectGarbage takes out the attachments of a network that the runtime does not know.
func (s service) CollectGarbage(_ context.Context, r *agentapi.CollectGarbageRequest) (*agentapi.CollectGarbageResponse, error) {
	var valid []lease.Attachment
	for _, a := range r.GetValid() {
		valid = append(valid, attachment(a))
	}
	if err := s.leases.CollectGarbage(r.GetNetwork(), valid); err != nil {
		s.log.Error("collect garbage", "network", r.GetNetwork(), "error", err)
	}
	s.maintain()
	return &agentapi.CollectGarbageResponse{}, nil
}

// Status succeeds when the agent can serve Attach.
func (s service) Status(context.Context, *agentapi.StatusRequest) (*agentapi.StatusResponse, error) {
	return &agentapi.StatusResponse{Version: s.config.Version}, nil
}

// request translates a request and describes the NICs that it concerns.
func (s service) request(
	at *agentapi.Attachment, p *agentapi.Pod, cookie uint64, allocations []*agentapi.Allocation,
) (lease.Request, []*agentapi.NIC, error) {
	r := lease.Request{
		Pod:         pod(p),
		NetnsCookie: cookie, Attachment: attachment(at),
	}
	var nics []*agentapi.NIC
	for _, a := range allocations {
		pool, ok := poolOf(a.GetResource())
		if !ok {
			return r, nil, status.Errorf(codes.InvalidArgument, "resource %q is not one of ours", a.GetResource())
		}
		for _, id := range a.GetDeviceIds() {
			d, err := s.lookUp(pool, id)
			if err != nil {
				var ok bool
				if d, ok = s.moved(r.Pod.UID, pool, id); !ok {
					return r, nil, status.Error(codes.NotFound, err.Error())
				}
			}
			if l, ok := s.leases.Lease(id); ok && l.State != lease.StateHeld && l.Settings.Pool != pool && l.Pod.UID != r.Pod.UID {
				return r, nil, status.Errorf(codes.FailedPrecondition, "device %s of pool %s: pod %s has the queue from pool %s",
					id, pool, l.Pod, l.Settings.Pool)
			}
			if !slices.ContainsFunc(nics, func(n *agentapi.NIC) bool { return n.Name == d.link.Name }) {
				nics = append(nics, &agentapi.NIC{
					Name: d.link.Name, Mac: d.link.MAC.String(), Mtu: uint32(d.link.MTU), PciId: d.link.PCI,
					SocketPath: s.allocations.socket(a.GetDeviceIds()),
				})
			}
			// An app container may have devices of an init container too.
			if slices.ContainsFunc(r.Devices, func(other lease.DeviceRequest) bool { return other.ID == id }) {
				continue
			}
			r.Devices = append(r.Devices, lease.DeviceRequest{
				Device: lease.Device{ID: id, Link: d.link, Queue: d.queue}, Settings: settings(d.pool),
			})
		}
	}
	return r, nics, nil
}

// lookUp finds a device as it is now; one that the last scan did not have is looked for anew.
func (a *Agent) lookUp(pool, id string) (device, error) {
	d, err := a.inventory.find(pool, id)
	if err == nil {
		if link, lerr := a.nics.LinkByIndex(d.link.Index); lerr == nil && link.Name == d.link.Name {
			d.link = link
			return d, nil
		}
	}
	if _, serr := a.inventory.scan(); serr != nil {
		return d, errors.Join(err, serr)
	}
	return a.inventory.find(pool, id)
}

func pod(p *agentapi.Pod) lease.Pod {
	return lease.Pod{UID: p.GetUid(), Namespace: p.GetNamespace(), Name: p.GetName()}
}

func attachment(a *agentapi.Attachment) lease.Attachment {
	return lease.Attachment{Network: a.GetNetwork(), ContainerID: a.GetContainerId(), Ifname: a.GetIfname()}
}

func deviceIDs(r lease.Request) []string {
	ids := make([]string, len(r.Devices))
	for i, d := range r.Devices {
		ids[i] = d.ID
	}
	return ids
}

// toStatus tells what cannot be met as things stand from what may work a moment later.
func toStatus(err error) error {
	var refused *lease.RefusedError
	if errors.As(err, &refused) {
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	return status.Error(codes.Internal, err.Error())
}
