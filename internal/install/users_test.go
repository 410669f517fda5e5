package install

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
)

// runtime is a container runtime with a network of two plugins, of which ours is the last.
type runtime struct {
	*testing.T
	bin, conf, cache string
	cni              *libcni.CNIConfig
}

const (
	chained = `{"cniVersion": "1.0.0", "name": "main", "plugins": [{"type": "main"}, {"type": "afxdp-cni"}]}`
	alone   = `{"cniVersion": "1.0.0", "name": "main", "plugins": [{"type": "main"}]}`
	extra   = `{"cniVersion": "1.0.0", "name": "extra", "plugins": [{"type": "afxdp-cni"}]}`
)

func newRuntime(t *testing.T) *runtime {
	dir := t.TempDir()
	r := &runtime{T: t, bin: filepath.Join(dir, "bin"), conf: filepath.Join(dir, "conf"), cache: filepath.Join(dir, "cache")}
	for _, d := range []string{r.bin, r.conf, r.cache} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	plugin := "#!/bin/sh\ncat >/dev/null\n[ $CNI_COMMAND = DEL ] || echo '{\"cniVersion\": \"1.0.0\"}'\n"
	put(t, filepath.Join(r.bin, "main"), plugin, 0o755)
	put(t, filepath.Join(r.bin, PluginName), plugin, 0o755)
	r.configure(chained)
	r.cni = libcni.NewCNIConfigWithCacheDir([]string{r.bin}, r.cache, nil)
	return r
}

func (r *runtime) configure(config string) {
	put(r.T, filepath.Join(r.conf, "10-main.conflist"), config, 0o600)
}

func (r *runtime) list(config string) *libcni.NetworkConfigList {
	r.Helper()
	l, err := libcni.ConfListFromBytes([]byte(config))
	if err != nil {
		r.Fatal(err)
	}
	return l
}

func pod(name string) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: "sandbox-" + name, NetNS: "/proc/self/ns/net", IfName: "eth0", Args: [][2]string{
		{"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", name},
	}}
}

func (r *runtime) add(name, config string) {
	r.Helper()
	if _, err := r.cni.AddNetworkList(r.Context(), r.list(config), pod(name)); err != nil {
		r.Fatal(err)
	}
}

// delAsOf calls DEL as CRI-O and Multus do: with the configuration of the ADD.
func (r *runtime) delAsOf(name, config string) error {
	r.Helper()
	cached, rt, err := r.cni.GetNetworkListCachedConfig(r.list(config), pod(name))
	if err != nil || cached == nil {
		r.Fatalf("cached configuration: %q, %v", cached, err)
	}
	return r.cni.DelNetworkList(r.Context(), r.list(string(cached)), rt)
}

func (r *runtime) users(name string) []string {
	r.Helper()
	users, err := Users{r.cache, r.conf, name}.Find()
	if err != nil {
		r.Fatal(err)
	}
	return users
}

func (r *runtime) want(runtime string, users ...string) {
	r.Helper()
	if got := r.users(runtime); strings.Join(got, "; ") != strings.Join(users, "; ") {
		r.Errorf("users with %q: %q, want %q", runtime, got, users)
	}
}

const (
	containerd = "containerd://2.3.0"
	crio       = "cri-o://1.33.0"
)

// A pod whose DEL fails for the lack of the plugin hangs in Terminating.
func TestPluginIsNeededForTheDELOfPodsThatRun(t *testing.T) {
	r := newRuntime(t)
	r.add("a", chained)
	configured := "the network configuration " + filepath.Join(r.conf, "10-main.conflist")
	r.want(containerd, configured)
	r.want(crio, configured, "pod default/a in network main")
	r.configure(alone) // taken out
	r.want(containerd)
	r.want(crio, "pod default/a in network main")
	r.want("", "pod default/a in network main")

	if err := RemovePlugin(r.bin); err != nil {
		t.Fatal(err)
	}
	if err := r.delAsOf("a", alone); err == nil || !strings.Contains(err.Error(), `failed to find plugin "afxdp-cni"`) {
		t.Errorf("DEL with the configuration of the ADD: %v; does it need the plugin no more?", err)
	}
	if err := r.cni.DelNetworkList(t.Context(), r.list(alone), pod("a")); err != nil {
		t.Errorf("DEL with the present configuration: %v", err)
	}
	r.want(crio)
}

// The networks of Multus are not in the runtime's directory, and their DEL is with the configuration of the ADD.
func TestPluginIsNeededByMultus(t *testing.T) {
	r := newRuntime(t)
	r.configure(alone)
	r.add("a", extra)
	r.want(containerd, "pod default/a in network extra")
	if err := r.delAsOf("a", extra); err != nil {
		t.Fatal(err)
	}
	r.want(containerd)

	// Of the runtime's network too, where Multus calls it.
	if err := os.Mkdir(filepath.Join(r.cache, "multus"), 0o700); err != nil {
		t.Fatal(err)
	}
	r.add("b", chained)
	put(t, filepath.Join(r.cache, "multus", "sandbox-b"), `[{"Conf": {"plugins": [{"type": "afxdp-cni"}]}}]`, 0o600)
	put(t, filepath.Join(r.cache, "multus", "sandbox-c"), `[{"Conf": {"plugins": [{"type": "main"}]}}]`, 0o600)
	r.want(containerd, "sandbox sandbox-b of Multus")
}

func TestPluginIsNeededWhereThatIsNotKnown(t *testing.T) {
	r := newRuntime(t)
	r.configure(alone)
	for what, dir := range map[string]string{"no": filepath.Join(r.cache, "none"), "an empty": t.TempDir()} {
		if users, err := (Users{CacheDir: dir, ConfDir: r.conf, Runtime: containerd}).Find(); err == nil {
			t.Errorf("with %s cache the users are %q", what, users)
		}
	}
	if users, err := (Users{CacheDir: r.cache, ConfDir: filepath.Join(r.conf, "none"), Runtime: containerd}).Find(); err == nil {
		t.Errorf("without the configurations the users are %q", users)
	}
	r.add("a", chained)
	if users, err := (Users{CacheDir: r.cache, Runtime: containerd}).Find(); err != nil || len(users) != 1 {
		t.Errorf("where the configurations are not known the users are %q, %v", users, err)
	}
	// What is not JSON is taken by its words.
	put(t, filepath.Join(r.conf, "20-broken.conf"), `{"type": "afxdp-cni"`, 0o600)
	put(t, filepath.Join(r.conf, "30-broken.conf"), `{"type": "other"`, 0o600)
	put(t, filepath.Join(r.conf, "40-other.bak"), chained, 0o600)
	r.want(containerd, "the network configuration "+filepath.Join(r.conf, "20-broken.conf"))
}
