package cni

import (
	"encoding/json"
	"testing"
)

func TestEntrySaysWhatThePluginWouldNotUseAnyway(t *testing.T) {
	for want, got := range map[string]Entry{
		`{"type":"afxdp-cni"}`:                            NewEntry("/run/afxdp/agent.sock", "/var/lib/kubelet"),
		`{"type":"afxdp-cni","agentSocket":"/run/a"}`:     NewEntry("/run/a", "/var/lib/kubelet"),
		`{"type":"afxdp-cni","kubeletRoot":"/data/kube"}`: NewEntry("/run/afxdp/agent.sock", "/data/kube"),
	} {
		text, err := json.Marshal(got)
		if err != nil || string(text) != want {
			t.Errorf("got %s, %v, want %s", text, err, want)
		}
	}
	text, err := json.Marshal(NewEntry("/run/a", "/data/kube"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := parseConf(text)
	if err != nil || c.AgentSocket != "/run/a" || c.KubeletRoot != "/data/kube" || c.Standalone {
		t.Errorf("the plugin reads it as %+v, %v", c, err)
	}
}
