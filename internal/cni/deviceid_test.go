package cni

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/afxdp-project/afxdp/internal/testutil"
)

func TestDeviceIDSelectsAllOfItsPodsDevices(t *testing.T) {
	netns := testutil.NewNetns(t)
	for name, more := range map[string]map[string]any{
		"top level":     {"deviceID": "eth1-q1"},
		"runtimeConfig": {"runtimeConfig": map[string]any{"deviceID": "eth1-q1"}},
		"both":          {"deviceID": "eth1-q1", "runtimeConfig": map[string]any{"deviceID": "eth1-q1"}},
	} {
		t.Run(name, func(t *testing.T) {
			agent, _ := startAgent(t)
			r := newRig(onePod())
			args := cmdArgs(netns.Path(), podArgs, conf("1.0.0", agent.socket, more))
			args.IfName = "net1"
			if err := r.Add(args); err != nil {
				t.Fatal(err)
			}
			want := map[string]any{"cniVersion": "1.0.0", "interfaces": []any{ourInterface("1.0.0")}}
			if got := r.printed(t); !reflect.DeepEqual(got, want) {
				t.Errorf("got  %v\nwant %v", got, want)
			}
			ids := agent.get("net", "c1", "net1").GetAllocations()[0].GetDeviceIds()
			if !slices.Equal(ids, []string{"eth1-q0", "eth1-q1"}) {
				t.Errorf("the agent was told of %v, want both devices", ids)
			}
		})
	}
}

func TestDeviceIDThatIsNotThePodsIsRefused(t *testing.T) {
	agent, _ := startAgent(t)
	more := map[string]any{"deviceID": "eth9-q0"}
	for name, tc := range map[string]struct {
		devices fakeDevices
		args    string
		code    uint
	}{
		"of another":         {onePod(), podArgs, codeUnknownDevice},
		"pod has none":       {nil, podArgs, codeUnknownDevice},
		"no pod in CNI_ARGS": {onePod(), "IgnoreUnknown=1", types.ErrInvalidEnvironmentVariables},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(tc.devices)
			err := r.Add(cmdArgs("", tc.args, conf("1.1.0", agent.socket, more)))
			if e := wantCode(t, err, tc.code); !strings.Contains(e.Msg, `"eth9-q0"`) {
				t.Errorf("got %q, want the device in it", e.Msg)
			}
			if r.stdout.Len() != 0 || len(agent.called()) != 0 {
				t.Error("a result was printed or the agent asked")
			}
		})
	}
}

func TestAddOfAPodWithDevicesNeedsItsUID(t *testing.T) {
	agent, _ := startAgent(t)
	r := newRig(fakeDevices{"ns/pod": onePod()["u1"]})
	err := r.Add(cmdArgs("", "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=pod", conf("1.1.0", agent.socket, nil)))
	if e := wantCode(t, err, types.ErrInvalidEnvironmentVariables); !strings.Contains(e.Msg, "K8S_POD_UID") {
		t.Errorf("got %q", e.Msg)
	}
}
