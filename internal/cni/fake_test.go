package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"google.golang.org/grpc"

	"github.com/afxdp-project/afxdp/internal/agentapi"
	"github.com/afxdp-project/afxdp/internal/kubelet"
)

// fakeAgent keeps the attachments that it was asked for, as the agent does, and fails where a test wants it to.
type fakeAgent struct {
	agentapi.UnimplementedAgentServer
	socket string
	nics   []*agentapi.NIC

	mu       sync.Mutex
	fail     error // of every call
	calls    []string
	attached map[string]*agentapi.AttachRequest
	valid    []*agentapi.Attachment // of the last CollectGarbage
	detached chan struct{}          // closed by the first Detach
}

func key(a *agentapi.Attachment) string {
	return a.GetNetwork() + " " + a.GetContainerId() + " " + a.GetIfname()
}

// tempDir makes a directory with a path that is short enough for a Unix socket.
func tempDir(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("", "cni")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// startAgent serves a fake agent until stop is called or the test ends.
func startAgent(tb testing.TB) (a *fakeAgent, stop func()) {
	tb.Helper()
	a = &fakeAgent{
		socket: filepath.Join(tempDir(tb), "agent.sock"),
		nics: []*agentapi.NIC{{
			Name: "eth1", Mac: "02:00:00:00:00:01", Mtu: 3000, PciId: "0000:3b:00.1", SocketPath: "/run/a",
		}},
		attached: map[string]*agentapi.AttachRequest{},
		detached: make(chan struct{}),
	}
	l, err := net.Listen("unix", a.socket)
	if err != nil {
		tb.Fatal(err)
	}
	s := grpc.NewServer(grpc.WaitForHandlers(true))
	agentapi.RegisterAgentServer(s, a)
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.Serve(l) })
	stop = sync.OnceFunc(func() { s.Stop(); serving.Wait() })
	tb.Cleanup(stop)
	return a, stop
}

func (a *fakeAgent) failWith(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fail = err
}

// record notes a call; the caller holds no lock.
func (a *fakeAgent) record(call string, effect func()) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls = append(a.calls, call)
	if a.fail == nil {
		effect()
	}
	return a.fail
}

func (a *fakeAgent) Attach(_ context.Context, r *agentapi.AttachRequest) (*agentapi.AttachResponse, error) {
	err := a.record("Attach", func() { a.attached[key(r.GetAttachment())] = r })
	return &agentapi.AttachResponse{Nics: a.nics}, err
}

func (a *fakeAgent) Detach(_ context.Context, r *agentapi.DetachRequest) (*agentapi.DetachResponse, error) {
	err := a.record("Detach", func() {
		delete(a.attached, key(r.GetAttachment()))
		select {
		case <-a.detached:
		default:
			close(a.detached)
		}
	})
	return &agentapi.DetachResponse{}, err
}

func (a *fakeAgent) Check(context.Context, *agentapi.CheckRequest) (*agentapi.CheckResponse, error) {
	return &agentapi.CheckResponse{Nics: a.nics}, a.record("Check", func() {})
}

func (a *fakeAgent) CollectGarbage(
	_ context.Context, r *agentapi.CollectGarbageRequest,
) (*agentapi.CollectGarbageResponse, error) {
	return &agentapi.CollectGarbageResponse{}, a.record("CollectGarbage", func() {
		a.valid = r.GetValid()
		for k, req := range a.attached {
			valid := slices.ContainsFunc(r.GetValid(), func(v *agentapi.Attachment) bool { return key(v) == k })
			if req.GetAttachment().GetNetwork() == r.GetNetwork() && !valid {
				delete(a.attached, k)
			}
		}
	})
}

func (a *fakeAgent) Status(context.Context, *agentapi.StatusRequest) (*agentapi.StatusResponse, error) {
	return &agentapi.StatusResponse{Version: "test"}, a.record("Status", func() {})
}

// called returns the calls since it was last asked.
func (a *fakeAgent) called() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	calls := a.calls
	a.calls = nil
	return calls
}

// get returns an attachment's request, or nil.
func (a *fakeAgent) get(network, container, ifname string) *agentapi.AttachRequest {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.attached[key(&agentapi.Attachment{Network: network, ContainerId: container, Ifname: ifname})]
}

func (a *fakeAgent) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.attached)
}

// fakeDevices is kubelet's knowledge by pod UID, and by namespace and name for a pod without one.
type fakeDevices map[string][]kubelet.Allocation

func (d fakeDevices) find(_ context.Context, _ string, pod kubelet.Pod) ([]kubelet.Allocation, error) {
	if pod.UID == "" {
		return d[pod.Namespace+"/"+pod.Name], nil
	}
	return d[pod.UID], nil
}

// specVersions lists the versions of the CNI specification that the plugin has to speak.
func specVersions() []string { return []string{"0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"} }

const podArgs = "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=pod;K8S_POD_INFRA_CONTAINER_ID=c1;K8S_POD_UID=u1"

// onePod has two devices for the app container of pod u1, which has no others.
func onePod() fakeDevices {
	return fakeDevices{"u1": {{Resource: "afxdp.io/fast", Container: "app", DeviceIDs: []string{"eth1-q0", "eth1-q1"}}}}
}

// rig runs verbs in this process.
type rig struct {
	Plugin
	stdout, stderr bytes.Buffer
}

func newRig(devices fakeDevices) *rig {
	r := &rig{}
	r.Devices, r.Stdout, r.Stderr = devices.find, &r.stdout, &r.stderr
	return r
}

// conf builds a network configuration; more overrides and adds keys.
func conf(version, socket string, more map[string]any) []byte {
	c := map[string]any{"cniVersion": version, "name": "net", "type": "afxdp-cni", "agentSocket": socket}
	for k, v := range more {
		c[k] = v
	}
	data, err := json.Marshal(c)
	if err != nil {
		panic(err)
	}
	return data
}

func cmdArgs(netns, args string, stdin []byte) *skel.CmdArgs {
	return &skel.CmdArgs{ContainerID: "c1", Netns: netns, IfName: "eth0", Args: args, StdinData: stdin}
}

// text is what a CNI error tells.
type text struct{ Msg, Details string }

// wantCode fails the test unless err is a CNI error with a code.
func wantCode(tb testing.TB, err error, code uint) text {
	tb.Helper()
	var e *types.Error
	if !errors.As(err, &e) || e.Code != code {
		tb.Fatalf("got %#v (%v), want CNI error %d", err, err, code)
	}
	return text{e.Msg, e.Details}
}

// decode reads JSON into a value of general types, to compare what it means.
func decode(tb testing.TB, data []byte) any {
	tb.Helper()
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		tb.Fatalf("decode %q: %v", data, err)
	}
	return v
}

// printed returns the result on stdout and forgets it.
func (r *rig) printed(tb testing.TB) any {
	tb.Helper()
	defer r.stdout.Reset()
	return decode(tb, r.stdout.Bytes())
}
