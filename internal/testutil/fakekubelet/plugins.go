package fakekubelet

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// connectTimeout is how long kubelet waits for a plugin that registers.
const connectTimeout = 10 * time.Second

// client is kubelet's side of one registration.
type client struct {
	conn    *grpc.ClientConn
	api     pluginapi.DevicePluginClient
	options *pluginapi.DevicePluginOptions
	listed  bool // a list has come
}

type registrar struct {
	pluginapi.UnimplementedRegistrationServer
	k *Kubelet
}

// Register calls back before it answers, as kubelet does: the plugin must be serving by then.
func (r *registrar) Register(ctx context.Context, req *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	if !slices.Contains(pluginapi.SupportedVersions[:], req.GetVersion()) {
		return nil, fmt.Errorf("requested API version %q is not supported by kubelet (supported: %q)",
			req.GetVersion(), pluginapi.SupportedVersions)
	}
	if !isExtendedResource(req.GetResourceName()) {
		return nil, fmt.Errorf("the resource name %q is invalid", req.GetResourceName())
	}
	if err := r.k.connect(ctx, req.GetResourceName(), filepath.Join(r.k.PluginDir(), req.GetEndpoint())); err != nil {
		return nil, err
	}
	return &pluginapi.Empty{}, nil
}

func (k *Kubelet) connect(ctx context.Context, resource, socket string) error {
	conn, err := grpc.NewClient("passthrough:///localhost",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		}))
	if err != nil {
		return fmt.Errorf("connect to the device plugin: %w", err)
	}
	c := &client{conn: conn, api: pluginapi.NewDevicePluginClient(conn)}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	c.options, err = c.api.GetDevicePluginOptions(ctx, &pluginapi.Empty{}, grpc.WaitForReady(true))
	if err != nil {
		_ = conn.Close()
		return fmt.Errorf("get the options of the device plugin at %s: %w", socket, err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.stopped {
		_ = conn.Close()
		return fmt.Errorf("connect to the device plugin: kubelet stops")
	}
	k.clients[resource] = c
	k.registrations[resource]++
	k.broadcast()
	k.running.Go(func() {
		k.watch(resource, c)
		k.disconnect(resource)
		_ = conn.Close()
	})
	return nil
}

// watch receives a plugin's lists until its stream ends.
func (k *Kubelet) watch(resource string, c *client) {
	stream, err := c.api.ListAndWatch(context.Background(), &pluginapi.Empty{})
	if err != nil {
		return
	}
	for {
		list, err := stream.Recv()
		if err != nil {
			return
		}
		k.mu.Lock()
		devices := make(map[string]*pluginapi.Device)
		for _, d := range list.GetDevices() {
			devices[d.GetID()] = d
		}
		k.devices[resource] = devices
		k.updates[resource]++
		c.listed = true
		k.broadcast()
		k.mu.Unlock()
		_ = k.WriteCheckpoint() // kubelet logs a failure
	}
}

// disconnect takes a plugin's devices out of service when its stream ends. kubelet looks the plugin up by name then:
// one that has registered anew while its old stream was still open loses its new connection.
func (k *Kubelet) disconnect(resource string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := k.clients[resource]
	if c == nil {
		return
	}
	_ = c.conn.Close()
	delete(k.clients, resource)
	for _, d := range k.devices[resource] {
		d.Health = pluginapi.Unhealthy
	}
	k.broadcast()
}

var (
	domainPattern = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	namePattern   = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`)
)

func isExtendedResource(resource string) bool {
	domain, name, ok := strings.Cut(resource, "/")
	return ok && len("requests."+domain) <= 253 && len(name) <= 63 &&
		!strings.HasSuffix("."+domain, ".kubernetes.io") && !strings.HasPrefix(domain, "requests.") &&
		domainPattern.MatchString(domain) && namePattern.MatchString(name)
}

// Device is a device as kubelet knows it.
type Device struct {
	ID        string
	Healthy   bool
	NUMANodes []int64
}

// Devices returns a resource's devices as last listed, by id; those of a plugin that went are all unhealthy.
func (k *Kubelet) Devices(resource string) []Device {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []Device
	for id, d := range k.devices[resource] {
		device := Device{ID: id, Healthy: d.GetHealth() == pluginapi.Healthy}
		for _, n := range d.GetTopology().GetNodes() {
			device.NUMANodes = append(device.NUMANodes, n.GetID())
		}
		out = append(out, device)
	}
	slices.SortFunc(out, func(a, b Device) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// Resources returns the resources whose plugins are connected, sorted.
func (k *Kubelet) Resources() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Sorted(maps.Keys(k.clients))
}

// Registrations counts the registrations of a resource that were accepted since Start.
func (k *Kubelet) Registrations(resource string) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.registrations[resource]
}

// Updates counts the lists of devices that were received for a resource since Start.
func (k *Kubelet) Updates(resource string) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.updates[resource]
}

// Wait waits until cond, which may call k's methods, holds. It asks again with each change of what k knows.
func (k *Kubelet) Wait(ctx context.Context, cond func() bool) error {
	for {
		k.mu.Lock()
		changed := k.changed
		k.mu.Unlock()
		if cond() {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for kubelet: %w", context.Cause(ctx))
		}
	}
}

// WaitRegistered waits until a resource's plugin is connected and has sent a list.
func (k *Kubelet) WaitRegistered(ctx context.Context, resource string) error {
	err := k.Wait(ctx, func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		c := k.clients[resource]
		return c != nil && c.listed
	})
	if err != nil {
		return fmt.Errorf("%s is not registered: %w", resource, err)
	}
	return nil
}

// WaitHealthy waits until a resource has exactly n healthy devices.
func (k *Kubelet) WaitHealthy(ctx context.Context, resource string, n int) error {
	healthy := 0
	err := k.Wait(ctx, func() bool {
		healthy = 0
		for _, d := range k.Devices(resource) {
			if d.Healthy {
				healthy++
			}
		}
		return healthy == n
	})
	if err != nil {
		return fmt.Errorf("%s has %d healthy devices, not %d: %w", resource, healthy, n, err)
	}
	return nil
}

// DropConnection closes kubelet's connection to a resource's plugin, which is still running.
func (k *Kubelet) DropConnection(resource string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if c := k.clients[resource]; c != nil {
		_ = c.conn.Close()
	}
}
