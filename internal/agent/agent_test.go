package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/afxdp-project/afxdp/internal/agentapi"
	"github.com/afxdp-project/afxdp/internal/config"
	"github.com/afxdp-project/afxdp/internal/kube"
	"github.com/afxdp-project/afxdp/internal/lease"
	"github.com/afxdp-project/afxdp/internal/testutil"
	"github.com/afxdp-project/afxdp/internal/testutil/fakekubelet"
	"github.com/afxdp-project/afxdp/internal/wire"
	"github.com/afxdp-project/afxdp/pkg/netdev"
)

func TestMain(m *testing.M) {
	if os.Getenv(storyEnv) != "" {
		os.Exit(tellStory())
	}
	os.Exit(testutil.Main(m))
}

const poolsYAML = `
apiVersion: afxdp.io/v1alpha1
kind: Configuration
pools:
- name: fast
  nics: {names: ["agnear*"]}
  queues: 1-3
`

// The tests have a network namespace of their own.
const httpAddress, metricsAddress = "127.0.0.1:9417", "127.0.0.1:9418"

// node is a node with a kubelet, an agent and one NIC of four queues.
type node struct {
	*testing.T
	kubelet   *fakekubelet.Kubelet
	agent     *Agent
	api       agentapi.AgentClient
	dir       string
	cniConf   string // empty: the agent does not chain the plugin
	unchained bool   // with a configuration directory, but not to chain
	cniBin    string
	// With client the agent has an API server, where it runs in a pod.
	client   *fake.Clientset
	cniCache string
	before   state // of the NIC
	log      *logBuffer
	reloads  chan error // of the configuration
	stop     func()
}

type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newNode(t *testing.T, yaml string) *node {
	t.Helper()
	n := bareNode(t)
	n.start(yaml)
	return n
}

// bareNode has no agent yet.
func bareNode(t *testing.T) *node {
	t.Helper()
	testutil.Veth(t, testutil.VethPair{Near: "agnear", Far: "agfar", Queues: 4})
	dir, err := os.MkdirTemp("/run", "ag")
	if err != nil {
		t.Fatal(err)
	}
	n := &node{T: t, dir: dir, log: &logBuffer{}, reloads: make(chan error, 10), stop: func() {}}
	n.kubelet, err = fakekubelet.Start(fakekubelet.Config{Root: filepath.Join(dir, "kubelet")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		n.stop()
		if err := n.kubelet.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(n.log)
		}
	})
	return n
}

func (n *node) start(yaml string) {
	n.Helper()
	n.configure(yaml)
	pools, _, err := config.Load(n.configFile())
	if err != nil {
		n.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	log := slog.New(slog.NewTextHandler(n.log, nil))
	var api *kube.Node
	if n.client != nil {
		api = kube.NewNode(ctx, n.client, nodeName, log)
	}
	n.agent, err = New(Config{
		ConfigFile: n.configFile(),
		Pools:      pools, KubeletRoot: filepath.Join(n.dir, "kubelet"), RunDir: filepath.Join(n.dir, "afxdp"),
		PinDir: "/sys/fs/bpf/afxdp", HTTPAddress: httpAddress, MetricsAddress: metricsAddress, CNIConfDir: n.cniConf, Chain: !n.unchained, CNIBinDir: n.cniBin,
		CNICacheDir: n.cniCache, Node: api, PodUID: agentUID, Version: "test", Log: log,
	})
	if err != nil {
		cancel()
		n.Fatal(err)
	}
	tell := n.agent.onReload
	n.agent.onReload = func(err error) { tell(err); n.reloads <- err }
	done := make(chan error, 1)
	go func() { done <- n.agent.Run(ctx) }()
	conn, err := grpc.NewClient("unix://"+filepath.Join(n.dir, "afxdp/agent.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		n.Fatal(err)
	}
	n.api = agentapi.NewAgentClient(conn)
	n.stop = sync.OnceFunc(func() {
		cancel()
		if err := errors.Join(<-done, n.agent.Close(), conn.Close()); err != nil {
			n.Error(err)
		}
	})
}

func (n *node) wait(what string, cond func() bool) {
	n.Helper()
	ctx, cancel := context.WithTimeout(n.Context(), 20*time.Second)
	defer cancel()
	for !cond() {
		select {
		case <-ctx.Done():
			n.Fatalf("waited in vain until %s; devices: %v", what, n.kubelet.Devices("afxdp.io/fast"))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// healthy waits until kubelet sees exactly these healthy devices.
func (n *node) healthy(ids ...string) {
	n.Helper()
	n.wait(fmt.Sprintf("%v are healthy", ids), func() bool {
		var got []string
		for _, d := range n.kubelet.Devices("afxdp.io/fast") {
			if d.Healthy {
				got = append(got, d.ID)
			}
		}
		return strings.Join(got, " ") == strings.Join(ids, " ")
	})
}

func (n *node) addPod(uid string, devices int) []string {
	n.Helper()
	pod := fakekubelet.Pod{UID: uid, Namespace: "default", Name: "pod-" + uid, Containers: []fakekubelet.Container{
		{Name: "app", Resources: map[string]int{"afxdp.io/fast": devices}},
	}}
	if err := n.kubelet.AddPod(n.Context(), pod); err != nil {
		n.Fatal(err)
	}
	return n.kubelet.Allocated(uid, "app", "afxdp.io/fast")
}

func cookieOf(t *testing.T, ns *testutil.Netns) (cookie uint64) {
	t.Helper()
	err := ns.Do(func() error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		cookie, err = netdev.CookieOfSocket(fd)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return cookie
}

func attachRequest(uid string, cookie uint64, devices []string) *agentapi.AttachRequest {
	return &agentapi.AttachRequest{
		Attachment:  &agentapi.Attachment{Network: "net", ContainerId: "sandbox-" + uid, Ifname: "eth0"},
		Pod:         &agentapi.Pod{Uid: uid, Namespace: "default", Name: "pod-" + uid},
		NetnsCookie: cookie,
		Allocations: []*agentapi.Allocation{{Resource: "afxdp.io/fast", Container: "app", DeviceIds: devices}},
	}
}

func TestPodStartsOnlyWithItsLeases(t *testing.T) {
	n := newNode(t, poolsYAML)
	n.healthy("agnear-q1", "agnear-q2", "agnear-q3")
	devices := n.addPod("u1", 2)
	_, err := n.kubelet.StartContainer(t.Context(), "u1", "app")
	if err == nil || !strings.Contains(err.Error(), "the CNI plugin afxdp-cni was not called for this pod") {
		t.Fatalf("start before ADD: %v, want the reason", err)
	}
	pod := testutil.NewNetns(t)
	r := attachRequest("u1", cookieOf(t, pod), devices)
	answer, err := n.api.Attach(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if len(answer.Nics) != 1 || answer.Nics[0].Name != "agnear" || answer.Nics[0].Mtu != 1500 || answer.Nics[0].Mac == "" {
		t.Errorf("NICs of the pod: %v", answer.Nics)
	}
	started, err := n.kubelet.StartContainer(t.Context(), "u1", "app")
	if err != nil {
		t.Fatal(err)
	}
	if started.Env["AFXDP_FAST"] != "/run/afxdp/fast" || len(started.Mounts) != 1 || !started.Mounts[0].ReadOnly ||
		started.Mounts[0].ContainerPath != "/run/afxdp/fast" {
		t.Errorf("environment %v, mounts %v", started.Env, started.Mounts)
	}
	if want := filepath.Join(started.Mounts[0].HostPath, "afxdp.sock"); answer.Nics[0].SocketPath != want {
		t.Errorf("socket path %s, want %s", answer.Nics[0].SocketPath, want)
	}
	// The pod's network namespace is welcome, another one is not.
	if err := pod.Do(func() error { return hello(answer.Nics[0].SocketPath) }); err != nil {
		t.Errorf("hello from the pod: %v", err)
	}
	var refused *wire.Error
	if err := hello(answer.Nics[0].SocketPath); !errors.As(err, &refused) || refused.Code != wire.CodeNotLeased {
		t.Errorf("hello from the node: %v, want not leased", err)
	}
	if _, err := n.api.Check(t.Context(), &agentapi.CheckRequest{
		Attachment: r.Attachment, Pod: r.Pod, NetnsCookie: r.NetnsCookie, Allocations: r.Allocations,
	}); err != nil {
		t.Errorf("check: %v", err)
	}
	if _, err := n.api.Detach(t.Context(), &agentapi.DetachRequest{Attachment: r.Attachment}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.kubelet.StartContainer(t.Context(), "u1", "app"); err == nil {
		t.Error("a container started after DEL")
	}
}

func hello(path string) error {
	c, err := wire.Dial(path, time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.Send(1, &wire.Hello{MinVersion: 1, MaxVersion: 1}, -1, time.Second); err != nil {
		return err
	}
	r, err := c.Recv(time.Now().Add(5 * time.Second))
	if err != nil {
		return err
	}
	if e, ok := r.Message.(*wire.Error); ok {
		return e
	}
	return nil
}

func TestStatusTellsDevicesLeasesAndProblems(t *testing.T) {
	n := newNode(t, strings.Replace(poolsYAML, "1-3", "1-2,9", 1)+"  countUnclaimed: true\n")
	n.healthy("agnear-q1", "agnear-q2")
	devices := n.addPod("u1", 1)
	if _, err := n.api.Attach(t.Context(), attachRequest("u1", cookieOf(t, testutil.NewNetns(t)), devices)); err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	n.agent.serveStatus(w, nil)
	var s Status
	if err := json.Unmarshal(w.Body.Bytes(), &s); err != nil {
		t.Fatal(err)
	}
	if len(s.Devices) != 2 || s.Devices[0].ID != "agnear-q1" || !s.Devices[0].Healthy || s.Devices[1].Lease != nil {
		t.Fatalf("devices: %+v", s.Devices)
	}
	if l := s.Devices[0].Lease; l == nil || l.Pod.UID != "u1" || l.State != lease.StateActive || l.Open || l.Drops != nil {
		t.Errorf("lease: %+v", l)
	}
	if len(s.Problems) != 1 || !strings.Contains(s.Problems[0], "queue 9 of agnear does not exist: it has 4") {
		t.Errorf("problems: %q", s.Problems)
	}
	if len(s.Unclaimed["agnear"]) != 4 {
		t.Errorf("unclaimed: %v", s.Unclaimed)
	}
}

func TestHostNetworkPodIsRefused(t *testing.T) {
	n := newNode(t, poolsYAML)
	n.healthy("agnear-q1", "agnear-q2", "agnear-q3")
	_, err := n.api.Attach(t.Context(), attachRequest("u1", n.agent.nics.NetnsCookie(), n.addPod("u1", 1)))
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "host-network") {
		t.Errorf("ADD of a host-network pod: %v", err)
	}
}

func TestUnknownDeviceIsRefusedByName(t *testing.T) {
	n := newNode(t, poolsYAML)
	n.healthy("agnear-q1", "agnear-q2", "agnear-q3")
	_, err := n.api.Attach(t.Context(), attachRequest("u1", 12345, []string{"agnear-q0"}))
	if status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), "agnear-q0") {
		t.Errorf("ADD of a device that no pool has: %v", err)
	}
}

// Field case 7: the node's uplink is not taken unless it is named on purpose.
func TestUplinkIsTakenOnlyOnPurpose(t *testing.T) {
	byDriver := strings.Replace(poolsYAML, `names: ["agnear*"]`, `drivers: [veth]`, 1)
	n := newNode(t, byDriver)
	n.wait("both ends are devices", func() bool { return len(n.kubelet.Devices("afxdp.io/fast")) == 6 })
	if err := testutil.AddAddress("agnear", "192.0.2.1/24"); err != nil {
		t.Fatal(err)
	}
	n.wait("the uplink is withdrawn", func() bool { return len(n.kubelet.Devices("afxdp.io/fast")) == 3 })
	if !strings.Contains(n.log.String(), "agnear is left out because it has the address 192.0.2.1/24") {
		t.Error("the log does not say why")
	}
	n.stop()
	n.start(strings.Replace(poolsYAML, `"agnear*"`, "agnear", 1))
	n.healthy("agnear-q1", "agnear-q2", "agnear-q3")
}

// Field case 6: a device whose NIC has no link is unhealthy with a reason, and back when that is back.
func TestDeviceWithoutLinkIsUnhealthy(t *testing.T) {
	n := newNode(t, poolsYAML)
	n.healthy("agnear-q1", "agnear-q2", "agnear-q3")
	if err := testutil.SetDown("agfar"); err != nil {
		t.Fatal(err)
	}
	n.healthy()
	if !strings.Contains(n.log.String(), "agnear has no link") {
		t.Error("the log does not say why")
	}
	if err := testutil.SetUp("agfar"); err != nil {
		t.Fatal(err)
	}
	n.healthy("agnear-q1", "agnear-q2", "agnear-q3")
	if err := testutil.DelLink("agnear"); err != nil {
		t.Fatal(err)
	}
	n.wait("the devices are withdrawn", func() bool { return len(n.kubelet.Devices("afxdp.io/fast")) == 0 })
}

// Field case 29 and 1: allocations are served again by an agent that was started anew, and leases go on.
func TestRestartedAgentServesWhatItServed(t *testing.T) {
	n := newNode(t, poolsYAML)
	n.healthy("agnear-q1", "agnear-q2", "agnear-q3")
	devices := n.addPod("u1", 2)
	pod := testutil.NewNetns(t)
	answer, err := n.api.Attach(t.Context(), attachRequest("u1", cookieOf(t, pod), devices))
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(filepath.Dir(answer.Nics[0].SocketPath))
	if err != nil {
		t.Fatal(err)
	}
	n.stop()
	n.start(poolsYAML)
	n.healthy("agnear-q1", "agnear-q2", "agnear-q3")
	after, err := os.Stat(filepath.Dir(answer.Nics[0].SocketPath))
	if err != nil || !os.SameFile(before, after) {
		t.Errorf("the allocation's directory was made anew: %v", err)
	}
	if err := pod.Do(func() error { return hello(answer.Nics[0].SocketPath) }); err != nil {
		t.Errorf("hello after the restart: %v", err)
	}
	if _, err := n.kubelet.StartContainer(t.Context(), "u1", "app"); err != nil {
		t.Errorf("container restart after the agent's: %v", err)
	}
	// Even when the journal of allocations is lost, kubelet's checkpoint has them.
	n.stop()
	for _, path := range []string{"state", "alloc"} {
		if err := os.RemoveAll(filepath.Join(n.dir, "afxdp", path)); err != nil {
			t.Fatal(err)
		}
	}
	n.start(poolsYAML)
	n.wait("the socket listens again", func() bool {
		_, err := os.Stat(answer.Nics[0].SocketPath)
		return !errors.Is(err, fs.ErrNotExist)
	})
}

// Field case 32: the device of a pod that went while no agent ran is not taken for ever.
func TestLeaseOfAPodThatIsGoneEnds(t *testing.T) {
	n := newNode(t, poolsYAML)
	n.healthy("agnear-q1", "agnear-q2", "agnear-q3")
	pods := map[string]*testutil.Netns{"u1": testutil.NewNetns(t), "u2": testutil.NewNetns(t)}
	for uid, ns := range pods {
		if _, err := n.api.Attach(t.Context(), attachRequest(uid, cookieOf(t, ns), n.addPod(uid, 1))); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.kubelet.RemovePod("u1"); err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]string)
	n.agent.reconcile(t.Context(), seen)
	if got := len(n.agent.leases.Leases()); got != 2 {
		t.Errorf("after one look there are %d leases, want 2: one look is not enough", got)
	}
	n.agent.reconcile(t.Context(), seen)
	leases := n.agent.leases.Leases()
	if len(leases) != 1 || leases[0].Pod.UID != "u2" {
		t.Errorf("leases: %v, want that of u2 only", leases)
	}
}

// Field case 40: a lease that is left over from a DEL without the agent does not let another pod's container start.
func TestLeftOverLeaseDoesNotCount(t *testing.T) {
	n := newNode(t, strings.Replace(poolsYAML, "1-3", "1", 1))
	n.healthy("agnear-q1")
	ns := testutil.NewNetns(t)
	if _, err := n.api.Attach(t.Context(), attachRequest("u1", cookieOf(t, ns), n.addPod("u1", 1))); err != nil {
		t.Fatal(err)
	}
	if err := n.kubelet.RemovePod("u1"); err != nil {
		t.Fatal(err)
	}
	devices := n.addPod("u2", 1)
	if _, err := n.kubelet.StartContainer(t.Context(), "u2", "app"); err == nil {
		t.Error("a container started on another pod's lease")
	}
	if _, err := n.api.Attach(t.Context(), attachRequest("u2", cookieOf(t, testutil.NewNetns(t)), devices)); err != nil {
		t.Fatal(err)
	}
	if _, err := n.kubelet.StartContainer(t.Context(), "u2", "app"); err != nil {
		t.Error(err)
	}
	// Field case 39: the late DEL of the first pod leaves the second one's lease alone.
	late := attachRequest("u1", 0, nil).Attachment
	if _, err := n.api.Detach(t.Context(), &agentapi.DetachRequest{Attachment: late}); err != nil {
		t.Fatal(err)
	}
	if l, ok := n.agent.leases.Lease("agnear-q1"); !ok || l.Pod.UID != "u2" {
		t.Errorf("lease after the late DEL: %v, %v", l.Pod, ok)
	}
}

func TestAllocationIDIgnoresTheOrder(t *testing.T) {
	if allocationID([]string{"a-q1", "a-q10", "a-q2"}) != allocationID([]string{"a-q2", "a-q1", "a-q10"}) {
		t.Error("the order of the devices changes the allocation's id")
	}
	if allocationID([]string{"a-q1"}) == allocationID([]string{"a-q2"}) {
		t.Error("two devices have one id")
	}
}

func TestDevicesAreOrderedByNumber(t *testing.T) {
	for _, c := range []struct{ a, b string }{{"eth0-q2", "eth0-q10"}, {"eth0-q9", "eth1-q0"}, {"a-q1-q2", "a-q1-q3"}} {
		if compareDevices(c.a, c.b) >= 0 || compareDevices(c.b, c.a) <= 0 {
			t.Errorf("%s does not come before %s", c.a, c.b)
		}
	}
}
