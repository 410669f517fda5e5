package fakekubelet

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/afxdp-project/afxdp/internal/kubelet"
	"github.com/afxdp-project/afxdp/internal/testutil"
)

func TestMain(m *testing.M) { os.Exit(testutil.Main(m)) }

// plugin is a device plugin that lists some devices and answers with their ids.
type plugin struct {
	pluginapi.UnimplementedDevicePluginServer
	devices []string
	started chan []string
}

func (p *plugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{PreStartRequired: true}, nil
}

func (p *plugin) ListAndWatch(_ *pluginapi.Empty, s grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	list := &pluginapi.ListAndWatchResponse{}
	for _, id := range p.devices {
		list.Devices = append(list.Devices, &pluginapi.Device{ID: id, Health: pluginapi.Healthy})
	}
	if err := s.Send(list); err != nil {
		return err
	}
	<-s.Context().Done()
	return nil
}

func (p *plugin) Allocate(_ context.Context, req *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	ids := req.GetContainerRequests()[0].GetDevicesIds()
	return &pluginapi.AllocateResponse{ContainerResponses: []*pluginapi.ContainerAllocateResponse{{
		Envs: map[string]string{"IDS": strings.Join(ids, ",")},
	}}}, nil
}

func (p *plugin) PreStartContainer(
	_ context.Context, req *pluginapi.PreStartContainerRequest,
) (*pluginapi.PreStartContainerResponse, error) {
	p.started <- req.GetDevicesIds()
	return &pluginapi.PreStartContainerResponse{}, nil
}

func start(t *testing.T, cfg Config) *Kubelet {
	t.Helper()
	dir, err := os.MkdirTemp("", "fk")
	if err != nil {
		t.Fatal(err)
	}
	cfg.Root = dir
	k, err := Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = k.Close()
		_ = os.RemoveAll(dir)
	})
	return k
}

func serve(t *testing.T, k *Kubelet, p *plugin) {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(k.PluginDir(), "p.sock"))
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(s, p)
	done := make(chan struct{})
	go func() { _ = s.Serve(l); close(done) }()
	t.Cleanup(func() { s.Stop(); <-done })
}

func dial(t *testing.T, socket string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func register(t *testing.T, k *Kubelet, req *pluginapi.RegisterRequest) error {
	t.Helper()
	conn := dial(t, filepath.Join(k.PluginDir(), "kubelet.sock"))
	_, err := pluginapi.NewRegistrationClient(conn).Register(t.Context(), req)
	return err
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestRegistrationIsRefused(t *testing.T) {
	k := start(t, Config{})
	serve(t, k, &plugin{})
	for name, tc := range map[string]struct{ version, resource, want string }{
		"version":            {"v1alpha", "example.com/a", "not supported"},
		"no domain":          {"v1beta1", "a", "invalid"},
		"kubernetes' domain": {"v1beta1", "kubernetes.io/a", "invalid"},
		"bad name":           {"v1beta1", "example.com/a_", "invalid"},
		"bad domain":         {"v1beta1", "Example.com/a", "invalid"},
	} {
		t.Run(name, func(t *testing.T) {
			req := &pluginapi.RegisterRequest{Version: tc.version, Endpoint: "p.sock", ResourceName: tc.resource}
			if err := register(t, k, req); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
	if got := k.Resources(); len(got) != 0 {
		t.Errorf("registered all the same: %v", got)
	}
}

func TestPodGetsDevicesFromAdmissionToRestart(t *testing.T) {
	k := start(t, Config{})
	p := &plugin{devices: []string{"a", "b", "c"}, started: make(chan []string, 1)}
	serve(t, k, p)
	const resource = "example.com/x"
	req := &pluginapi.RegisterRequest{Version: pluginapi.Version, Endpoint: "p.sock", ResourceName: resource}
	if err := register(t, k, req); err != nil {
		t.Fatal(err)
	}
	ctx := within(t)
	if err := k.WaitHealthy(ctx, resource, 3); err != nil {
		t.Fatal(err)
	}
	pod := Pod{UID: "u1", Namespace: "ns", Name: "pod", Containers: []Container{
		{Name: "app", Resources: map[string]int{resource: 2}},
		{Name: "prepare", Init: true, Resources: map[string]int{resource: 1}},
	}}
	if err := k.AddPod(ctx, pod); err != nil {
		t.Fatal(err)
	}
	init, app := k.Allocated("u1", "prepare", resource), k.Allocated("u1", "app", resource)
	if len(init) != 1 || len(app) != 2 || !slices.Contains(app, init[0]) {
		t.Fatalf("the init container has %v, the app container %v: want 1 and 2, the one in the two", init, app)
	}
	cp, err := kubelet.ReadCheckpoint(k.CheckpointPath())
	if err != nil || len(cp.Entries) != 2 {
		t.Fatalf("checkpoint %+v, %v: want an entry for each container", cp, err)
	}
	started, err := k.StartContainer(ctx, "u1", "app")
	if err != nil || started.Env["IDS"] == "" {
		t.Fatalf("started %+v, %v", started, err)
	}
	if got := <-p.started; !slices.Equal(got, app) {
		t.Errorf("PreStartContainer of %v, want %v", got, app)
	}
	lister := podresources.NewPodResourcesListerClient(dial(t, filepath.Join(k.cfg.Root, "pod-resources", "kubelet.sock")))
	list, err := lister.List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if c := list.GetPodResources()[0].GetContainers(); len(c) != 1 || c[0].GetName() != "app" {
		t.Errorf("pod-resources lists %v, want only the app container", c)
	}
	if err := k.AddPod(ctx, Pod{UID: "u2", Containers: []Container{
		{Name: "app", Resources: map[string]int{resource: 2}},
	}}); err == nil {
		t.Error("a pod was admitted that asks for more than there is")
	}

	if err := k.Restart(true); err != nil {
		t.Fatal(err)
	}
	if got := k.Allocated("u1", "app", resource); !slices.Equal(got, app) {
		t.Errorf("after the restart the container has %v, want %v", got, app)
	}
	if _, err := os.Stat(filepath.Join(k.PluginDir(), "p.sock")); err == nil {
		t.Error("the restart left the plugin's socket")
	}
	if _, err := k.StartContainer(ctx, "u1", "app"); err == nil {
		t.Error("a container was started without its plugin")
	}
}

func TestRateIsLimited(t *testing.T) {
	k := start(t, Config{RateLimit: 1})
	lister := podresources.NewPodResourcesListerClient(dial(t, filepath.Join(k.cfg.Root, "pod-resources", "kubelet.sock")))
	for range 100 {
		if _, err := lister.List(t.Context(), &podresources.ListPodResourcesRequest{}); err != nil {
			if !strings.Contains(err.Error(), "ResourceExhausted") {
				t.Fatal(err)
			}
			return
		}
	}
	t.Error("100 calls at once were all served")
}
