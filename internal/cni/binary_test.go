package cni

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/afxdp-project/afxdp/internal/testutil"
	"github.com/afxdp-project/afxdp/internal/testutil/fakekubelet"
)

func TestBinary(t *testing.T) {
	testutil.NeedKernel(t)
	bin := buildPlugin(t)
	for name, test := range map[string]func(*testing.T, string){
		"is static":                             testBinaryIsStatic,
		"explains itself by hand":               testBinaryByHand,
		"speaks five versions":                  testBinaryVersions,
		"serves a chain from ADD to DEL":        testBinaryInChain,
		"serves an attachment by device id":     testBinaryAsAttachment,
		"finds devices of init containers":      testBinaryInitContainer,
		"lets a node live without the agent":    testBinaryWithoutAgent,
		"is tried again without kubelet":        testBinaryWithoutKubelet,
		"treats the node's own namespace":       testBinaryInHostNamespace,
		"collects garbage and tells its status": testBinaryGCAndStatus,
		"serves many pods at once":              testBinaryManyPods,
	} {
		t.Run(name, func(t *testing.T) { test(t, bin) })
	}
}

func testBinaryIsStatic(t *testing.T, bin string) {
	f, err := elf.Open(bin)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			t.Error("it needs a dynamic linker, which a node need not have")
		}
	}
}

func testBinaryByHand(t *testing.T, bin string) {
	for _, tc := range []struct {
		arg            string
		code           int
		stdout, stderr string
	}{
		{"--version", 0, "afxdp-cni v9.8.7", ""},
		{"--help", 0, "agentSocket", ""},
		{"--frobnicate", 2, "", `"--frobnicate"`},
		{"", 0, "", "CNI protocol versions supported: 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0"},
	} {
		cmd := exec.Command(bin)
		if tc.arg != "" {
			cmd.Args = append(cmd.Args, tc.arg)
		}
		var stdout, stderr bytes.Buffer
		cmd.Env, cmd.Stdout, cmd.Stderr = []string{"PATH=/"}, &stdout, &stderr
		err := cmd.Run()
		if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		matches := func(got, want string) bool { return strings.Contains(got, want) && (want != "" || got == "") }
		if cmd.ProcessState.ExitCode() != tc.code ||
			!matches(stdout.String(), tc.stdout) || !matches(stderr.String(), tc.stderr) {
			t.Errorf("afxdp-cni %s: %v\nstdout: %s\nstderr: %s", tc.arg, cmd.ProcessState, &stdout, &stderr)
		}
	}
}

func testBinaryVersions(t *testing.T, bin string) {
	n := newNode(t, bin, fakekubelet.Config{})
	info, err := n.cni.GetVersionInfo(t.Context(), "afxdp-cni")
	if err != nil || !slices.Equal(info.SupportedVersions(), specVersions()) {
		t.Errorf("got %v, %v", info, err)
	}
	for _, version := range []string{"0.1.0", "0.2.0", "2.0.0"} {
		_, err := n.run(t.Context(), bin, "ADD", n.chain(t, version, ""), runtimeConf("u1", "/nowhere"))
		wantCode(t, err, types.ErrIncompatibleCNIVersion)
	}
}

func testBinaryInChain(t *testing.T, bin string) {
	n := newNode(t, bin, fakekubelet.Config{})
	n.addPod(t, "u1", "eth1-q0", "eth1-q1")
	for _, version := range specVersions() {
		rt, list := runtimeConf("u1", testutil.NewNetns(t).Path()), n.chain(t, version, "")
		got, err := n.cni.AddNetworkList(t.Context(), list, rt)
		if err != nil {
			t.Fatalf("%s: ADD: %v", version, err)
		}
		result, err := types100.GetResult(got)
		if err != nil || got.Version() != version {
			t.Fatalf("%s: result of version %s, %v", version, got.Version(), err)
		}
		ours := &types100.Interface{Name: "eth1", Mac: "02:00:00:00:00:01"}
		if version == "1.1.0" {
			ours.Mtu, ours.PciID, ours.SocketPath = 3000, "0000:3b:00.1", "/run/a"
		}
		want := []*types100.Interface{{Name: "eth0", Sandbox: rt.NetNS}, ours}
		if !reflect.DeepEqual(result.Interfaces, want) {
			t.Errorf("%s: interfaces %v, want %v", version, result.Interfaces, want)
		}
		if len(result.IPs) != 1 || *result.IPs[0].Interface != 0 || result.IPs[0].Address.String() != "10.1.0.5/16" {
			t.Errorf("%s: IPs %v", version, result.IPs)
		}
		ids := n.agent.get("net", "sandbox-u1", "eth0").GetAllocations()[0].GetDeviceIds()
		if !slices.Equal(ids, []string{"eth1-q0", "eth1-q1"}) {
			t.Errorf("%s: the agent was told of %v", version, ids)
		}
		if err := n.cni.CheckNetworkList(t.Context(), list, rt); !checked(version, err) {
			t.Errorf("%s: CHECK: %v", version, err)
		}
		for range 2 {
			if err := n.cni.DelNetworkList(t.Context(), list, rt); err != nil {
				t.Errorf("%s: DEL: %v", version, err)
			}
		}
		if n.agent.count() != 0 {
			t.Errorf("%s: an attachment is left", version)
		}
	}
	if n.stderr.Len() != 0 {
		t.Errorf("stderr: %s", n.stderr.Bytes())
	}
}

// checked reports whether err is what CHECK has to end with: before 0.4.0 the specification has none.
func checked(version string, err error) bool {
	if strings.HasPrefix(version, "0.3.") {
		return errors.Is(err, libcni.ErrorCheckNotSupp)
	}
	return err == nil
}

func testBinaryAsAttachment(t *testing.T, bin string) {
	n := newNode(t, bin, fakekubelet.Config{})
	n.addPod(t, "u1", "eth1-q0", "eth1-q1")
	// As Multus calls it: the device id at both places, and pairs of CNI_ARGS twice.
	net, err := libcni.NetworkPluginConfFromBytes(fmt.Appendf(nil, `{"cniVersion":"1.0.0","name":"fast",%s`,
		n.plugin(`,"capabilities":{"deviceID":true,"CNIDeviceInfoFile":true},"deviceID":"eth1-q1","pciBusID":"eth1-q1","args":{"cni":{"x":"y"}}`)[1:]))
	if err != nil {
		t.Fatal(err)
	}
	rt := runtimeConf("u1", testutil.NewNetns(t).Path())
	rt.Args = append(rt.Args, rt.Args...)
	rt.Args[0][1] = "true"
	rt.IfName = "net1"
	rt.CapabilityArgs = map[string]any{"deviceID": "eth1-q1", "CNIDeviceInfoFile": "/nowhere/net1"}
	if _, err := n.cni.AddNetwork(t.Context(), net, rt); err != nil {
		t.Fatal(err)
	}
	if n.agent.get("fast", "sandbox-u1", "net1") == nil {
		t.Error("not attached")
	}
	if err := n.cni.CheckNetwork(t.Context(), net, rt); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	if err := n.cni.DelNetwork(t.Context(), net, rt); err != nil || n.agent.count() != 0 {
		t.Errorf("DEL: %v, %d attachments left", err, n.agent.count())
	}
	if net, err = libcni.InjectConf(net, map[string]any{"deviceID": "eth7-q0"}); err != nil {
		t.Fatal(err)
	}
	rt.CapabilityArgs["deviceID"] = "eth7-q0"
	_, err = n.cni.AddNetwork(t.Context(), net, rt)
	wantCode(t, err, codeUnknownDevice)
}

func testBinaryInitContainer(t *testing.T, bin string) {
	n := newNode(t, bin, fakekubelet.Config{})
	n.addPod(t, "u1")
	if err := n.kubelet.Grant("u1", "init", "afxdp.io/slow", "eth2-q0"); err != nil {
		t.Fatal(err)
	}
	rt := runtimeConf("u1", testutil.NewNetns(t).Path())
	if _, err := n.cni.AddNetworkList(t.Context(), n.chain(t, "1.1.0", ""), rt); err != nil {
		t.Fatal(err)
	}
	a := n.agent.get("net", "sandbox-u1", "eth0").GetAllocations()
	if len(a) != 1 || a[0].GetContainer() != "init" || a[0].GetResource() != "afxdp.io/slow" {
		t.Errorf("the agent was told of %v", a)
	}
}

// Field case 40: the agent is down.
func testBinaryWithoutAgent(t *testing.T, bin string) {
	n := newNode(t, bin, fakekubelet.Config{})
	n.addPod(t, "u1", "eth1-q0")
	n.addPod(t, "u2")
	n.stopAgent()
	netns, list := testutil.NewNetns(t).Path(), n.chain(t, "1.1.0", "")
	_, err := n.cni.AddNetworkList(t.Context(), list, runtimeConf("u1", netns))
	wantCode(t, err, types.ErrTryAgainLater)
	if err := n.cni.DelNetworkList(t.Context(), list, runtimeConf("u1", netns)); err != nil {
		t.Errorf("DEL: %v", err)
	}
	rt := runtimeConf("u2", netns)
	got, err := n.cni.AddNetworkList(t.Context(), list, rt)
	if err != nil {
		t.Fatalf("ADD of a pod without devices: %v", err)
	}
	if result, err := types100.GetResult(got); err != nil || len(result.Interfaces) != 1 || len(result.IPs) != 1 {
		t.Errorf("result %v, %v: want the main plugin's", got, err)
	}
	if err := n.cni.CheckNetworkList(t.Context(), list, rt); err != nil {
		t.Errorf("CHECK of a pod without devices: %v", err)
	}
	if err := n.cni.DelNetworkList(t.Context(), list, rt); err != nil {
		t.Errorf("DEL of a pod without devices: %v", err)
	}
}

func testBinaryWithoutKubelet(t *testing.T, bin string) {
	n := newNode(t, bin, fakekubelet.Config{})
	n.addPod(t, "u1")
	if err := n.kubelet.Stop(); err != nil {
		t.Fatal(err)
	}
	list := n.chain(t, "1.1.0", `,"timeout":"1s"`) // of two equal keys the later one counts
	rt := runtimeConf("u1", testutil.NewNetns(t).Path())
	_, err := n.cni.AddNetworkList(t.Context(), list, rt)
	if e := wantCode(t, err, types.ErrTryAgainLater); !strings.Contains(e.Details, n.root) {
		t.Errorf("advice %q, want kubelet's root directory in it", e.Details)
	}
	if err := n.cni.DelNetworkList(t.Context(), list, rt); err != nil {
		t.Errorf("DEL: %v", err)
	}
	if calls := n.agent.called(); !slices.Equal(calls, []string{"Detach"}) {
		t.Errorf("calls %v, want Detach only", calls)
	}
	if err := n.kubelet.Resume(true); err != nil {
		t.Fatal(err)
	}
	if _, err := n.cni.AddNetworkList(t.Context(), list, rt); err != nil {
		t.Errorf("with kubelet back: %v", err)
	}
}

func testBinaryInHostNamespace(t *testing.T, bin string) {
	n := newNode(t, bin, fakekubelet.Config{})
	n.addPod(t, "u1", "eth1-q0")
	n.addPod(t, "u2")
	own, list := "/proc/thread-self/ns/net", n.chain(t, "1.1.0", "") // that of the plugin, where the runtime starts it
	_, err := n.cni.AddNetworkList(t.Context(), list, runtimeConf("u1", own))
	if e := wantCode(t, err, types.ErrInvalidNetNS); !strings.Contains(e.Msg, "host-network") {
		t.Errorf("got %q", e.Msg)
	}
	if _, err := n.cni.AddNetworkList(t.Context(), list, runtimeConf("u2", own)); err != nil {
		t.Errorf("ADD of a pod without devices: %v", err)
	}
	// The number of a process that is gone may have become that of a process of the node.
	if err := n.cni.DelNetworkList(t.Context(), list, runtimeConf("u1", own)); err != nil {
		t.Errorf("DEL: %v", err)
	}
	if calls := n.agent.called(); !slices.Equal(calls, []string{"Detach"}) {
		t.Errorf("calls %v, want Detach only", calls)
	}
}

func testBinaryGCAndStatus(t *testing.T, bin string) {
	n := newNode(t, bin, fakekubelet.Config{})
	n.addPod(t, "u1", "eth1-q0")
	n.addPod(t, "u2", "eth1-q1")
	chained, standalone := n.chain(t, "1.1.0", ""), n.chain(t, "1.1.0", `,"standalone":true`)
	for _, uid := range []string{"u1", "u2"} {
		rt := runtimeConf(uid, testutil.NewNetns(t).Path())
		if _, err := n.cni.AddNetworkList(t.Context(), chained, rt); err != nil {
			t.Fatal(err)
		}
	}
	n.agent.called()
	valid := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: "sandbox-u2", IfName: "eth0"}}}
	if err := n.cni.GCNetworkList(t.Context(), chained, valid); err != nil {
		t.Fatal(err)
	}
	if n.agent.count() != 1 || n.agent.get("net", "sandbox-u2", "eth0") == nil ||
		!slices.Contains(n.agent.called(), "CollectGarbage") {
		t.Errorf("%d attachments left, want that of u2", n.agent.count())
	}
	for _, list := range []*libcni.NetworkConfigList{chained, standalone} {
		if err := n.cni.GetStatusNetworkList(t.Context(), list); err != nil {
			t.Errorf("STATUS: %v", err)
		}
	}
	n.stopAgent()
	if err := n.cni.GetStatusNetworkList(t.Context(), chained); err != nil {
		t.Errorf("STATUS without the agent in a chain: %v", err)
	}
	wantCode(t, n.cni.GetStatusNetworkList(t.Context(), standalone), types.ErrPluginNotAvailable)
}

// Field case 41, with kubelet's rate limit.
func testBinaryManyPods(t *testing.T, bin string) {
	n := newNode(t, bin, fakekubelet.Config{RateLimit: 100})
	netns, list := testutil.NewNetns(t).Path(), n.chain(t, "1.1.0", "")
	const pods = 40
	for i := range pods {
		n.addPod(t, fmt.Sprint("u", i), fmt.Sprint("eth1-q", i))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var all sync.WaitGroup
	for i := range pods {
		all.Go(func() {
			rt := runtimeConf(fmt.Sprint("u", i), netns)
			got, err := n.run(ctx, bin, "ADD", list, rt)
			if err != nil {
				t.Errorf("pod %d: ADD: %v", i, err)
				return
			}
			if !json.Valid(got) || !bytes.Contains(got, []byte(`"eth1"`)) {
				t.Errorf("pod %d: result %s", i, got)
			}
			ids := n.agent.get("net", rt.ContainerID, "eth0").GetAllocations()[0].GetDeviceIds()
			if !slices.Equal(ids, []string{fmt.Sprint("eth1-q", i)}) {
				t.Errorf("pod %d: the agent was told of %v", i, ids)
			}
			if _, err := n.run(ctx, bin, "DEL", list, rt); err != nil {
				t.Errorf("pod %d: DEL: %v", i, err)
			}
		})
	}
	all.Wait()
	// On a machine that is busy enough a DEL runs into its deadline and is left to the agent.
	for i := range pods {
		if _, err := n.run(ctx, bin, "DEL", list, runtimeConf(fmt.Sprint("u", i), netns)); err != nil {
			t.Errorf("pod %d: second DEL: %v", i, err)
		}
	}
	if left := n.agent.count(); left != 0 {
		t.Errorf("%d attachments left", left)
	}
}
