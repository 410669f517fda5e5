package conflist

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/afxdp-project/afxdp/internal/testutil"
	"github.com/afxdp-project/afxdp/internal/testutil/fakekubelet"
)

// runtime is a node with kubelet, the lists of a main network, the built plugin and no agent, and calls the plugins
// through the library that container runtimes use.
type runtime struct {
	*rig
	*libcni.CNIConfig
	kubelet *fakekubelet.Kubelet
}

// build builds the plugin, and the loopback plugin as the plugins of every main network: it sets the pod's lo up, which
// needs the pod's namespace, and passes a previous result on.
func build(tb testing.TB) string {
	tb.Helper()
	dir := tb.TempDir()
	for name, pkg := range map[string]string{
		"afxdp-cni": "github.com/afxdp-project/afxdp/cmd/afxdp-cni",
		"loopback":  "github.com/containernetworking/plugins/plugins/main/loopback",
	} {
		cmd := exec.Command("go", "build", "-buildvcs=false", "-o", filepath.Join(dir, name), pkg)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			tb.Fatalf("build %s: %v\n%s", name, err, out)
		}
	}
	for _, name := range []string{"ptp", "portmap", "flannel", "calico", "bandwidth", "cilium-cni"} {
		if err := os.Symlink("loopback", filepath.Join(dir, name)); err != nil {
			tb.Fatal(err)
		}
	}
	return dir
}

func newRuntime(tb testing.TB, plugins string) *runtime {
	tb.Helper()
	testutil.NeedKernel(tb)
	root, err := os.MkdirTemp("/run", "cl")
	if err != nil {
		tb.Fatal(err)
	}
	r := &runtime{rig: newRig(tb), CNIConfig: libcni.NewCNIConfigWithCacheDir([]string{plugins}, tb.TempDir(), nil)}
	changed := r.config.Changed
	r.Keeper = New(Config{
		Dir: r.dir, BinDir: plugins, AgentSocket: filepath.Join(root, "agent.sock"), KubeletRoot: root, Changed: changed,
	})
	if r.kubelet, err = fakekubelet.Start(fakekubelet.Config{Root: root}); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = errors.Join(r.kubelet.Close(), os.RemoveAll(root)) })
	for uid, devices := range map[string][]string{"plain": nil, "fast": {"eth1-q0", "eth1-q1"}} {
		pod := fakekubelet.Pod{UID: uid, Namespace: "ns", Name: uid, Containers: []fakekubelet.Container{{Name: "app"}}}
		if err := r.kubelet.AddPod(tb.Context(), pod); err != nil {
			tb.Fatal(err)
		}
		if devices == nil {
			continue
		}
		if err := r.kubelet.Grant(uid, "app", "afxdp.io/fast", devices...); err != nil {
			tb.Fatal(err)
		}
	}
	return r
}

// load loads the first list as containerd does.
func (r *runtime) load() *libcni.NetworkConfigList {
	r.tb.Helper()
	files, err := libcni.ConfFiles(r.dir, []string{".conf", ".conflist", ".json"})
	if err != nil || len(files) == 0 {
		r.tb.Fatal(files, err)
	}
	list, err := libcni.ConfListFromFile(files[0])
	if err != nil {
		r.tb.Fatal(err)
	}
	return list
}

func sandbox(uid, netns string) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{
		ContainerID: "sandbox-" + uid, NetNS: netns, IfName: "eth0",
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "ns"}, {"K8S_POD_NAME", uid},
			{"K8S_POD_INFRA_CONTAINER_ID", "sandbox-" + uid}, {"K8S_POD_UID", uid}},
	}
}

func result(tb testing.TB, res types.Result) (v map[string]any) {
	tb.Helper()
	text, err := json.Marshal(res)
	if err == nil {
		err = json.Unmarshal(text, &v)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return v
}

// Invariant 7: a node's network never depends on the agent, which is down here.
func TestPodsOfEveryMainNetworkStartWithoutTheAgent(t *testing.T) {
	plugins := build(t)
	for _, file := range []string{"10-kindnet.conflist", "10-flannel.conflist", "10-calico.conflist", "05-cilium.conflist"} {
		sample, err := os.ReadFile(filepath.Join("testdata", file))
		if err != nil {
			t.Fatal(err)
		}
		for _, version := range []string{"0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
			t.Run(file+" "+version, func(t *testing.T) {
				text := bytes.ReplaceAll(bytes.ReplaceAll(sample, []byte("0.3.0"), []byte(version)), []byte("0.3.1"), []byte(version))
				r := newRuntime(t, plugins)
				r.write(file, string(text))
				podsStart(t, r, version)
				if err := r.Remove(); err != nil || r.read(file) != string(text) {
					t.Errorf("taken out: %v\n%s", err, r.read(file))
				}
			})
		}
	}
}

func podsStart(t *testing.T, r *runtime, version string) {
	t.Helper()
	ctx, netns := t.Context(), testutil.NewNetns(t).Path()
	before := r.load()
	unchained, err := r.AddNetworkList(ctx, before, sandbox("plain", netns))
	if err != nil {
		t.Fatal(err)
	}
	if r.look(time.Now()); !r.Status().Chained {
		t.Fatalf("status %+v", r.Status())
	}
	list := r.load()
	if len(list.Plugins) != len(before.Plugins)+1 || list.CNIVersion != version {
		t.Fatalf("%d plugins of version %s", len(list.Plugins), list.CNIVersion)
	}
	if _, err := r.ValidateNetworkList(ctx, list); err != nil {
		t.Errorf("CRI-O would skip it: %v", err)
	}
	plain, fast := sandbox("plain", netns), sandbox("fast", testutil.NewNetns(t).Path())
	chained, err := r.AddNetworkList(ctx, list, plain)
	if err != nil {
		t.Fatalf("ADD of a pod without devices: %v", err)
	}
	if got, want := result(t, chained), result(t, unchained); !reflect.DeepEqual(got, want) || chained.Version() != version {
		t.Errorf("result %v, want the main network's %v", got, want)
	}
	// The specification has CHECK since 0.4.0.
	if err := r.CheckNetworkList(ctx, list, plain); errors.Is(err, libcni.ErrorCheckNotSupp) != (version < "0.4.0") || version >= "0.4.0" && err != nil {
		t.Errorf("CHECK: %v", err)
	}
	var cniErr *types.Error
	if _, err := r.AddNetworkList(ctx, list, fast); !errors.As(err, &cniErr) || cniErr.Code != types.ErrTryAgainLater {
		t.Errorf("ADD of a pod with devices: %v, want error %d", err, types.ErrTryAgainLater)
	}
	for range 2 {
		if err := r.DelNetworkList(ctx, list, fast); err != nil {
			t.Errorf("DEL of a pod with devices: %v", err)
		}
	}
	if err := r.GetStatusNetworkList(ctx, list); err != nil {
		t.Errorf("STATUS: %v", err)
	}
	valid := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: plain.ContainerID, IfName: plain.IfName}}}
	if err := r.GCNetworkList(ctx, list, valid); err != nil {
		t.Errorf("GC: %v", err)
	}
	for range 2 {
		if err := r.DelNetworkList(ctx, list, plain); err != nil {
			t.Errorf("DEL: %v", err)
		}
	}
}

// A pod that was started with the entry in the list is deleted after it was taken out: by the list as it is now
// (containerd), or as it was (CRI-O and Multus, which take it from the library's cache).
func TestPodsAreDeletedAfterTheEntryWasTakenOut(t *testing.T) {
	plugins := build(t)
	r := newRuntime(t, plugins)
	r.write("10-a.conflist", strings.Replace(conflist("a", "1.0.0", `{"type": "portmap"}`), `"main"`, `"ptp"`, 1))
	r.look(time.Now())
	ctx, chained := t.Context(), r.load()
	add := func() *libcni.RuntimeConf {
		t.Helper()
		rt := sandbox("plain", testutil.NewNetns(t).Path())
		if _, err := r.AddNetworkList(ctx, chained, rt); err != nil {
			t.Fatal(err)
		}
		return rt
	}
	cached := func(rt *libcni.RuntimeConf) (*libcni.NetworkConfigList, *libcni.RuntimeConf) {
		t.Helper()
		text, was, err := r.GetNetworkListCachedConfig(&libcni.NetworkConfigList{Name: "a"}, rt)
		if err != nil {
			t.Fatal(err)
		}
		list, err := libcni.ConfListFromBytes(text)
		if err != nil || len(list.Plugins) != 3 {
			t.Fatal(list, err)
		}
		return list, was
	}
	then := add()
	if err := r.Remove(); err != nil {
		t.Fatal(err)
	}
	list, rt := cached(then)
	if err := r.DelNetworkList(ctx, list, rt); err != nil {
		t.Errorf("DEL as it was: %v", err)
	}
	now, before := add(), add()
	if err := os.Remove(filepath.Join(plugins, "afxdp-cni")); err != nil {
		t.Fatal(err)
	}
	list, rt = cached(before)
	if err := r.DelNetworkList(ctx, list, rt); err == nil || !strings.Contains(err.Error(), `failed to find plugin "afxdp-cni"`) {
		t.Errorf("DEL as it was, without the binary: %v; then an uninstallation may remove it", err)
	}
	if err := r.DelNetworkList(ctx, r.load(), now); err != nil {
		t.Errorf("DEL as it is now, without the binary: %v", err)
	}
}

// BenchmarkAddOfAPodWithoutDevices is what every pod of the node pays: the plugin alone, started by the runtime, with
// kubelet asked.
func BenchmarkAddOfAPodWithoutDevices(b *testing.B) {
	r := newRuntime(b, build(b))
	list, err := libcni.ConfListFromBytes(fmt.Appendf(nil, `{"name": "a", "cniVersion": "1.0.0", "plugins": [%s]}`, render(r.entry)))
	if err != nil {
		b.Fatal(err)
	}
	rt := sandbox("plain", testutil.NewNetns(b).Path())
	var all []time.Duration
	for b.Loop() {
		start := time.Now()
		if _, err := r.AddNetworkList(b.Context(), list, rt); err != nil {
			b.Fatal(err)
		}
		all = append(all, time.Since(start))
	}
	slices.Sort(all)
	b.ReportMetric(float64(all[len(all)/2].Microseconds()), "median-µs")
}
