package agent

import (
	"encoding/json"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const mainList = "{\n  \"cniVersion\": \"0.3.1\",\n  \"name\": \"main\",\n  \"plugins\": [\n    {\"type\": \"main\"}\n  ]\n}\n"

func (n *node) statusz() (s Status) {
	n.Helper()
	w := httptest.NewRecorder()
	n.agent.serveStatus(w, nil)
	if err := json.Unmarshal(w.Body.Bytes(), &s); err != nil {
		n.Fatal(err)
	}
	return s
}

func TestCNIPluginIsChainedWhenTheAgentServesAndStaysWithoutIt(t *testing.T) {
	n := newNode(t, poolsYAML)
	if s := n.statusz(); s.CNI != nil {
		t.Errorf("status without the wish: %+v", s.CNI)
	}
	n.stop()
	n.cniConf, n.cniBin = t.TempDir(), t.TempDir()
	list := filepath.Join(n.cniConf, "10-main.conflist")
	read := func() string {
		text, err := os.ReadFile(list)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if err := os.WriteFile(list, []byte(mainList), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(n.cniBin, "afxdp-cni"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := n.kubelet.Stop(); err != nil {
		t.Fatal(err)
	}
	n.start(poolsYAML)
	time.Sleep(3 * chainWait)
	if read() != mainList || n.statusz().CNI.Chained {
		t.Error("chained although the plugin cannot find kubelet: no pod could start")
	}
	if err := n.kubelet.Resume(true); err != nil {
		t.Fatal(err)
	}
	n.wait("devices are announced", func() bool {
		unchained := read() == mainList
		ready := n.agent.ready() == nil
		announced := len(n.kubelet.Devices("afxdp.io/fast")) > 0
		if ready && unchained {
			t.Error("the agent is ready before the plugin is chained")
		}
		if announced && unchained {
			t.Error("devices were announced before the plugin was chained: a pod that is started then is never given its queues")
		}
		return announced && ready
	})
	n.agent.announced.Store(false)
	if n.agent.ready() == nil {
		t.Error("the agent is ready while kubelet has no devices of it")
	}
	n.agent.rescan()
	n.wait("the agent is ready again", func() bool { return n.agent.ready() == nil })
	chained := read()
	want := `{"type": "afxdp-cni", "agentSocket": "` + n.dir + `/afxdp/agent.sock", "kubeletRoot": "` + n.dir + `/kubelet"}`
	if !strings.Contains(chained, want) {
		t.Errorf("got %s, want %s in it", chained, want)
	}
	if chained := n.agent.look().Chained; chained == nil || !*chained {
		t.Error("the metrics do not tell that the plugin is chained")
	}
	if s := n.statusz().CNI; s.File != "10-main.conflist" || s.Reason != "" || !strings.Contains(n.log.String(), "CNI plugin chained") {
		t.Errorf("status %+v", s)
	}
	n.stop()
	if read() != chained {
		t.Error("the entry went with the agent")
	}
	n.unchained = true
	n.start(poolsYAML)
	n.wait("the entry of an agent that was to chain is taken out", func() bool { return read() == mainList })
	n.stop()
	n.unchained = false
	n.start(poolsYAML)
	n.wait("the plugin is found chained", func() bool { return n.statusz().CNI.Chained })
	if err := n.agent.chain.Remove(); err != nil || read() != mainList {
		t.Errorf("%v, got %s", err, read())
	}
	time.Sleep(3 * chainWait)
	if read() != mainList || n.statusz().CNI.Chained {
		t.Errorf("it came back: %s, status %+v", read(), n.statusz().CNI)
	}
}
