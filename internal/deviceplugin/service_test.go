package deviceplugin

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// plugin connects to the pool's socket as kubelet does.
func (n *node) plugin() pluginapi.DevicePluginClient {
	n.Helper()
	socket := filepath.Join(n.kubelet.PluginDir(), "afxdp-fast.sock")
	conn, err := grpc.NewClient("passthrough:///localhost",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		}))
	if err != nil {
		n.Fatal(err)
	}
	n.Cleanup(func() { _ = conn.Close() })
	return pluginapi.NewDevicePluginClient(conn)
}

// Field case 30: an old stream does not steal updates from a new one.
func TestEachStreamGetsTheFullListAndEachChange(t *testing.T) {
	n := newNode(t, Config{})
	n.update(queues(2))
	n.waitHealthy(fast, 2)
	ctx, cancel := context.WithCancel(n.within())
	defer cancel()
	streams := make([]grpc.ServerStreamingClient[pluginapi.ListAndWatchResponse], 3)
	receive := func(want int) {
		t.Helper()
		for i, s := range streams {
			list, err := s.Recv()
			if err != nil || len(list.GetDevices()) != want {
				t.Fatalf("stream %d got %v, %v; want %d devices", i, list, err, want)
			}
		}
	}
	for i := range streams {
		var err error
		if streams[i], err = n.plugin().ListAndWatch(ctx, &pluginapi.Empty{}); err != nil {
			t.Fatal(err)
		}
	}
	receive(2)
	for _, count := range []int{3, 0} {
		n.update(queues(count))
		receive(count)
		n.waitHealthy(fast, count)
	}
}

func allocate(ids ...string) *pluginapi.AllocateRequest {
	return &pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: ids}}}
}

// Field case 33: Allocate is repeated.
func TestRepeatedAllocateHasTheSameAnswer(t *testing.T) {
	n := newNode(t, Config{})
	n.update(queues(4))
	n.waitHealthy(fast, 4)
	client := n.plugin()
	first, err := client.Allocate(n.within(), allocate("eth1-q2", "eth1-q1"))
	if err != nil {
		t.Fatal(err)
	}
	again, err := client.Allocate(n.within(), allocate("eth1-q1", "eth1-q2"))
	if err != nil || !proto.Equal(first, again) {
		t.Errorf("first %v, then %v, %v", first, again, err)
	}
	two, err := client.Allocate(n.within(), &pluginapi.AllocateRequest{ContainerRequests: append(
		allocate("eth1-q0").GetContainerRequests(), allocate("eth1-q3").GetContainerRequests()...)})
	if err != nil || len(two.GetContainerResponses()) != 2 {
		t.Errorf("for two containers: %v, %v", two, err)
	}
}

// Field case 33: Allocate of what cannot be allocated.
func TestAllocateIsRefused(t *testing.T) {
	n := newNode(t, Config{})
	devices := queues(3)
	devices[2].Healthy, devices[2].Reason = false, "link down"
	n.update(devices)
	n.waitHealthy(fast, 2)
	client := n.plugin()
	for name, tc := range map[string]struct {
		ids  []string
		code codes.Code
		want []string
	}{
		"unknown":   {[]string{"eth1-q0", "eth9-q7"}, codes.InvalidArgument, []string{`"eth9-q7"`, "pool fast"}},
		"twice":     {[]string{"eth1-q0", "eth1-q0"}, codes.InvalidArgument, []string{`"eth1-q0"`, "twice"}},
		"none":      {nil, codes.InvalidArgument, []string{"no devices"}},
		"unhealthy": {[]string{"eth1-q1", "eth1-q2"}, codes.FailedPrecondition, []string{`"eth1-q2"`, "link down"}},
	} {
		_, err := client.Allocate(n.within(), allocate(tc.ids...))
		if status.Code(err) != tc.code {
			t.Errorf("%s: got %v, want code %v", name, err, tc.code)
			continue
		}
		for _, want := range tc.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %v, want %q in it", name, err, want)
			}
		}
	}
	if _, err := client.PreStartContainer(n.within(), &pluginapi.PreStartContainerRequest{}); err == nil {
		t.Error("a container without devices was started")
	}
	n.backend.allocErr = errors.New("no room in /run/afxdp")
	_, err := client.Allocate(n.within(), allocate("eth1-q0"))
	if err == nil || !strings.Contains(err.Error(), "no room in /run/afxdp") {
		t.Errorf("the backend's error became %v", err)
	}
	if got := n.log.count("refused a call of kubelet call=Allocate"); got != 5 {
		t.Errorf("logged %d refusals, want 5", got)
	}
	_, err = client.GetPreferredAllocation(n.within(), &pluginapi.PreferredAllocationRequest{
		ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{{AllocationSize: 1}},
	})
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("preference among no devices: %v", err)
	}
}

// A device that is healthy again but not announced yet can be allocated, as one can whose pod is admitted again.
func TestAllocateGoesByThePresentHealth(t *testing.T) {
	n := newNode(t, Config{})
	devices := queues(1)
	devices[0].Healthy = false
	n.update(devices)
	n.waitRegistered("fast", "")
	n.update(queues(1))
	if _, err := n.plugin().Allocate(n.within(), allocate("eth1-q0")); err != nil {
		t.Error(err)
	}
}

func TestOversizedRequestIsRefused(t *testing.T) {
	n := newNode(t, Config{})
	n.update(queues(1))
	n.waitHealthy(fast, 1)
	_, err := n.plugin().Allocate(n.within(), allocate(strings.Repeat("x", maxRequest)))
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("got %v", err)
	}
}
