package cni

import (
	"context"
	"errors"
	"maps"
	"net"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/types/create"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/afxdp-project/afxdp/internal/agentapi"
	"github.com/afxdp-project/afxdp/internal/kubelet"
	"github.com/afxdp-project/afxdp/internal/testutil"
)

// prevResult is a main plugin's, with a key that no library knows.
func prevResult(version string) map[string]any {
	return map[string]any{
		"cniVersion": version,
		"interfaces": []any{
			map[string]any{"name": "veth1", "mac": "0a:00:00:00:00:01"},
			map[string]any{"name": "eth0", "mac": "0a:00:00:00:00:02", "sandbox": "/run/netns/x", "x.example/key": "<&>"},
		},
		"ips":           []any{map[string]any{"address": "10.1.0.5/16", "version": "4", "interface": float64(1)}},
		"routes":        []any{map[string]any{"dst": "0.0.0.0/0", "table": float64(7)}},
		"x.example/big": float64(12345678),
	}
}

func ourInterface(version string) map[string]any {
	i := map[string]any{"name": "eth1", "mac": "02:00:00:00:00:01"}
	if version == "1.1.0" {
		maps.Copy(i, map[string]any{"mtu": float64(3000), "pciID": "0000:3b:00.1", "socketPath": "/run/a"})
	}
	return i
}

func TestAddAppendsTheNICsToTheResult(t *testing.T) {
	netns := testutil.NewNetns(t)
	for _, version := range specVersions() {
		t.Run(version, func(t *testing.T) {
			agent, _ := startAgent(t)
			r := newRig(onePod())
			stdin := conf(version, agent.socket, map[string]any{"prevResult": prevResult(version)})
			if err := r.Add(cmdArgs(netns.Path(), podArgs, stdin)); err != nil {
				t.Fatal(err)
			}
			if _, err := create.CreateFromBytes(r.stdout.Bytes()); err != nil {
				t.Errorf("the CNI library cannot read the result: %v", err)
			}
			want := prevResult(version)
			want["interfaces"] = append(want["interfaces"].([]any), ourInterface(version))
			if got := r.printed(t); !reflect.DeepEqual(got, want) {
				t.Errorf("got  %v\nwant %v", got, want)
			}
		})
	}
}

func TestAddTellsTheAgentWhatItFound(t *testing.T) {
	netns := testutil.NewNetns(t)
	agent, _ := startAgent(t)
	r := newRig(fakeDevices{"u1": {
		{Resource: "afxdp.io/fast", Container: "app", DeviceIDs: []string{"eth1-q0", "eth1-q1"}},
		{Resource: "afxdp.io/slow", Container: "init", DeviceIDs: []string{"eth2-q0"}},
	}})
	if err := r.Add(cmdArgs(netns.Path(), podArgs, conf("1.1.0", agent.socket, nil))); err != nil {
		t.Fatal(err)
	}
	var cookie uint64
	if err := netns.Do(func() (err error) { cookie, err = cookieHere(); return err }); err != nil {
		t.Fatal(err)
	}
	want := &agentapi.AttachRequest{
		Attachment:  &agentapi.Attachment{Network: "net", ContainerId: "c1", Ifname: "eth0"},
		Pod:         &agentapi.Pod{Uid: "u1", Namespace: "ns", Name: "pod"},
		NetnsCookie: cookie,
		Allocations: []*agentapi.Allocation{
			{Resource: "afxdp.io/fast", Container: "app", DeviceIds: []string{"eth1-q0", "eth1-q1"}},
			{Resource: "afxdp.io/slow", Container: "init", DeviceIds: []string{"eth2-q0"}},
		},
	}
	if got := agent.get("net", "c1", "eth0"); !proto.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

// Field case 38: the same result.
func TestAddRetriedGivesTheSameResultAndListsNoNICTwice(t *testing.T) {
	netns := testutil.NewNetns(t)
	agent, _ := startAgent(t)
	agent.nics = append(agent.nics, agent.nics[0])
	r := newRig(onePod())
	stdin := conf("1.1.0", agent.socket, map[string]any{"prevResult": prevResult("1.1.0")})
	add := func(stdin []byte) any {
		t.Helper()
		if err := r.Add(cmdArgs(netns.Path(), podArgs, stdin)); err != nil {
			t.Fatal(err)
		}
		return r.printed(t)
	}
	first := add(stdin)
	if second := add(stdin); !reflect.DeepEqual(first, second) {
		t.Errorf("the first gave  %v\nthe second gave %v", first, second)
	}
	// A runtime may also give the first result as the previous one.
	again := add(conf("1.1.0", agent.socket, map[string]any{"prevResult": first}))
	if !reflect.DeepEqual(first, again) {
		t.Errorf("the first gave %v\nwith that as prevResult %v", first, again)
	}
	if n := agent.count(); n != 1 {
		t.Errorf("the agent has %d attachments, want 1", n)
	}
}

func TestAddCompletesAnEntryOfAnotherPluginForTheSameNIC(t *testing.T) {
	netns := testutil.NewNetns(t)
	agent, _ := startAgent(t)
	r := newRig(onePod())
	prev := map[string]any{"cniVersion": "1.1.0", "interfaces": []any{
		map[string]any{"name": "eth1", "mac": "theirs", "x.example/key": "kept"},
		map[string]any{"name": "eth1", "sandbox": "/run/netns/x"}, // the pod's, another one
	}}
	stdin := conf("1.1.0", agent.socket, map[string]any{"prevResult": prev})
	if err := r.Add(cmdArgs(netns.Path(), podArgs, stdin)); err != nil {
		t.Fatal(err)
	}
	entry := ourInterface("1.1.0")
	maps.Copy(entry, map[string]any{"mac": "theirs", "x.example/key": "kept"})
	want := map[string]any{"cniVersion": "1.1.0", "interfaces": []any{entry, prev["interfaces"].([]any)[1]}}
	if got := r.printed(t); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

// Field case 40: pods without our devices are untouched.
func TestAddPassesPodsWithoutDevicesWithoutTheAgent(t *testing.T) {
	for name, args := range map[string]string{
		"pod":        podArgs,
		"no UID":     "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=pod",
		"no pod":     "IgnoreUnknown=1",
		"no CNIArgs": "",
	} {
		t.Run(name, func(t *testing.T) {
			agent, stop := startAgent(t)
			for _, version := range specVersions() {
				r := newRig(nil)
				stdin := conf(version, agent.socket, map[string]any{"prevResult": prevResult(version)})
				// Not even the namespace is looked at.
				if err := r.Add(cmdArgs("/nowhere", args, stdin)); err != nil {
					t.Fatal(err)
				}
				if got := r.printed(t); !reflect.DeepEqual(got, any(prevResult(version))) {
					t.Errorf("got %v, want prevResult", got)
				}
				if calls := agent.called(); len(calls) != 0 {
					t.Errorf("the agent was asked: %v", calls)
				}
			}
			stop()
			r := newRig(nil)
			if err := r.Add(cmdArgs("/nowhere", args, conf("1.0.0", agent.socket, nil))); err != nil {
				t.Fatalf("without the agent: %v", err)
			}
			if got := r.printed(t); !reflect.DeepEqual(got, map[string]any{"cniVersion": "1.0.0"}) {
				t.Errorf("got %v, want only the version", got)
			}
		})
	}
}

func TestAddPassesThePreviousResultByteForByte(t *testing.T) {
	prev := `{ "cniVersion":"1.1.0", "z":1e3,"interfaces":[],  "a":"<\u0041&>" }`
	r := newRig(nil)
	stdin := []byte(`{"cniVersion":"1.1.0","name":"net","type":"afxdp-cni","prevResult":` + prev + `}`)
	if err := r.Add(cmdArgs("", podArgs, stdin)); err != nil {
		t.Fatal(err)
	}
	if got := r.stdout.String(); got != prev {
		t.Errorf("got  %s\nwant %s", got, prev)
	}
}

func TestAddTakesAPreviousResultOfAnotherVersion(t *testing.T) {
	r := newRig(nil)
	for from, to := range map[string]string{"0.4.0": "1.1.0", "0.3.1": "1.0.0", "0.3.0": "0.3.1", "1.0.0": "0.3.1", "1.1.0": "0.4.0"} {
		if err := r.Add(cmdArgs("", "", conf(to, "/a", map[string]any{"prevResult": prevResult(from)}))); err != nil {
			t.Fatal(err)
		}
		got, err := create.Create(to, r.stdout.Bytes())
		if err != nil || got.Version() != to || !strings.Contains(r.stdout.String(), "10.1.0.5/16") {
			t.Errorf("%s to %s: got %s, %v", from, to, r.stdout.Bytes(), err)
		}
		r.stdout.Reset()
	}
	prev := prevResult("0.4.0")
	delete(prev, "cniVersion")
	if err := r.Add(cmdArgs("", "", conf("0.4.0", "/a", map[string]any{"prevResult": prev}))); err != nil {
		t.Fatal(err)
	}
	if got := r.printed(t); !reflect.DeepEqual(got, any(prevResult("0.4.0"))) {
		t.Errorf("without a version: got %v", got)
	}
	prev["cniVersion"] = "9.0.0"
	err := r.Add(cmdArgs("", "", conf("1.1.0", "/a", map[string]any{"prevResult": prev})))
	wantCode(t, err, types.ErrIncompatibleCNIVersion)
}

func TestAddRefusesABrokenPreviousResultBeforeAnythingIsChanged(t *testing.T) {
	netns := testutil.NewNetns(t)
	agent, _ := startAgent(t)
	for _, prev := range []any{
		7, []any{}, map[string]any{"cniVersion": 1}, map[string]any{"cniVersion": "1.1.0", "interfaces": "x"},
		map[string]any{"cniVersion": "1.1.0", "interfaces": []any{"x"}},
	} {
		r := newRig(onePod())
		err := r.Add(cmdArgs(netns.Path(), podArgs, conf("1.1.0", agent.socket, map[string]any{"prevResult": prev})))
		wantCode(t, err, types.ErrDecodingFailure)
		if calls := agent.called(); len(calls) != 0 || r.stdout.Len() != 0 {
			t.Errorf("%v: the agent was asked (%v) or a result printed (%s)", prev, calls, r.stdout.Bytes())
		}
	}
}

// Field case 40: error "try again later".
func TestAddWithoutTheAgentIsTriedAgainLater(t *testing.T) {
	netns := testutil.NewNetns(t)
	agent, stop := startAgent(t)
	stop()
	r := newRig(onePod())
	err := r.Add(cmdArgs(netns.Path(), podArgs, conf("1.1.0", agent.socket, nil)))
	e := wantCode(t, err, types.ErrTryAgainLater)
	if !strings.Contains(e.Msg, agent.socket) || !strings.Contains(e.Msg, "ns/pod") || e.Details == "" {
		t.Errorf("got %q; %q: want the socket, the pod and advice", e.Msg, e.Details)
	}
	if r.stdout.Len() != 0 {
		t.Errorf("printed %s", r.stdout.Bytes())
	}
}

func TestAddDoesNotWaitForAnAgentThatHangs(t *testing.T) {
	netns := testutil.NewNetns(t)
	socket := filepath.Join(tempDir(t), "agent.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	r := newRig(onePod())
	err = r.Add(cmdArgs(netns.Path(), podArgs, conf("1.1.0", socket, map[string]any{"timeout": "1s"})))
	wantCode(t, err, types.ErrTryAgainLater)
}

func TestAddDoesNotTakeAFailureToFindDevicesForNone(t *testing.T) {
	agent, _ := startAgent(t)
	r := newRig(nil)
	r.Devices = func(context.Context, string, kubelet.Pod) ([]kubelet.Allocation, error) {
		return nil, errors.New("pod-resources is on holiday")
	}
	err := r.Add(cmdArgs("", podArgs, conf("1.1.0", agent.socket, map[string]any{"kubeletRoot": "/other"})))
	e := wantCode(t, err, types.ErrTryAgainLater)
	if !strings.Contains(e.Msg, "on holiday") || !strings.Contains(e.Details, "/other") {
		t.Errorf("got %q; %q: want the cause and the root directory", e.Msg, e.Details)
	}
	if r.stdout.Len() != 0 || len(agent.called()) != 0 {
		t.Error("a result was printed or the agent asked")
	}
}

// Field case 5: two pods of one name in two namespaces never mix.
func TestAddKeepsPodsOfOneNameApart(t *testing.T) {
	agent, _ := startAgent(t)
	r := newRig(fakeDevices{
		"u1": {{Resource: "afxdp.io/fast", Container: "app", DeviceIDs: []string{"eth1-q0"}}},
		"u2": {{Resource: "afxdp.io/fast", Container: "app", DeviceIDs: []string{"eth1-q1"}}},
	})
	cookies := map[uint64]bool{}
	for uid, id := range map[string]string{"u1": "eth1-q0", "u2": "eth1-q1"} {
		netns := testutil.NewNetns(t)
		args := cmdArgs(netns.Path(), "K8S_POD_NAMESPACE=ns-"+uid+";K8S_POD_NAME=same;K8S_POD_UID="+uid,
			conf("1.1.0", agent.socket, nil))
		args.ContainerID = "sandbox-" + uid
		if err := r.Add(args); err != nil {
			t.Fatal(err)
		}
		got := agent.get("net", "sandbox-"+uid, "eth0")
		if got.GetPod().GetUid() != uid || got.GetPod().GetNamespace() != "ns-"+uid ||
			!slices.Equal(got.GetAllocations()[0].GetDeviceIds(), []string{id}) {
			t.Errorf("pod %s: the agent was told %v", uid, got)
		}
		cookies[got.GetNetnsCookie()] = true
	}
	if len(cookies) != 2 {
		t.Errorf("cookies %v, want two", cookies)
	}
}

func TestAddTranslatesTheAgentsErrors(t *testing.T) {
	netns := testutil.NewNetns(t)
	agent, _ := startAgent(t)
	for code, want := range map[codes.Code]uint{
		codes.Unavailable:        11,
		codes.DeadlineExceeded:   11,
		codes.ResourceExhausted:  11,
		codes.Aborted:            11,
		codes.InvalidArgument:    7,
		codes.FailedPrecondition: 100,
		codes.NotFound:           101,
		codes.AlreadyExists:      103,
		codes.PermissionDenied:   103,
		codes.Internal:           999,
		codes.Unknown:            999,
		codes.Unimplemented:      999,
	} {
		t.Run(code.String(), func(t *testing.T) {
			agent.failWith(status.Error(code, "eth1 has the XDP program foreign (id 7)"))
			r := newRig(onePod())
			err := r.Add(cmdArgs(netns.Path(), podArgs, conf("1.1.0", agent.socket, nil)))
			if e := wantCode(t, err, want); !strings.Contains(e.Msg, "foreign (id 7)") || !strings.Contains(e.Msg, "u1") {
				t.Errorf("got %q, want the agent's reason and the pod in it", e.Msg)
			}
			if r.stdout.Len() != 0 {
				t.Errorf("printed %s", r.stdout.Bytes())
			}
		})
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("pipe is broken") }

// Field case 37: all undone.
func TestAddThatCannotReportItsResultIsUndone(t *testing.T) {
	netns := testutil.NewNetns(t)
	agent, _ := startAgent(t)
	r := newRig(onePod())
	r.Stdout = brokenWriter{}
	err := r.Add(cmdArgs(netns.Path(), podArgs, conf("1.1.0", agent.socket, nil)))
	if err == nil || !strings.Contains(err.Error(), "pipe is broken") {
		t.Errorf("got %v", err)
	}
	if calls := agent.called(); !slices.Equal(calls, []string{"Attach", "Detach"}) || agent.count() != 0 {
		t.Errorf("calls %v, %d attachments left", calls, agent.count())
	}
}
