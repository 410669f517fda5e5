package kubelet_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/afxdp-project/afxdp/internal/kubelet"
	"github.com/afxdp-project/afxdp/internal/testutil"
	"github.com/afxdp-project/afxdp/internal/testutil/fakekubelet"
)

const fast = "afxdp.io/fast"

// TestMain checks for leaked descriptors only: nothing here needs namespaces, and a fuzzing worker cannot be started
// anew in some, for its pipes would be lost.
func TestMain(m *testing.M) {
	before := testutil.OpenFDs()
	code := m.Run()
	if leaked := testutil.LeakedFDs(before); code == 0 && len(leaked) > 0 {
		fmt.Fprintln(os.Stderr, "file descriptors left open by the tests:", leaked)
		code = 1
	}
	os.Exit(code)
}

func tempRoot(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "kc") // t.TempDir's names are too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func newClient(t *testing.T, root string) *kubelet.Client {
	t.Helper()
	c, err := kubelet.NewClient(root)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func start(t *testing.T, cfg fakekubelet.Config) (*fakekubelet.Kubelet, *kubelet.Client) {
	t.Helper()
	cfg.Root = tempRoot(t)
	k, err := fakekubelet.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.Close() })
	return k, newClient(t, cfg.Root)
}

func addPod(t *testing.T, k *fakekubelet.Kubelet, uid, namespace string, devices ...string) {
	t.Helper()
	pod := fakekubelet.Pod{UID: uid, Namespace: namespace, Name: "pod", Containers: []fakekubelet.Container{
		{Name: "prepare", Init: true}, {Name: "app"},
	}}
	err := k.AddPod(t.Context(), pod)
	if err == nil && len(devices) > 0 {
		err = k.Grant(uid, "app", fast, devices...)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Field case 5: pods of one name in two namespaces never mix.
func TestPodIsAskedForByNameAndNamespace(t *testing.T) {
	for name, cfg := range map[string]fakekubelet.Config{
		"by Get":                  {},
		"by List, Get is off":     {GetDisabled: true},
		"by List, Get is unknown": {GetUnimplemented: true},
	} {
		t.Run(name, func(t *testing.T) {
			k, client := start(t, cfg)
			addPod(t, k, "u1", "one", "q2", "q0")
			addPod(t, k, "u2", "two", "q1")
			for namespace, want := range map[string][]string{"one": {"q0", "q2"}, "two": {"q1"}} {
				got, found, err := client.PodDevices(t.Context(), namespace, "pod")
				app := []kubelet.Container{{Name: "app", Devices: []kubelet.Devices{{Resource: fast, IDs: want}}}}
				if err != nil || !found || !reflect.DeepEqual(got, app) {
					t.Errorf("namespace %s: %v, %v, %v; want %v", namespace, got, found, err, app)
				}
			}
			if got, found, err := client.PodDevices(t.Context(), "three", "pod"); err != nil || found {
				t.Errorf("a pod that is not there: %v, %v, %v", got, found, err)
			}
			pods, err := client.List(t.Context())
			if err != nil || len(pods) != 2 {
				t.Errorf("listed %v, %v; want two pods", pods, err)
			}
		})
	}
}

func TestAllocationsOfAPodOnANode(t *testing.T) {
	k, client := start(t, fakekubelet.Config{})
	pod := kubelet.Pod{UID: "u1", Namespace: "ns", Name: "pod"}
	addPod(t, k, "u1", "ns")
	if got, err := kubelet.PodAllocations(t.Context(), client, pod, "afxdp.io"); err != nil || got != nil {
		t.Errorf("a node without a checkpoint: %v, %v; want none", got, err)
	}
	if err := k.Grant("u1", "app", fast, "q1"); err != nil {
		t.Fatal(err)
	}
	if err := k.Grant("u1", "prepare", fast, "q1", "q0"); err != nil {
		t.Fatal(err)
	}
	want := []kubelet.Allocation{
		{Resource: fast, Container: "app", DeviceIDs: []string{"q1"}},
		{Resource: fast, Container: "prepare", DeviceIDs: []string{"q0", "q1"}},
	}
	got, err := kubelet.PodAllocations(t.Context(), client, pod, "afxdp.io")
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
	pod.UID = ""
	if got, err := kubelet.PodAllocations(t.Context(), client, pod, "afxdp.io"); err == nil {
		t.Errorf("without a UID, with an init container's device: %v; want an error", got)
	}
}

func TestMissingCheckpointIsCertainOnlyInKubeletsDirectory(t *testing.T) {
	root := tempRoot(t)
	client := newClient(t, root)
	_, found, err := client.Checkpoint()
	if found || !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), root) {
		t.Errorf("no directory: found %v, error %v", found, err)
	}
	if err := os.Mkdir(filepath.Join(root, "device-plugins"), 0o750); err != nil {
		t.Fatal(err)
	}
	if _, found, err := client.Checkpoint(); found || err != nil {
		t.Errorf("empty directory: found %v, error %v", found, err)
	}
	if err := os.WriteFile(kubelet.CheckpointPath(root), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, found, err := client.Checkpoint(); found || err == nil {
		t.Errorf("cut checkpoint: found %v, error %v", found, err)
	}
}

func TestRateLimitIsWaitedOut(t *testing.T) {
	k, client := start(t, fakekubelet.Config{RateLimit: 100})
	addPod(t, k, "u1", "ns", "q0")
	var wg sync.WaitGroup
	errs := make(chan error, 100)
	for range 100 {
		wg.Go(func() {
			_, found, err := client.PodDevices(t.Context(), "ns", "pod")
			if err == nil && !found {
				err = errors.New("not found")
			}
			errs <- err
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestKubeletRestartIsWaitedOut(t *testing.T) {
	k, client := start(t, fakekubelet.Config{})
	addPod(t, k, "u1", "ns", "q0")
	if _, _, err := client.PodDevices(t.Context(), "ns", "pod"); err != nil {
		t.Fatal(err)
	}
	if err := k.Stop(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, found, err := client.PodDevices(t.Context(), "ns", "pod")
		if err == nil && !found {
			err = errors.New("not found")
		}
		done <- err
	}()
	select {
	case err := <-done:
		t.Fatalf("answered without kubelet: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	if err := k.Resume(true); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestErrorSaysWhatKubeletRefusedUntilTheDeadline(t *testing.T) {
	client := newClient(t, tempRoot(t))
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, _, err := client.PodDevices(ctx, "ns", "pod")
	if err == nil || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("got %v, want the deadline and its cause", err)
	}
}

func TestHungKubeletIsLeftAtTheDeadline(t *testing.T) {
	root := tempRoot(t)
	socket := kubelet.PodResourcesSocket(root)
	if err := os.Mkdir(filepath.Dir(socket), 0o750); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", socket) // the kernel accepts, nobody answers
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := newClient(t, root).List(ctx); err == nil || ctx.Err() == nil {
		t.Errorf("got %v", err)
	}
}

// huge answers with more than a client takes.
type huge struct {
	podresources.UnimplementedPodResourcesListerServer
	calls int
}

func (h *huge) List(
	context.Context, *podresources.ListPodResourcesRequest,
) (*podresources.ListPodResourcesResponse, error) {
	h.calls++
	return &podresources.ListPodResourcesResponse{
		PodResources: []*podresources.PodResources{{Name: strings.Repeat("x", 17<<20)}},
	}, nil
}

func TestOversizedAnswerIsAnErrorAtOnce(t *testing.T) {
	root := tempRoot(t)
	socket := kubelet.PodResourcesSocket(root)
	if err := os.Mkdir(filepath.Dir(socket), 0o750); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	h := &huge{}
	s := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(s, h)
	done := make(chan struct{})
	go func() { _ = s.Serve(l); close(done) }()
	_, err = newClient(t, root).List(t.Context())
	s.Stop()
	<-done
	if err == nil || h.calls != 1 {
		t.Errorf("got %v after %d calls, want an error after one", err, h.calls)
	}
}

func TestLongSocketPathIsNamed(t *testing.T) {
	root := "/" + strings.Repeat("r", 90)
	_, err := kubelet.NewClient(root)
	if want := fmt.Sprint(len(kubelet.PodResourcesSocket(root))); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want the length %s", err, want)
	}
}
