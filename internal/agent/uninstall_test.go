package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/afxdp-project/afxdp/internal/agentapi"
	"github.com/afxdp-project/afxdp/internal/config"
	"github.com/afxdp-project/afxdp/internal/kube"
	"github.com/afxdp-project/afxdp/internal/testutil"
	"github.com/afxdp-project/afxdp/internal/wire"
	"github.com/afxdp-project/afxdp/pkg/netdev"
)

const nodeName, agentUID = "node-1", "agent-uid"

func newAPI() *fake.Clientset {
	return fake.NewClientset(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName, UID: "uid-of-node"},
		Status:     corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{ContainerRuntimeVersion: "containerd://2.3.0"}},
	})
}

// annotate sets the node's annotations.
func annotate(t *testing.T, api *fake.Clientset, annotations map[string]any) {
	t.Helper()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	if err == nil {
		_, err = api.CoreV1().Nodes().Patch(context.Background(), nodeName, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// mark asks the agent in the pod with this UID to uninstall.
func (n *node) mark(uid string) {
	n.Helper()
	annotate(n.T, n.client, map[string]any{kube.MarkAnnotation: uid, kube.ReportAnnotation: nil})
}

// report waits for the agent's report.
func (n *node) report() (r kube.Report) {
	n.Helper()
	n.wait("the agent reports its uninstallation", func() bool {
		object, err := n.client.CoreV1().Nodes().Get(n.Context(), nodeName, metav1.GetOptions{})
		if err != nil {
			n.Fatal(err)
		}
		text := object.Annotations[kube.ReportAnnotation]
		return text != "" && json.Unmarshal([]byte(text), &r) == nil
	})
	if r.PodUID != agentUID {
		n.Errorf("report of %q", r.PodUID)
	}
	return r
}

func wantSentence(t *testing.T, what string, list []string, words ...string) {
	t.Helper()
	if !slices.ContainsFunc(list, func(s string) bool {
		return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(s, w) })
	}) {
		t.Errorf("%s lack a sentence with %q:\n%s", what, words, strings.Join(list, "\n"))
	}
}

// wantNothingLeft checks the places where an agent keeps something. What a test expects to be left is removed before.
func (n *node) wantNothingLeft() {
	n.Helper()
	for _, path := range []string{
		filepath.Join(n.dir, "afxdp"), "/sys/fs/bpf/afxdp", filepath.Join(n.dir, "kubelet/device-plugins/afxdp-fast.sock"),
		filepath.Join(n.cniBin, "afxdp-cni"),
	} {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			found := []string{}
			_ = filepath.WalkDir(path, func(p string, _ fs.DirEntry, _ error) error { found = append(found, p); return nil })
			n.Errorf("left: %v (%v)", found, err)
		}
	}
	if text, err := os.ReadFile(filepath.Join(n.cniConf, "10-main.conflist")); err != nil || string(text) != mainList {
		n.Errorf("network configuration: %q, %v", text, err)
	}
	if s := nicState(n.T); s != n.before {
		n.Errorf("the NIC is not as before:\n now %+v\nwant %+v", s, n.before)
	}
}

type state struct {
	xdp           netdev.XDP
	deferral, gro string
}

// nicState is what of the NIC leases change.
func nicState(t *testing.T) (s state) {
	t.Helper()
	h, err := netdev.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = h.Close() }()
	link, err := h.LinkByName("agnear")
	if err != nil {
		t.Fatal(err)
	}
	s.xdp = link.XDP
	for file, into := range map[string]*string{"napi_defer_hard_irqs": &s.deferral, "gro_flush_timeout": &s.gro} {
		text, err := os.ReadFile("/sys/class/net/agnear/" + file)
		if err != nil {
			t.Fatal(err)
		}
		*into = string(text)
	}
	return s
}

// newMarkedNode returns a node with an API server, and with the CNI plugin chained.
func newMarkedNode(t *testing.T) *node {
	t.Helper()
	n := bareNode(t)
	n.client = newAPI()
	n.cniConf, n.cniBin, n.cniCache = t.TempDir(), t.TempDir(), t.TempDir()
	if err := os.Mkdir(filepath.Join(n.cniCache, "results"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(n.cniConf, "10-main.conflist"), []byte(mainList), 0o600); err != nil {
		t.Fatal(err)
	}
	n.before = nicState(t)
	n.install()
	n.start(poolsYAML)
	n.healthy("agnear-q1", "agnear-q2", "agnear-q3")
	n.wait("the plugin is chained", func() bool { return n.statusz().CNI.Chained })
	return n
}

// install does what the installer does.
func (n *node) install() {
	n.Helper()
	if err := os.WriteFile(filepath.Join(n.cniBin, "afxdp-cni"), []byte("plugin"), 0o755); err != nil {
		n.Fatal(err)
	}
}

// runPod has a pod run with some devices, and returns its network namespace and the directory that it has mounted.
func (n *node) runPod(uid string, devices int) (ns *testutil.Netns, dir string) {
	n.Helper()
	ns = testutil.NewNetns(n.T)
	if _, err := n.api.Attach(n.Context(), attachRequest(uid, cookieOf(n.T, ns), n.addPod(uid, devices))); err != nil {
		n.Fatal(err)
	}
	started, err := n.kubelet.StartContainer(n.Context(), uid, "app")
	if err != nil {
		n.Fatal(err)
	}
	return ns, started.Mounts[0].HostPath
}

// events returns the messages of the Events with a reason, waiting until there are so many.
func (n *node) events(reason string, count int) (all []corev1.Event) {
	n.Helper()
	n.wait(fmt.Sprintf("there are %d Events %s", count, reason), func() bool {
		list, err := n.client.CoreV1().Events("").List(n.Context(), metav1.ListOptions{})
		if err != nil {
			n.Fatal(err)
		}
		all = slices.DeleteFunc(list.Items, func(e corev1.Event) bool { return e.Reason != reason })
		return len(all) >= count
	})
	return all
}

func TestUninstallWithoutPodsLeavesNothing(t *testing.T) {
	n := newMarkedNode(t)
	n.runPod("u1", 1)
	if _, err := n.api.Detach(t.Context(), &agentapi.DetachRequest{Attachment: attachRequest("u1", 0, nil).Attachment}); err != nil {
		t.Fatal(err)
	}
	if err := n.kubelet.RemovePod("u1"); err != nil {
		t.Fatal(err)
	}
	n.mark(agentUID)
	r := n.report()
	if !r.OK || len(r.Left) > 0 || len(r.Failed) > 0 {
		t.Errorf("report %+v", r)
	}
	n.wantNothingLeft()
	if d := n.kubelet.Devices("afxdp.io/fast"); len(d) > 0 {
		t.Errorf("kubelet has devices: %v", d)
	}
	if err := n.agent.ready(); err != nil {
		t.Errorf("the agent is not ready: %v", err)
	}
}

func TestUninstallUnderAPodThatRuns(t *testing.T) {
	n := newMarkedNode(t)
	ns, dir := n.runPod("u1", 2)
	var conn *wire.Conn
	if err := ns.Do(func() (err error) {
		conn, err = wire.Dial(filepath.Join(dir, "afxdp.sock"), time.Second)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	n.mark("another-uid")
	time.Sleep(200 * time.Millisecond)
	n.healthy("agnear-q1", "agnear-q2", "agnear-q3") // that mark was for another agent
	n.mark(agentUID)
	r := n.report()
	if !r.OK {
		t.Errorf("report %+v", r)
	}
	wantSentence(t, "done", r.Done, "the lease of agnear-q1, of pod default/pod-u1, was ended")
	wantSentence(t, "done", r.Done, "the lease of agnear-q2, of pod default/pod-u1, was ended")
	wantSentence(t, "done", r.Done, "settings and XDP programs of the NICs are as before")
	// The mount must not go dead for what may come after; nothing listens in it.
	wantSentence(t, "left", r.Left, dir, "pod default/pod-u1 may have mounted it")
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("in the directory that the pod has mounted: %v, %v", entries, err)
	}
	sent, err := n.client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(sent.Items) == 0 {
		t.Errorf("no Event was sent before the report: %v", err)
	}
	if e := n.events("QueueWithdrawn", 1); len(e) != 1 || e[0].InvolvedObject.UID != "u1" || e[0].InvolvedObject.Name != "pod-u1" ||
		!strings.Contains(e[0].Message, "agnear-q1, agnear-q2: the node agent was uninstalled") {
		t.Errorf("Events: %+v", e)
	}
	// A second attempt gets another report, and finds that the pod has gone.
	if err := n.kubelet.RemovePod("u1"); err != nil {
		t.Fatal(err)
	}
	n.mark(agentUID)
	r = n.report()
	wantSentence(t, "done", r.Done, "the lease of agnear-q1, of pod default/pod-u1, was ended")
	if !r.OK || len(r.Left) > 0 {
		t.Errorf("second report %+v", r)
	}
	n.wantNothingLeft()
}

// A pod whose DEL needs the plugin must not hang for want of it.
func TestUninstallLeavesThePluginToThoseWhoNeedIt(t *testing.T) {
	n := newMarkedNode(t)
	if err := os.Mkdir(filepath.Join(n.cniCache, "multus"), 0o700); err != nil {
		t.Fatal(err)
	}
	kept := filepath.Join(n.cniCache, "multus", "sandbox-1")
	if err := os.WriteFile(kept, []byte(`[{"Conf": {"type": "afxdp-cni"}}]`), 0o600); err != nil {
		t.Fatal(err)
	}
	n.mark(agentUID)
	r := n.report()
	if !r.OK {
		t.Errorf("report %+v", r)
	}
	wantSentence(t, "left", r.Left, filepath.Join(n.cniBin, "afxdp-cni"), "sandbox sandbox-1 of Multus", "can be removed by hand")
	if _, err := os.Stat(filepath.Join(n.cniBin, "afxdp-cni")); err != nil {
		t.Error(err)
	}
	if err := os.Remove(kept); err != nil {
		t.Fatal(err)
	}
	n.mark(agentUID)
	if r := n.report(); len(r.Left) > 0 {
		t.Errorf("second report %+v", r)
	}
	n.wantNothingLeft()
}

func TestUninstallSaysWhatItCannotUndo(t *testing.T) {
	n := newMarkedNode(t)
	stray := "/sys/fs/bpf/afxdp/other"
	if err := os.Mkdir(stray, 0o700); err != nil {
		t.Fatal(err)
	}
	n.mark(agentUID)
	r := n.report()
	if r.OK {
		t.Errorf("report %+v", r)
	}
	wantSentence(t, "failed", r.Failed, "/sys/fs/bpf/afxdp", "directory not empty")
	if err := os.Remove(stray); err != nil {
		t.Fatal(err)
	}
	n.mark(agentUID)
	if r := n.report(); !r.OK {
		t.Errorf("second report %+v", r)
	}
	n.wantNothingLeft()
}

// An agent that is marked when it starts announces nothing, whatever an earlier one has left.
func TestMarkedAgentAnnouncesNothing(t *testing.T) {
	n := newMarkedNode(t)
	n.runPod("u1", 1)
	n.stop()
	n.mark(agentUID)
	registrations := n.kubelet.Registrations("afxdp.io/fast")
	n.start(poolsYAML)
	if r := n.report(); !r.OK {
		t.Errorf("report %+v", r)
	}
	if got := n.kubelet.Registrations("afxdp.io/fast"); got != registrations {
		t.Errorf("registered %d times more", got-registrations)
	}
	for _, d := range n.kubelet.Devices("afxdp.io/fast") {
		if d.Healthy {
			t.Errorf("announced: %+v", d)
		}
	}
}

// One that was started anew while the API server is away knows from its journal, and reports when that is back.
func TestUninstallGoesOnWithoutTheAPIServer(t *testing.T) {
	n := newMarkedNode(t)
	n.runPod("u1", 1)
	n.stop()
	n.prepareUninstall()
	var away atomic.Bool
	away.Store(true)
	n.client.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		return away.Load(), nil, errors.New("connection refused")
	})
	n.mark(agentUID)
	registrations := n.kubelet.Registrations("afxdp.io/fast")
	n.start(poolsYAML)
	n.wait("the lease has ended", func() bool { return nicState(t) == n.before })
	away.Store(false)
	r := n.report()
	if !r.OK || len(r.Left) != 1 {
		t.Errorf("report %+v", r)
	}
	if got := n.kubelet.Registrations("afxdp.io/fast"); got != registrations {
		t.Errorf("registered %d times more", got-registrations)
	}
	if _, err := os.Lstat(filepath.Join(n.cniBin, "afxdp-cni")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the plugin is left: %v", err)
	}
}

// prepareUninstall has the journal know that the uninstallation has begun, as an agent that was killed leaves it.
func (n *node) prepareUninstall() {
	n.Helper()
	path := filepath.Join(n.dir, "afxdp/state/uninstall-"+agentUID+".json")
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		n.Fatal(err)
	}
	doc := fmt.Sprintf(`{"version": 1, "bootID": %q, "body": %q}`, strings.TrimSpace(string(boot)), agentUID)
	if err := os.WriteFile(path, []byte(doc), 0o600); err != nil {
		n.Fatal(err)
	}
}

// storyEnv has the test binary be an agent that uninstalls and is killed before the step that it names. What follows are
// its directories.
const storyEnv = "AFXDP_AGENT_STORY"

// tellStory is the main function of such an agent.
func tellStory() int {
	f := strings.Split(os.Getenv(storyEnv), "\n")
	api := newAPI()
	patch := []byte(`{"metadata": {"annotations": {"` + kube.MarkAnnotation + `": "` + agentUID + `"}}}`)
	ctx := context.Background()
	if _, err := api.CoreV1().Nodes().Patch(ctx, nodeName, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	pools, _, err := config.Parse("test", []byte(poolsYAML))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	a, err := New(Config{
		Pools: pools, KubeletRoot: f[1] + "/kubelet", RunDir: f[1] + "/afxdp", PinDir: "/sys/fs/bpf/afxdp", Version: "test", Log: log,
		CNIConfDir: f[2], Chain: true, CNIBinDir: f[3], CNICacheDir: f[4], Node: kube.NewNode(ctx, api, nodeName, log), PodUID: agentUID,
		fault: func(step string) {
			if step == f[0] {
				_ = unix.Kill(os.Getpid(), unix.SIGKILL)
				select {}
			}
		},
	})
	if err == nil {
		err = a.Run(ctx)
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// Killed wherever in the middle, by the kubelet that gives the node up or by the kernel for want of memory, the next
// container of the same pod goes on, to the same end. Within the step of the leases, their own tests do this.
func TestUninstallKilledAtEachStep(t *testing.T) {
	n := newMarkedNode(t)
	for _, step := range []string{
		"begin", "unchain", "remove endpoints", "end leases", "remove allocations", "remove plugin", "remove run directory",
	} {
		n.runPod("u-"+strings.ReplaceAll(step, " ", "-"), 1)
		n.stop()
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), storyEnv+"="+strings.Join([]string{step, n.dir, n.cniConf, n.cniBin, n.cniCache}, "\n"))
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != -1 {
			t.Fatalf("before %q the agent was not killed: %v\n%s", step, err, out)
		}
		n.client = newAPI()
		n.mark(agentUID)
		n.start(poolsYAML)
		r := n.report()
		if !r.OK {
			t.Errorf("killed before %q: report %+v", step, r)
		}
		n.stop()
		if err := n.kubelet.RemovePod("u-" + strings.ReplaceAll(step, " ", "-")); err != nil {
			t.Fatal(err)
		}
		for _, l := range r.Left { // the directory that the pod had mounted
			if !strings.Contains(l, "may have mounted it") {
				t.Errorf("killed before %q: left %q", step, l)
			}
		}
		for _, dir := range []string{"alloc", ""} {
			if err := os.RemoveAll(filepath.Join(n.dir, "afxdp", dir)); err != nil {
				t.Fatal(err)
			}
		}
		n.wantNothingLeft()
		if t.Failed() {
			return
		}
		n.client = newAPI()
		n.install()
		n.start(poolsYAML)
		n.healthy("agnear-q1", "agnear-q2", "agnear-q3")
		n.wait("the plugin is chained", func() bool { return n.statusz().CNI.Chained })
	}
}
