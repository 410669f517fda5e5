package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/afxdp-project/afxdp/internal/testutil"
	"github.com/afxdp-project/afxdp/internal/testutil/fakekubelet"
)

func TestMain(m *testing.M) { os.Exit(testutil.Main(m)) }

const fast = "afxdp.io/fast"

// backend remembers what it was asked for. Its answer is a function of the ids.
type backend struct {
	mu       sync.Mutex
	started  [][]string
	allocErr error
	startErr error
	block    chan struct{} // nil: do not
}

func (b *backend) Allocate(_ context.Context, pool string, deviceIDs []string) (Allocation, error) {
	if b.block != nil {
		b.block <- struct{}{}
		select {}
	}
	sorted := slices.Sorted(slices.Values(deviceIDs))
	return Allocation{
		HostDir:      "/run/afxdp/alloc/" + strings.Join(sorted, "+"),
		ContainerDir: "/run/afxdp/" + pool,
		Env:          map[string]string{"AFXDP_" + strings.ToUpper(pool): "/run/afxdp/" + pool + "/afxdp.sock"},
	}, b.allocErr
}

func (b *backend) PreStart(_ context.Context, _ string, deviceIDs []string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.started = append(b.started, slices.Sorted(slices.Values(deviceIDs)))
	return b.startErr
}

// node is a stand-in kubelet and a manager that runs.
type node struct {
	*testing.T
	kubelet *fakekubelet.Kubelet
	manager *Manager
	backend *backend
	root    string
	log     *recorder
	stop    func()
}

func tempRoot(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "dp") // t.TempDir's names are too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func startKubelet(t *testing.T, root string) *fakekubelet.Kubelet {
	t.Helper()
	k, err := fakekubelet.Start(fakekubelet.Config{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.Close() })
	return k
}

func newNode(t *testing.T, cfg Config) *node {
	t.Helper()
	root := tempRoot(t)
	n := &node{T: t, root: root, kubelet: startKubelet(t, root)}
	n.runManager(cfg)
	return n
}

func (n *node) runManager(cfg Config) {
	n.Helper()
	n.backend, n.log = &backend{}, &recorder{}
	if cfg.Backend == nil {
		cfg.Backend = n.backend
	}
	cfg.KubeletRoot, cfg.Logger = n.root, slog.New(n.log)
	m, err := NewManager(cfg)
	if err != nil {
		n.Fatal(err)
	}
	n.manager = m
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	n.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				n.Errorf("Run: %v", err)
			}
		case <-time.After(30 * time.Second):
			n.Error("Run does not end")
		}
	})
	n.Cleanup(n.stop)
}

// within bounds how long anything may take. It is generous: what is tested is that it happens.
func (n *node) within() context.Context {
	ctx, cancel := context.WithTimeout(n.Context(), 30*time.Second)
	n.Cleanup(cancel)
	return ctx
}

func (n *node) waitHealthy(resource string, want int) {
	n.Helper()
	if err := n.kubelet.WaitHealthy(n.within(), resource, want); err != nil {
		n.Fatalf("%v; registered: %v", err, n.manager.Registered())
	}
}

func (n *node) waitRegistered(pool string, want string) {
	n.Helper()
	var err error
	for ctx := n.within(); ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
		err = n.manager.Registered()[pool]
		if (want == "" && err == nil) || (want != "" && err != nil && strings.Contains(err.Error(), want)) {
			return
		}
	}
	n.Fatalf("pool %s: registered: %v, want %q", pool, err, want)
}

// queues makes healthy devices: the first n queues of eth1.
func queues(n int) []Device {
	var out []Device
	for q := range n {
		out = append(out, Device{ID: fmt.Sprintf("eth1-q%d", q), Healthy: true, NUMANode: -1, NIC: "eth1", Queue: q})
	}
	return out
}

func (n *node) update(devices []Device) { n.manager.Update(map[string][]Device{"fast": devices}) }

func podOf(limits map[string]int) fakekubelet.Pod {
	return fakekubelet.Pod{UID: "u1", Namespace: "ns", Name: "pod", Containers: []fakekubelet.Container{
		{Name: "app", Resources: limits},
	}}
}

// recorder keeps log messages.
type recorder struct {
	mu    sync.Mutex
	lines []string
}

func (r *recorder) Enabled(context.Context, slog.Level) bool { return true }
func (r *recorder) WithAttrs([]slog.Attr) slog.Handler       { return r }
func (r *recorder) WithGroup(string) slog.Handler            { return r }

func (r *recorder) Handle(_ context.Context, rec slog.Record) error {
	line := rec.Message
	rec.Attrs(func(a slog.Attr) bool { line += " " + a.String(); return true })
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, line)
	return nil
}

func (r *recorder) count(part string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, l := range r.lines {
		if strings.Contains(l, part) {
			n++
		}
	}
	return n
}

func TestPodGetsItsDevices(t *testing.T) {
	n := newNode(t, Config{})
	n.manager.Update(map[string][]Device{"fast": queues(4), "bulk": queues(1)})
	n.waitHealthy(fast, 4)
	n.waitHealthy("afxdp.io/bulk", 1)
	if err := n.kubelet.AddPod(n.within(), podOf(map[string]int{fast: 2, "afxdp.io/bulk": 1})); err != nil {
		t.Fatal(err)
	}
	if got := n.kubelet.Allocated("u1", "app", fast); !slices.Equal(got, []string{"eth1-q0", "eth1-q1"}) {
		t.Errorf("allocated %v, want the neighbours 0 and 1", got)
	}
	started, err := n.kubelet.StartContainer(n.within(), "u1", "app")
	if err != nil {
		t.Fatal(err)
	}
	// Field case 3: two pools in one container have paths and variables of their own.
	env := map[string]string{"AFXDP_FAST": "/run/afxdp/fast/afxdp.sock", "AFXDP_BULK": "/run/afxdp/bulk/afxdp.sock"}
	if !maps.Equal(started.Env, env) {
		t.Errorf("environment %v, want %v", started.Env, env)
	}
	for _, m := range started.Mounts {
		if !m.GetReadOnly() {
			t.Errorf("mount %v is writable", m)
		}
	}
	if len(started.Mounts) != 2 || started.Mounts[1].GetHostPath() != "/run/afxdp/alloc/eth1-q0+eth1-q1" ||
		started.Mounts[1].GetContainerPath() != "/run/afxdp/fast" {
		t.Errorf("mounts %v", started.Mounts)
	}
	want := [][]string{{"eth1-q0"}, {"eth1-q0", "eth1-q1"}}
	if got := n.backend.started; len(got) != 2 || !slices.Equal(got[0], want[0]) || !slices.Equal(got[1], want[1]) {
		t.Errorf("PreStart of %v, want %v", got, want)
	}
	n.backend.mu.Lock()
	n.backend.startErr = errors.New("the CNI plugin was not called for this pod")
	n.backend.mu.Unlock()
	if _, err := n.kubelet.StartContainer(n.within(), "u1", "app"); err == nil ||
		!strings.Contains(err.Error(), "the CNI plugin was not called for this pod") {
		t.Errorf("the container started without leases: %v", err)
	}
}

// Field case 31: a pool is registered before its devices are known.
func TestPoolIsRegisteredBeforeItsDevicesAreKnown(t *testing.T) {
	n := newNode(t, Config{})
	n.update(nil)
	if err := n.kubelet.WaitRegistered(n.within(), fast); err != nil {
		t.Fatal(err)
	}
	n.waitRegistered("fast", "")
	n.update(queues(3))
	n.waitHealthy(fast, 3)
	if got := n.kubelet.Registrations(fast); got != 1 {
		t.Errorf("registered %d times, want once", got)
	}
}

// Field case 35: NUMA node -1 is left out.
func TestNUMANodeIsToldOnlyWhereThereIsOne(t *testing.T) {
	n := newNode(t, Config{})
	devices := queues(2)
	devices[1].NUMANode = 1
	n.update(devices)
	n.waitHealthy(fast, 2)
	got := n.kubelet.Devices(fast)
	if len(got[0].NUMANodes) != 0 || !slices.Equal(got[1].NUMANodes, []int64{1}) {
		t.Errorf("devices %+v, want the second on node 1, the first on none", got)
	}
}

// Field case 34: each change of a flapping device is not one for kubelet.
func TestFlappingDeviceCostsKubeletFewUpdates(t *testing.T) {
	n := newNode(t, Config{HealthyHold: 500 * time.Millisecond})
	n.update(queues(2))
	n.waitHealthy(fast, 2)
	before := n.kubelet.Updates(fast)
	devices := queues(2)
	for i := range 101 {
		devices[0].Healthy, devices[0].Reason = i%2 == 1, "link down"
		n.update(devices)
	}
	n.waitHealthy(fast, 1)
	devices[0].Healthy, devices[0].Reason = true, ""
	n.update(devices)
	n.waitHealthy(fast, 2)
	// Under load the hold may pass between two of the updates above, so not exactly 2.
	if got := n.kubelet.Updates(fast) - before; got > 20 {
		t.Errorf("kubelet got %d lists for 102 changes", got)
	}
	if got := n.log.count("device is not healthy device=eth1-q0 reason=link down"); got == 0 || got > 10 {
		t.Errorf("logged the reason %d times", got)
	}
	if n.log.count("device is healthy again device=eth1-q0") == 0 {
		t.Error("did not log that the device is healthy again")
	}
}

func TestRemovedPoolIsWithdrawn(t *testing.T) {
	n := newNode(t, Config{})
	n.manager.Update(map[string][]Device{"fast": queues(2), "bulk": queues(1)})
	n.waitHealthy(fast, 2)
	n.waitHealthy("afxdp.io/bulk", 1)
	n.manager.Update(map[string][]Device{"bulk": queues(1)})
	err := n.kubelet.Wait(n.within(), func() bool {
		return len(n.kubelet.Devices(fast)) == 0 && slices.Equal(n.kubelet.Resources(), []string{"afxdp.io/bulk"})
	})
	if err != nil {
		t.Fatalf("%v: devices %v, resources %v", err, n.kubelet.Devices(fast), n.kubelet.Resources())
	}
	if _, ok := n.manager.Registered()["fast"]; ok {
		t.Error("the pool that is gone is still asked about")
	}
	// It comes back, while the one before may still be ending.
	for range 3 {
		n.manager.Update(map[string][]Device{"bulk": queues(1), "fast": queues(3)})
		n.manager.Update(map[string][]Device{"bulk": queues(1)})
	}
	n.manager.Update(map[string][]Device{"bulk": queues(1), "fast": queues(3)})
	n.waitHealthy(fast, 3)
	n.waitRegistered("fast", "")
}

func TestStopRemovesSocketsAndDoesNotWithdraw(t *testing.T) {
	n := newNode(t, Config{})
	n.update(queues(2))
	n.waitHealthy(fast, 2)
	updates := n.kubelet.Updates(fast)
	n.stop()
	n.waitHealthy(fast, 0)
	if got := n.kubelet.Devices(fast); len(got) != 2 || n.kubelet.Updates(fast) != updates {
		t.Errorf("kubelet knows %v after %d more lists, want both devices and none", got, n.kubelet.Updates(fast)-updates)
	}
	left, err := filepath.Glob(filepath.Join(n.kubelet.PluginDir(), "afxdp-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	n.runManager(Config{})
	n.update(queues(2))
	n.waitHealthy(fast, 2)
}

func TestStopDoesNotWaitForABackendForEver(t *testing.T) {
	b := &backend{block: make(chan struct{})}
	n := newNode(t, Config{Backend: b, StopTimeout: 50 * time.Millisecond})
	n.update(queues(1))
	n.waitHealthy(fast, 1)
	failed := make(chan error, 1)
	go func() { failed <- n.kubelet.AddPod(context.Background(), podOf(map[string]int{fast: 1})) }()
	<-b.block
	n.stop()
	if err := <-failed; err == nil {
		t.Error("the pod was admitted by an agent that is gone")
	}
}

func TestNothingIsLeftRunning(t *testing.T) {
	root := tempRoot(t)
	k := startKubelet(t, root)
	before := runtime.NumGoroutine()
	for range 3 {
		m, err := NewManager(Config{KubeletRoot: root, Backend: &backend{}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		m.Update(map[string][]Device{"early": queues(1)})
		m.Update(map[string][]Device{"fast": queues(1)})
		go func() { done <- m.Run(ctx) }()
		wait, stop := context.WithTimeout(t.Context(), 30*time.Second)
		if err := k.WaitHealthy(wait, fast, 1); err != nil {
			t.Error(err)
		}
		stop()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		m.Update(map[string][]Device{"late": queues(1)})
		if err := m.Run(t.Context()); err == nil {
			t.Error("a manager ran twice")
		}
	}
	for range 100 {
		if runtime.NumGoroutine() <= before {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	stacks := make([]byte, 1<<16)
	t.Errorf("%d goroutines, before %d:\n%s", runtime.NumGoroutine(), before, stacks[:runtime.Stack(stacks, true)])
}

func TestBackendIsNeeded(t *testing.T) {
	if _, err := NewManager(Config{}); err == nil {
		t.Error("made a manager without a backend")
	}
}
