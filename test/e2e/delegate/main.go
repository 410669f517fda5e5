// Command delegate runs on a node of the end-to-end tests and calls afxdp-cni as Multus does for a
// NetworkAttachmentDefinition: through libcni, with the pod in the arguments, and with the device that kubelet gave to the
// pod as the capability deviceID and in the configuration.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/spf13/pflag"

	"github.com/afxdp-project/afxdp/internal/kubelet"
)

// definition is a spec.config of docs/cni.md.
const definition = `{"cniVersion": "1.0.0", "name": "e2e", "type": "afxdp-cni", "capabilities": {"deviceID": true}}`

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "delegate:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	fs := pflag.NewFlagSet("delegate", pflag.ContinueOnError)
	id := fs.String("container-id", "", "of the pod's sandbox")
	netns := fs.String("netns", "", "path of the pod's network namespace")
	namespace := fs.String("namespace", "", "of the pod")
	name := fs.String("name", "", "of the pod")
	uid := fs.String("uid", "", "of the pod")
	resource := fs.String("resource", "", "the definition's annotation k8s.v1.cni.cncf.io/resourceName")
	binDir := fs.String("bin-dir", "/opt/cni/bin", "where the plugin is")
	if err := fs.Parse(args); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	device, err := device(ctx, *namespace, *name, *resource)
	if err != nil {
		return err
	}
	var conf map[string]any
	if err := json.Unmarshal([]byte(definition), &conf); err != nil {
		return err
	}
	conf["deviceID"] = device
	raw, err := json.Marshal(conf)
	if err != nil {
		return err
	}
	network, err := libcni.NetworkPluginConfFromBytes(raw)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cni := libcni.NewCNIConfigWithCacheDir([]string{*binDir}, filepath.Clean(self)+".cache", nil)
	runtime := &libcni.RuntimeConf{
		ContainerID: *id, NetNS: *netns, IfName: "net1",
		Args: [][2]string{
			{"IgnoreUnknown", "true"}, {"K8S_POD_NAMESPACE", *namespace}, {"K8S_POD_NAME", *name},
			{"K8S_POD_INFRA_CONTAINER_ID", *id}, {"K8S_POD_UID", *uid},
		},
		CapabilityArgs: map[string]any{"deviceID": device},
	}
	switch fs.Arg(0) {
	case "add":
		result, err := cni.AddNetwork(ctx, network, runtime)
		if err != nil {
			return err
		}
		return result.PrintTo(os.Stdout)
	case "check":
		return cni.CheckNetwork(ctx, network, runtime)
	case "del":
		return cni.DelNetwork(ctx, network, runtime)
	}
	return errors.New("say what to do: add, check or del")
}

// device returns the first device of a resource that kubelet has given to a pod.
func device(ctx context.Context, namespace, name, resource string) (string, error) {
	client, err := kubelet.NewClient(kubelet.DefaultRoot)
	if err != nil {
		return "", err
	}
	defer func() { _ = client.Close() }()
	containers, _, err := client.PodDevices(ctx, namespace, name)
	if err != nil {
		return "", err
	}
	for _, c := range containers {
		for _, d := range c.Devices {
			if d.Resource == resource && len(d.IDs) > 0 {
				return d.IDs[0], nil
			}
		}
	}
	return "", fmt.Errorf("kubelet has given no %s to %s/%s", resource, namespace, name)
}
