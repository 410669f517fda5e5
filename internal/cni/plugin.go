package cni

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/afxdp-project/afxdp/internal/agentapi"
	"github.com/afxdp-project/afxdp/internal/config"
	"github.com/afxdp-project/afxdp/internal/kubelet"
)

// supported lists the versions of the CNI specification that the plugin speaks. The main networks of many nodes have
// configurations of 0.3.1 or 0.3.0, and a chained plugin that refused those would refuse every pod of the node.
var supported = version.PluginSupports("0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")

// Plugin answers CNI requests. Its methods return a [types.Error] with a CNI code wherever the cause is known.
type Plugin struct {
	// Devices lists those of the project's devices that the kubelet with a root directory gave to a pod. None and no
	// error means that the pod certainly has none. Nil asks kubelet.
	Devices func(ctx context.Context, kubeletRoot string, pod kubelet.Pod) ([]kubelet.Allocation, error)

	// ShortWait bounds the calls to the agent that are made for pods without our devices too, DEL and STATUS, so that
	// an agent that hangs does not hold up a node. 0 is 5 seconds.
	ShortWait time.Duration

	Stdout io.Writer // gets an ADD's result and nothing else
	Stderr io.Writer // gets what DEL and GC leave undone without failing
}

// short returns a context for a call that a node must not wait for long.
func (p *Plugin) short(conf *netConf) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), min(conf.Timeout, cmp.Or(p.ShortWait, 5*time.Second)))
}

// request is an ADD or CHECK of a container whose pod has devices of ours.
type request struct {
	conf        *netConf
	attachment  *agentapi.Attachment
	pod         *agentapi.Pod
	cookie      uint64
	allocations []*agentapi.Allocation
	prev        *result
}

// resolve finds out what an ADD or CHECK is about. Without an error it returns a request, or nil for a container that
// has no device of ours and is none of our business. Nothing has been changed and the agent has not been asked.
func (p *Plugin) resolve(ctx context.Context, conf *netConf, args *skel.CmdArgs) (*request, error) {
	pod, err := parsePod(args.Args)
	switch {
	case err != nil:
		return nil, err
	case pod == nil && conf.DeviceID != "":
		return nil, types.NewError(types.ErrInvalidEnvironmentVariables,
			fmt.Sprintf("deviceID %q is given but CNI_ARGS name no pod", conf.DeviceID),
			"K8S_POD_NAMESPACE, K8S_POD_NAME and K8S_POD_UID are needed to find the pod's devices")
	case pod == nil:
		return nil, nil
	}
	find := p.Devices
	if find == nil {
		find = kubeletDevices
	}
	allocations, err := find(ctx, conf.KubeletRoot, *pod)
	if err != nil {
		// Never taken for "none": the pod would run without its queues.
		return nil, types.NewError(types.ErrTryAgainLater, err.Error(),
			"is kubelet running with the root directory "+conf.KubeletRoot+"? Else set kubeletRoot")
	}
	if conf.DeviceID != "" && !slices.ContainsFunc(allocations, func(a kubelet.Allocation) bool {
		return slices.Contains(a.DeviceIDs, conf.DeviceID)
	}) {
		return nil, types.NewError(codeUnknownDevice,
			fmt.Sprintf("deviceID %q is not among the %s devices of pod %s/%s",
				conf.DeviceID, config.ResourceDomain, pod.Namespace, pod.Name),
			"does k8s.v1.cni.cncf.io/resourceName of the NetworkAttachmentDefinition name the resource that the pod requests?")
	}
	if len(allocations) == 0 {
		return nil, nil
	}
	if pod.UID == "" {
		return nil, types.NewError(types.ErrInvalidEnvironmentVariables,
			fmt.Sprintf("pod %s/%s has %s devices but CNI_ARGS lack K8S_POD_UID",
				pod.Namespace, pod.Name, config.ResourceDomain),
			"a lease belongs to a pod's UID; use a container runtime that passes it")
	}
	r := &request{
		conf:       conf,
		attachment: attachment(conf, args),
		pod:        &agentapi.Pod{Uid: pod.UID, Namespace: pod.Namespace, Name: pod.Name},
	}
	for _, a := range allocations {
		r.allocations = append(r.allocations,
			&agentapi.Allocation{Resource: a.Resource, Container: a.Container, DeviceIds: a.DeviceIDs})
	}
	if r.prev, err = parseResult(conf); err != nil {
		return nil, err
	}
	if r.cookie, err = podCookie(args.Netns); err != nil {
		return nil, err
	}
	return r, nil
}

func attachment(conf *netConf, args *skel.CmdArgs) *agentapi.Attachment {
	return &agentapi.Attachment{Network: conf.Name, ContainerId: args.ContainerID, Ifname: args.IfName}
}

// kubeletDevices asks kubelet for a pod's devices.
func kubeletDevices(ctx context.Context, root string, pod kubelet.Pod) ([]kubelet.Allocation, error) {
	client, err := kubelet.NewClient(root)
	if err != nil {
		return nil, err
	}
	defer func() { _ = client.Close() }()
	return kubelet.PodAllocations(ctx, client, pod, config.ResourceDomain)
}
