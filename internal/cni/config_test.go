package cni

import (
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/afxdp-project/afxdp/internal/kubelet"
)

func TestConfigurationHasDefaults(t *testing.T) {
	c, err := parseConf([]byte(`{"cniVersion":"1.1.0","name":"net","type":"afxdp-cni"}`))
	if err != nil {
		t.Fatal(err)
	}
	if c.AgentSocket != "/run/afxdp/agent.sock" || c.KubeletRoot != "/var/lib/kubelet" || c.Timeout != 30*time.Second ||
		c.Standalone || c.DeviceID != "" || c.PrevResult != nil || c.ValidAttachments != nil {
		t.Errorf("got %+v", c)
	}
}

func TestConfigurationLeavesKeysOfOthersAlone(t *testing.T) {
	c, err := parseConf([]byte(`{"cniVersion":"1.1.0","name":"net","type":"afxdp-cni","ipam":{"type":"x"},"dns":[1],
		"capabilities":{"deviceID":true},"pciBusID":7,"timeout":"1m30s","deviceID":null,
		"runtimeConfig":{"deviceID":"eth1-q1","mac":{"a":[1]}}}`))
	if err != nil {
		t.Fatal(err)
	}
	if c.Timeout != 90*time.Second || c.DeviceID != "eth1-q1" {
		t.Errorf("got %+v", c)
	}
}

func TestConfigurationIsRefusedWithTheKeysName(t *testing.T) {
	long := "/" + strings.Repeat("a", 107)
	for name, tc := range map[string]struct {
		conf string
		code uint
		want string
	}{
		"not JSON":             {`{`, types.ErrDecodingFailure, "decode"},
		"agentSocket type":     {`{"agentSocket":7}`, 7, "agentSocket: want a string, got 7"},
		"agentSocket relative": {`{"agentSocket":"run/a"}`, 7, `agentSocket: want an absolute path, got "run/a"`},
		"agentSocket NUL":      {`{"agentSocket":"/a\u0000b"}`, 7, "agentSocket"},
		"kubeletRoot relative": {`{"kubeletRoot":"var"}`, 7, "kubeletRoot"},
		"standalone string":    {`{"standalone":"true"}`, 7, `standalone: want true or false, got "true"`},
		"timeout number":       {`{"timeout":30}`, 7, "timeout: want a string"},
		"timeout unit":         {`{"timeout":"30"}`, 7, "timeout"},
		"timeout zero":         {`{"timeout":"0s"}`, 7, "timeout"},
		"timeout negative":     {`{"timeout":"-5s"}`, 7, "timeout"},
		"timeout too long":     {`{"timeout":"2h"}`, 7, `to "2m0s"`},
		"deviceID type":        {`{"deviceID":["eth1-q0"]}`, 7, "deviceID: want a string"},
		"deviceID length":      {`{"deviceID":"` + strings.Repeat("q", 65) + `"}`, 7, "65 bytes"},
		"runtimeConfig":        {`{"runtimeConfig":"x"}`, 7, "runtimeConfig: want an object"},
		"runtime deviceID":     {`{"runtimeConfig":{"deviceID":1}}`, 7, "deviceID: want a string"},
		"two devices":          {`{"deviceID":"a","runtimeConfig":{"deviceID":"b"}}`, 7, `"a" and runtimeConfig`},
		"misspelt":             {`{"agentsocket":"/run/a"}`, 7, "agentsocket: write it agentSocket"},
		"valid list":           {`{"cni.dev/valid-attachments":{"a":1}}`, 7, "cni.dev/valid-attachments: want a list"},
		"valid entry":          {`{"cni.dev/valid-attachments":[{"containerID":"c"}]}`, 7, "[0]"},
		// Field case 43: the error names the length.
		"agentSocket length": {`{"agentSocket":"` + long + `"}`, 7, "108 bytes, at most 107"},
		"kubeletRoot length": {`{"kubeletRoot":"` + long + `"}`, 7, "135 bytes, at most 107"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parseConf([]byte(tc.conf))
			if e := wantCode(t, err, tc.code); !strings.Contains(e.Msg, tc.want) {
				t.Errorf("got %q, want %q in it", e.Msg, tc.want)
			}
		})
	}
}

func TestGCListMayBeEmptyButIsToldFromNone(t *testing.T) {
	for conf, want := range map[string]int{
		`{}`:                                 -1,
		`{"cni.dev/valid-attachments":null}`: 0,
		`{"cni.dev/valid-attachments":[]}`:   0,
		`{"cni.dev/attachments":[{"containerID":"a","ifname":"b"}]}`:                                           1,
		`{"cni.dev/valid-attachments":[],"cni.dev/attachments":[{"containerID":"a","ifname":"b"}]}`:            0,
		`{"cni.dev/valid-attachments":[{"containerID":"a","ifname":"b"},{"containerID":"a","ifname":"net1"}]}`: 2,
	} {
		c, err := parseConf([]byte(conf))
		if err != nil {
			t.Errorf("%s: %v", conf, err)
			continue
		}
		got := len(c.ValidAttachments)
		if c.ValidAttachments == nil {
			got = -1
		}
		if got != want {
			t.Errorf("%s: %d attachments, want %d", conf, got, want)
		}
	}
}

func TestPodIsReadFromCNIArgs(t *testing.T) {
	full := kubelet.Pod{UID: "u-1", Namespace: "ns", Name: "a.b"}
	for args, want := range map[string]*kubelet.Pod{
		"":                           nil,
		"IgnoreUnknown=1;FOO=bar":    nil,
		"K8S_POD_UID=;K8S_POD_NAME=": nil,
		"K8S_POD_UID=u-1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=a.b":                     &full,
		"FOO;K8S_POD_UID=u-1;BAR=a=b;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=a.b;":        &full,
		"X=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=a.b;K8S_POD_UID=u-1;K8S_POD_UID=u-1": &full,
		"K8S_POD_NAMESPACE=ns;K8S_POD_NAME=a":                                       {Namespace: "ns", Name: "a"},
	} {
		got, err := parsePod(args)
		switch {
		case err != nil:
			t.Errorf("%q: %v", args, err)
		case (got == nil) != (want == nil) || got != nil && *got != *want:
			t.Errorf("%q: got %+v, want %+v", args, got, want)
		}
	}
}

func TestPodThatIsAmbiguousIsRefused(t *testing.T) {
	for _, args := range []string{
		"K8S_POD_UID=u",
		"K8S_POD_UID=u;K8S_POD_NAME=p",
		"K8S_POD_UID=u;K8S_POD_NAMESPACE=n",
		"K8S_POD_UID=u;K8S_POD_UID=v;K8S_POD_NAMESPACE=n;K8S_POD_NAME=p",
		"K8S_POD_UID=../u;K8S_POD_NAMESPACE=n;K8S_POD_NAME=p",
		"K8S_POD_UID=u;K8S_POD_NAMESPACE=n\xff;K8S_POD_NAME=p",
		"K8S_POD_UID=u;K8S_POD_NAMESPACE=n;K8S_POD_NAME=" + strings.Repeat("p", 254),
		"K8S_POD_UID=u;K8S_POD_NAMESPACE=n;K8S_POD_NAME=p\n",
	} {
		t.Run(args, func(t *testing.T) {
			_, err := parsePod(args)
			wantCode(t, err, types.ErrInvalidEnvironmentVariables)
		})
	}
}
