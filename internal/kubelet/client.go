package kubelet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

const (
	maxMessage = 16 << 20 // bytes of one pod-resources answer, the bound that kubelet's own client has
	maxWait    = 30 * time.Second
	maxPath    = 107 // bytes of a Unix socket's path
)

// Devices lists the devices of one resource.
type Devices struct {
	Resource string
	IDs      []string // sorted, each once
}

// Container is a container that pod-resources tells of: an app container or a sidecar, not an ordinary init container.
type Container struct {
	Name    string
	Devices []Devices // by resource, sorted
}

// PodDevices is what pod-resources tells of one pod.
type PodDevices struct {
	Namespace, Name string
	Containers      []Container
}

// Client reads from one kubelet. Its methods may be called concurrently.
type Client struct {
	root string
	conn *grpc.ClientConn
	api  podresources.PodResourcesListerClient
}

// PodResourcesSocket returns where kubelet with the given root directory serves its pod-resources API.
func PodResourcesSocket(root string) string {
	return filepath.Join(root, "pod-resources", "kubelet.sock")
}

// NewClient makes a client for the kubelet with the given root directory; an empty one is [DefaultRoot]. It connects
// with the first call. The caller closes it.
func NewClient(root string) (*Client, error) {
	if root == "" {
		root = DefaultRoot
	}
	socket := PodResourcesSocket(root)
	if len(socket) > maxPath {
		return nil, fmt.Errorf("use kubelet's socket %s: path of %d bytes, at most %d are possible",
			socket, len(socket), maxPath)
	}
	// The dialer, not a unix: target, so that no character of the path means anything else.
	conn, err := grpc.NewClient("passthrough:///localhost",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		}),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		// A kubelet that restarts is back in seconds: look often.
		grpc.WithConnectParams(grpc.ConnectParams{
			MinConnectTimeout: 5 * time.Second,
			Backoff: grpcbackoff.Config{
				BaseDelay: 50 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: time.Second,
			},
		}))
	if err != nil {
		return nil, fmt.Errorf("use kubelet's socket %s: %w", socket, err)
	}
	return &Client{root: root, conn: conn, api: podresources.NewPodResourcesListerClient(conn)}, nil
}

// Close closes the connection to kubelet.
func (c *Client) Close() error { return c.conn.Close() }

// PodDevices asks for one pod. found is false when kubelet has no such pod, which is not an error. It waits for a
// kubelet that is restarting or limits its rate as long as ctx lasts, at most 30 seconds.
func (c *Client) PodDevices(
	ctx context.Context, namespace, name string,
) (containers []Container, found bool, err error) {
	resp, err := retry(ctx, func() (*podresources.GetPodResourcesResponse, error) {
		return c.api.Get(ctx, &podresources.GetPodResourcesRequest{PodNamespace: namespace, PodName: name})
	})
	if err == nil {
		return fromContainers(resp.GetPodResources().GetContainers()), resp.GetPodResources() != nil, nil
	}
	// kubelet has one code for "no such pod" and "Get is switched off", which only its words tell apart, and before
	// 1.27 it has no Get. List tells the three apart for certain.
	switch status.Code(err) {
	case codes.Unknown, codes.NotFound, codes.Unimplemented:
	default:
		return nil, false, fmt.Errorf("get the devices of pod %s/%s from kubelet (%s): %w",
			namespace, name, PodResourcesSocket(c.root), err)
	}
	pods, err := c.List(ctx)
	if err != nil {
		return nil, false, err
	}
	for _, p := range pods {
		if p.Namespace == namespace && p.Name == name {
			return p.Containers, true, nil
		}
	}
	return nil, false, nil
}

// List asks for all active pods. It waits as PodDevices does.
func (c *Client) List(ctx context.Context) ([]PodDevices, error) {
	resp, err := retry(ctx, func() (*podresources.ListPodResourcesResponse, error) {
		return c.api.List(ctx, &podresources.ListPodResourcesRequest{})
	})
	if err != nil {
		return nil, fmt.Errorf("list the pods' devices from kubelet (%s): %w", PodResourcesSocket(c.root), err)
	}
	pods := make([]PodDevices, 0, len(resp.GetPodResources()))
	for _, p := range resp.GetPodResources() {
		pods = append(pods, PodDevices{p.GetNamespace(), p.GetName(), fromContainers(p.GetContainers())})
	}
	return pods, nil
}

// Checkpoint reads the device checkpoint. found is false when kubelet has none yet, which is certain only where
// kubelet's directory for it exists: without the directory (another root, a mount that is missing) it is an error.
func (c *Client) Checkpoint() (cp Checkpoint, found bool, err error) {
	path := CheckpointPath(c.root)
	cp, err = ReadCheckpoint(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return cp, err == nil, err
	}
	dir := filepath.Dir(path)
	if st, statErr := os.Stat(dir); statErr != nil {
		return Checkpoint{}, false, fmt.Errorf("find kubelet's directory (is its root %s?): %w", c.root, statErr)
	} else if !st.IsDir() {
		return Checkpoint{}, false, fmt.Errorf("find kubelet's directory: %s is not a directory", dir)
	}
	return Checkpoint{}, false, nil
}

// retry repeats a call that kubelet did not take: it is down, or limits the rate (100 a second).
func retry[T any](ctx context.Context, call func() (T, error)) (T, error) {
	var refused error
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval = 20*time.Millisecond, 500*time.Millisecond
	v, err := backoff.Retry(ctx, func() (T, error) {
		v, err := call()
		if err != nil && !transient(err) {
			return v, backoff.Permanent(err)
		}
		refused = err
		return v, err
	}, backoff.WithBackOff(b), backoff.WithMaxElapsedTime(maxWait))
	if err != nil && refused != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w, after %w", context.Cause(ctx), refused)
	}
	return v, err
}

func transient(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable:
		return true
	case codes.ResourceExhausted:
		// gRPC reports an answer beyond our bound with the same code as kubelet its rate limit.
		return !strings.Contains(err.Error(), "larger than max")
	}
	return false
}

// fromContainers merges the API's lists: it has one for each resource and NUMA node.
func fromContainers(in []*podresources.ContainerResources) []Container {
	var out []Container
	for _, c := range in {
		byResource := make(map[string][]string)
		for _, d := range c.GetDevices() {
			byResource[d.GetResourceName()] = append(byResource[d.GetResourceName()], d.GetDeviceIds()...)
		}
		container := Container{Name: c.GetName()}
		for resource, ids := range byResource {
			container.Devices = append(container.Devices, Devices{resource, sortedSet(ids)})
		}
		slices.SortFunc(container.Devices, func(a, b Devices) int { return strings.Compare(a.Resource, b.Resource) })
		out = append(out, container)
	}
	return out
}
