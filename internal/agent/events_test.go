package agent

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/afxdp-project/afxdp/internal/testutil"
	"github.com/afxdp-project/afxdp/internal/wire"
	"github.com/afxdp-project/afxdp/pkg/netdev"
)

// newToldNode returns a node with an API server.
func newToldNode(t *testing.T, yaml string) *node {
	t.Helper()
	n := bareNode(t)
	n.client = newAPI()
	n.start(yaml)
	n.healthy("agnear-q1", "agnear-q2", "agnear-q3")
	return n
}

// wantEvent waits for an Event and checks that its message has the words.
func (n *node) wantEvent(kind, name, uid, reason string, words ...string) corev1.Event {
	n.Helper()
	for _, e := range n.events(reason, 1) {
		o := e.InvolvedObject
		if o.Kind != kind || o.Name != name || string(o.UID) != uid {
			continue
		}
		for _, w := range words {
			if !strings.Contains(e.Message, w) {
				n.Errorf("Event %s lacks %q: %s", reason, w, e.Message)
			}
		}
		return e
	}
	n.Errorf("no Event %s on %s %s (%s): %+v", reason, kind, name, uid, n.events(reason, 1))
	return corev1.Event{}
}

func TestRefusedAddIsAnEventOnThePod(t *testing.T) {
	n := newToldNode(t, poolsYAML)
	if _, err := n.api.Attach(t.Context(), attachRequest("u1", n.agent.nics.NetnsCookie(), n.addPod("u1", 1))); err == nil {
		t.Fatal("a host-network pod was not refused")
	}
	e := n.wantEvent("Pod", "pod-u1", "u1", "QueueRefused", "attach queues: ", "host-network pods are not supported")
	if e.Type != corev1.EventTypeWarning || e.InvolvedObject.Namespace != "default" {
		t.Errorf("Event %+v", e)
	}
}

func TestRefusedStartIsAnEventOnThePod(t *testing.T) {
	n := newToldNode(t, poolsYAML)
	n.addPod("u1", 1)
	if _, err := n.kubelet.StartContainer(t.Context(), "u1", "app"); err == nil {
		t.Fatal("a container without leases started")
	}
	n.wantEvent("Pod", "pod-u1", "u1", "QueueRefused", "start container app: ", "afxdp-cni was not called for this pod")
}

func TestRefusedOpenIsAnEventOnThePod(t *testing.T) {
	n := newToldNode(t, poolsYAML)
	ns, dir := n.runPod("u1", 1)
	err := ns.Do(func() error {
		c, err := wire.Dial(filepath.Join(dir, "afxdp.sock"), time.Second)
		if err != nil {
			return err
		}
		defer c.Close()
		if err := askFor(c, &wire.Hello{MinVersion: 1, MaxVersion: 1}); err != nil {
			return err
		}
		for range 100 {
			if err := askFor(c, &wire.Open{Device: 0}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	n.wantEvent("Pod", "pod-u1", "u1", "QueueRefused", "open agnear-q1: ")
}

func TestTroubleOfTheNodeIsAnEventOnIt(t *testing.T) {
	n := newToldNode(t, strings.Replace(poolsYAML, "1-3", "1-3,9", 1))
	n.wantEvent("Node", nodeName, "uid-of-node", "PoolProblem", "queue 9 of agnear does not exist")

	h, err := netdev.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = h.Close() }()
	nic, err := h.LinkByName("agnear")
	if err != nil {
		t.Fatal(err)
	}
	foreign := attachForeign(t, nic.Index)
	n.wantEvent("Node", nodeName, "uid-of-node", "ForeignXDPProgram", "agnear has another XDP program")
	if err := foreign.Close(); err != nil {
		t.Fatal(err)
	}
	n.healthy("agnear-q1", "agnear-q2", "agnear-q3")
	if err := testutil.DelLink("agnear"); err != nil {
		t.Fatal(err)
	}
	n.wantEvent("Node", nodeName, "uid-of-node", "NICLost", "agnear does not exist any more")
	for _, reason := range []string{"PoolProblem", "ForeignXDPProgram", "NICLost"} {
		for _, e := range n.events(reason, 1) {
			if e.Count != 1 {
				t.Errorf("%s was told %d times: %s", reason, e.Count, e.Message)
			}
		}
	}
}

// attachForeign attaches a program that is not ours.
func attachForeign(t *testing.T, ifindex int) link.Link {
	t.Helper()
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "foreign", Type: ebpf.XDP, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = prog.Close() }()
	l, err := link.AttachXDP(link.XDPOptions{Program: prog, Interface: ifindex, Flags: link.XDPDriverMode})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestReloadIsAnEventOnTheNode(t *testing.T) {
	n := newToldNode(t, poolsYAML)
	n.configure(strings.Replace(poolsYAML, "1-3", "1-2", 1))
	n.wantEvent("Node", nodeName, "uid-of-node", "ConfigurationReloaded", "is in force")
	n.configure("pools: nonsense")
	e := n.wantEvent("Node", nodeName, "uid-of-node", "ConfigurationRefused", "the former configuration stays in force: ")
	if e.Type != corev1.EventTypeWarning {
		t.Errorf("Event %+v", e)
	}
}

func unreachable(clienttesting.Action) (bool, runtime.Object, error) {
	return true, nil, errors.New("connection refused")
}

// askFor sends a request and takes the answer, whatever it is.
func askFor(c *wire.Conn, m wire.Message) error {
	if err := c.Send(1, m, -1, time.Second); err != nil {
		return err
	}
	_, err := c.Recv(time.Now().Add(5 * time.Second))
	return err
}

// Without an API server an agent works, and says so.
func TestAgentWorksWhileTheAPIServerIsAway(t *testing.T) {
	n := bareNode(t)
	n.client = newAPI()
	n.client.PrependReactor("*", "*", unreachable)
	n.start(poolsYAML)
	n.healthy("agnear-q1", "agnear-q2", "agnear-q3")
	n.runPod("u1", 1)
	if _, err := os.Stat(filepath.Join(n.dir, "afxdp/agent.sock")); err != nil {
		t.Error(err)
	}
	if c := strings.Count(n.log.String(), "the API server does not answer"); c != 1 {
		t.Errorf("told %d times, want once", c)
	}
}
