package main

import (
	"context"
	"fmt"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// networkConfig is what a node has in /etc/cni/net.d: our plugin chained after another one, here the reference plugin
// for lo, since the pod needs no other network.
const networkConfig = `{
  "cniVersion": "1.1.0",
  "name": "demo",
  "plugins": [
    {"type": "loopback"},
    {"type": "afxdp-cni", "kubeletRoot": "` + kubeletRoot + `"}
  ]
}`

// network runs the CNI plugins as a container runtime does.
type network struct {
	cni     *libcni.CNIConfig
	list    *libcni.NetworkConfigList
	runtime *libcni.RuntimeConf
}

func newNetwork(p podName, sandbox string) (*network, error) {
	list, err := libcni.NetworkConfFromBytes([]byte(networkConfig))
	if err != nil {
		return nil, fmt.Errorf("read the network configuration: %w", err)
	}
	return &network{
		cni: libcni.NewCNIConfigWithCacheDir([]string{binDir}, cniCache, nil), list: list,
		runtime: &libcni.RuntimeConf{
			ContainerID: sandbox, NetNS: podNetns, IfName: "eth0",
			Args: [][2]string{
				{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", p.namespace}, {"K8S_POD_NAME", p.name},
				{"K8S_POD_INFRA_CONTAINER_ID", sandbox}, {"K8S_POD_UID", p.uid},
			},
		},
	}, nil
}

// add runs ADD and CHECK of all plugins and returns the interfaces of the result.
func (n *network) add(ctx context.Context) ([]*types100.Interface, error) {
	raw, err := n.cni.AddNetworkList(ctx, n.list, n.runtime)
	if err != nil {
		return nil, fmt.Errorf("CNI ADD: %w", err)
	}
	result, err := types100.NewResultFromResult(raw)
	if err != nil {
		return nil, fmt.Errorf("CNI ADD: read the result: %w", err)
	}
	if err := n.cni.CheckNetworkList(ctx, n.list, n.runtime); err != nil {
		return nil, fmt.Errorf("CNI CHECK after ADD: %w", err)
	}
	return result.Interfaces, nil
}

// del runs DEL of all plugins.
func (n *network) del(ctx context.Context) error {
	if err := n.cni.DelNetworkList(ctx, n.list, n.runtime); err != nil {
		return fmt.Errorf("CNI DEL: %w", err)
	}
	return nil
}
