package cni

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/afxdp-project/afxdp/internal/testutil/fakekubelet"
)

// node has the built plugin, a main plugin before it, kubelet and the agent, and runs them as a container runtime does.
type node struct {
	dir       string // of the plugins
	cni       *libcni.CNIConfig
	stderr    bytes.Buffer
	kubelet   *fakekubelet.Kubelet
	root      string
	agent     *fakeAgent
	stopAgent func()
}

// buildPlugin builds the program as the Makefile does.
func buildPlugin(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "afxdp-cni")
	cmd := exec.Command("go", "build", "-buildvcs=false", "-ldflags", "-X main.version=v9.8.7", "-o", bin,
		"github.com/afxdp-project/afxdp/cmd/afxdp-cni")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build afxdp-cni: %v\n%s", err, out)
	}
	return bin
}

// mainPlugin stands for bridge and the like: it gives the pod an address, in the version of the configuration.
const mainPlugin = `#!/bin/sh
conf=$(cat)
version=$(expr "$conf" : '.*"cniVersion":"\([0-9.]*\)"')
[ "$CNI_COMMAND" = ADD ] || exit 0
echo '{"cniVersion":"'$version'","interfaces":[{"name":"eth0","sandbox":"'$CNI_NETNS'"}],'
echo '"ips":[{"version":"4","interface":0,"address":"10.1.0.5/16"}]}'
`

func newNode(t *testing.T, bin string, cfg fakekubelet.Config) *node {
	t.Helper()
	n := &node{dir: t.TempDir(), root: tempDir(t)}
	if err := os.Symlink(bin, filepath.Join(n.dir, "afxdp-cni")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(n.dir, "main"), []byte(mainPlugin), 0o700); err != nil {
		t.Fatal(err)
	}
	n.cni = libcni.NewCNIConfigWithCacheDir([]string{n.dir}, t.TempDir(), &invoke.DefaultExec{
		RawExec: &invoke.RawExec{Stderr: &n.stderr}, PluginDecoder: version.PluginDecoder{},
	})
	cfg.Root = n.root
	k, err := fakekubelet.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.Close() })
	n.kubelet = k
	n.agent, n.stopAgent = startAgent(t)
	return n
}

// addPod puts a pod with devices, which may be none, on the node.
func (n *node) addPod(t *testing.T, uid string, ids ...string) {
	t.Helper()
	pod := fakekubelet.Pod{
		UID: uid, Namespace: "ns", Name: "pod-" + uid, Containers: []fakekubelet.Container{{Name: "app"}},
	}
	if err := n.kubelet.AddPod(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if len(ids) > 0 {
		if err := n.kubelet.Grant(uid, "app", "afxdp.io/fast", ids...); err != nil {
			t.Fatal(err)
		}
	}
}

func (n *node) plugin(more string) string {
	return fmt.Sprintf(`{"type":"afxdp-cni","agentSocket":%q,"kubeletRoot":%q,"timeout":"2m"%s}`,
		n.agent.socket, n.root, more)
}

// chain is a conflist with the plugin after the main one; more is appended to the plugin's keys.
func (n *node) chain(t *testing.T, version, more string) *libcni.NetworkConfigList {
	t.Helper()
	list, err := libcni.ConfListFromBytes(fmt.Appendf(nil,
		`{"cniVersion":%q,"name":"net","plugins":[{"type":"main"},%s]}`, version, n.plugin(more)))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func runtimeConf(uid, netns string) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{
		ContainerID: "sandbox-" + uid, NetNS: netns, IfName: "eth0",
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "ns"}, {"K8S_POD_NAME", "pod-" + uid},
			{"K8S_POD_INFRA_CONTAINER_ID", "sandbox-" + uid}, {"K8S_POD_UID", uid}},
	}
}

// run runs a verb of the plugin alone, with its stderr of its own.
func (n *node) run(
	ctx context.Context, bin, verb string, list *libcni.NetworkConfigList, rt *libcni.RuntimeConf,
) ([]byte, error) {
	conf, err := libcni.InjectConf(list.Plugins[1], map[string]any{"name": list.Name, "cniVersion": list.CNIVersion})
	if err != nil {
		return nil, err
	}
	args := &invoke.Args{
		Command: verb, ContainerID: rt.ContainerID, NetNS: rt.NetNS, PluginArgs: rt.Args, IfName: rt.IfName, Path: n.dir,
	}
	return (&invoke.RawExec{}).ExecPlugin(ctx, bin, conf.Bytes, args.AsEnv())
}
