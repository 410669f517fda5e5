package agent

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/afxdp-project/afxdp/internal/agentapi"
	"github.com/afxdp-project/afxdp/internal/handoff/handofftest"
	"github.com/afxdp-project/afxdp/internal/testutil"
	"github.com/afxdp-project/afxdp/internal/wire"
	"github.com/afxdp-project/afxdp/pkg/client"
	"github.com/afxdp-project/afxdp/pkg/xsk"
)

// tenant is a pod whose program has opened its queues.
type tenant struct {
	*testing.T
	netns   *testutil.Netns
	request *agentapi.AttachRequest
	path    string // of the socket of its allocation
	client  *client.Client
	set     *client.Set
}

// admit has kubelet and the CNI plugin give devices to a pod, and a program in it open them.
func (n *node) admit(uid string, devices int) *tenant {
	n.Helper()
	ns := testutil.NewNetns(n.T)
	p := &tenant{T: n.T, netns: ns, request: attachRequest(uid, cookieOf(n.T, ns), n.addPod(uid, devices))}
	answer, err := n.api.Attach(n.Context(), p.request)
	if err != nil {
		n.Fatal(err)
	}
	p.path = answer.Nics[0].SocketPath
	err = ns.Do(func() (err error) {
		p.client, err = client.Connect(n.Context(), p.path)
		return err
	})
	if err != nil {
		n.Fatal(err)
	}
	n.Cleanup(func() { _ = p.client.Close() })
	if p.set, err = p.client.OpenAll(client.AllConfig{FramesPerQueue: 64}); err != nil {
		n.Fatal(err)
	}
	n.Cleanup(func() { _ = p.set.Close() })
	return p
}

// resume does what the client does when it has lost its connection, but from within the pod: the client's own goroutine
// is not.
func (p *tenant) resume() {
	p.Helper()
	err := p.netns.Do(func() error {
		c, err := wire.Dial(p.path, time.Second)
		if err != nil {
			return err
		}
		p.Cleanup(func() { _ = c.Close() })
		for id, m := range []wire.Message{&wire.Hello{MinVersion: 1, MaxVersion: 1}, &wire.Resume{Device: 0}} {
			fd := -1
			if id > 0 {
				fd = p.set.Queues[0].Socket.FD()
			}
			if err := c.Send(uint32(id), m, fd, time.Second); err != nil {
				return err
			}
			r, err := c.Recv(time.Now().Add(5 * time.Second))
			if err != nil {
				return err
			}
			if refused, ok := r.Message.(*wire.Error); ok {
				return refused
			}
		}
		return nil
	})
	if err != nil {
		p.Fatal(err)
	}
}

// makeRoom gives the kernel frames for packets.
func (p *tenant) makeRoom() {
	for i, q := range p.set.Queues {
		addrs := make([]uint64, 16)
		q.Rings.Fill.Refill(addrs[:p.set.Frames[i].Get(addrs)])
	}
}

// receives waits for a packet on the pod's first queue.
func (p *tenant) receives(from *handofftest.FarEnd) {
	p.Helper()
	q := p.set.Queues[0]
	from.Send(q.Device.Queue, testPacket())
	descs := make([]xsk.Desc, 1)
	for deadline := time.Now().Add(5 * time.Second); q.Rings.RX.Receive(descs) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			p.Fatal("the packet did not reach the pod")
		}
	}
}

func testPacket() []byte {
	return append([]byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5}, make([]byte, 50)...)
}

// get asks the agent over HTTP.
func (n *node) get(address, path string) (code int, body string) {
	n.Helper()
	resp, err := http.Get("http://" + address + path)
	if err != nil {
		n.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		n.Fatal(err)
	}
	http.DefaultClient.CloseIdleConnections()
	return resp.StatusCode, string(b)
}

// shows waits until a scrape has all these samples.
func (n *node) shows(samples ...string) {
	n.Helper()
	var missing []string
	n.wait(fmt.Sprintf("the metrics show %q", samples), func() bool {
		_, body := n.get(httpAddress, "/metrics")
		missing = nil
		for _, s := range samples {
			if !strings.Contains(body, s+"\n") {
				missing = append(missing, s)
			}
		}
		return len(missing) == 0
	})
}

func TestMetricsTellTheLifeOfALease(t *testing.T) {
	n := newNode(t, poolsYAML+"  countUnclaimed: true\n")
	n.healthy("agnear-q1", "agnear-q2", "agnear-q3")
	far := handofftest.NewFarEndOf(t, "agfar", 2)
	n.shows(
		`afxdp_devices{pool="fast",reason="",state="healthy"} 3`, `afxdp_leases{pool="fast",state="active"} 0`,
		`afxdp_allocations{pool="fast"} 0`, `afxdp_config_last_reload_successful 1`,
	)
	p := n.admit("u1", 1)
	socket := `namespace="default",netdev="agnear",pod="pod-u1",pool="fast",queue="1"`
	far.Send(1, testPacket()) // there is no frame for it
	n.shows(
		`afxdp_drops_total{cause="rx_dropped",`+socket+`} 1`, `afxdp_drops_total{cause="rx_ring_full",`+socket+`} 0`,
		`afxdp_rx_fill_ring_empty_total{`+socket+`} 1`, `afxdp_zero_copy{`+socket+`} 0`,
		`afxdp_umem_frames{`+socket+`} 64`,
		`afxdp_busy_polling_active{`+socket+`} 0`, // veth links no queue to a NAPI on this kernel
		`afxdp_leases{pool="fast",state="active"} 1`, `afxdp_allocations{pool="fast"} 1`,
		`afxdp_opens_total{pool="fast",result="success"} 1`,
		`afxdp_operation_duration_seconds_count{operation="allocate"} 1`,
		`afxdp_operation_duration_seconds_count{operation="add"} 1`,
		`afxdp_operation_duration_seconds_count{operation="open"} 1`,
	)
	if _, body := n.get(httpAddress, "/metrics"); strings.Contains(body, "afxdp_rx_packets_total{") {
		t.Error("packets of a queue are told, though veth does not count them")
	}
	far.Send(0, testPacket())
	n.shows(`afxdp_unclaimed_packets_total{netdev="agnear",queue="0"} 1`)
	p.makeRoom()
	p.receives(far)

	// The pod's program goes on after DEL: its queue is held.
	if _, err := n.api.Detach(t.Context(), &agentapi.DetachRequest{Attachment: p.request.Attachment}); err != nil {
		t.Fatal(err)
	}
	n.shows(
		`afxdp_leases{pool="fast",state="active"} 0`, `afxdp_leases{pool="fast",state="held"} 1`,
		`afxdp_devices{pool="fast",reason="held",state="unhealthy"} 1`, `afxdp_devices{pool="fast",reason="",state="healthy"} 2`,
		`afxdp_operation_duration_seconds_count{operation="del"} 1`,
	)
	if _, body := n.get(httpAddress, "/metrics"); strings.Contains(body, `pod="pod-u1"`) {
		t.Error("the pod's socket is told after its lease")
	}
	if err := testutil.SetDown("agfar"); err != nil {
		t.Fatal(err)
	}
	n.shows(`afxdp_devices{pool="fast",reason="no_link",state="unhealthy"} 3`)
	if err := testutil.SetDown("agnear"); err != nil {
		t.Fatal(err)
	}
	n.shows(`afxdp_devices{pool="fast",reason="down",state="unhealthy"} 3`)
}

// A look that waits for a scan of the node's NICs, as of one with a slow driver, holds no pod's queue meanwhile.
func TestLookThatWaitsHoldsNoQueue(t *testing.T) {
	n := newNode(t, poolsYAML)
	n.healthy("agnear-q1", "agnear-q2", "agnear-q3")
	p := n.admit("u1", 1)
	n.agent.inventory.mu.Lock()
	looked := make(chan struct{})
	go func() { defer close(looked); n.agent.look() }()
	defer func() { <-looked }()
	defer n.agent.inventory.mu.Unlock()
	time.Sleep(100 * time.Millisecond) // it waits
	_, detachErr := n.api.Detach(t.Context(), &agentapi.DetachRequest{Attachment: p.request.Attachment})
	if err := errors.Join(detachErr, p.set.Close(), p.client.Close()); err != nil {
		t.Fatal(err)
	}
	n.wait("the queue is free", func() bool { return len(n.agent.leases.Leases()) == 0 })
}

// The counters of a socket are the kernel's: they come back, whole, when the client resumes at an agent started anew.
func TestCountersSurviveTheAgent(t *testing.T) {
	n := newNode(t, poolsYAML)
	n.healthy("agnear-q1", "agnear-q2", "agnear-q3")
	far := handofftest.NewFarEndOf(t, "agfar", 2)
	p := n.admit("u1", 1)
	far.Send(1, testPacket())
	drops := `afxdp_drops_total{cause="rx_dropped",namespace="default",netdev="agnear",pod="pod-u1",pool="fast",queue="1"} `
	n.shows(drops + "1")
	n.stop()
	far.Send(1, testPacket())
	n.start(poolsYAML)
	n.wait("the node was looked at", n.agent.scanned.Load)
	if _, body := n.get(httpAddress, "/metrics"); strings.Contains(body, drops) {
		t.Error("drops of a socket that the agent does not have are told")
	}
	p.resume()
	n.shows(drops + "2")
}

func TestFailedOperationsAreCounted(t *testing.T) {
	n := newNode(t, poolsYAML)
	n.healthy("agnear-q1", "agnear-q2", "agnear-q3")
	if _, err := n.api.Attach(t.Context(), attachRequest("u1", 12345, []string{"agnear-q0"})); err == nil {
		t.Fatal("an unknown device was attached")
	}
	n.shows(`afxdp_operation_errors_total{operation="add"} 1`, `afxdp_operation_errors_total{operation="allocate"} 0`)
}

func TestMetricsAddressServesMetricsAlone(t *testing.T) {
	n := newNode(t, poolsYAML)
	n.wait("the node was looked at", n.agent.scanned.Load)
	for path, want := range map[string]int{"/metrics": 200, "/healthz": 404, "/statusz": 404} {
		if code, body := n.get(metricsAddress, path); code != want || (code == 200) != strings.Contains(body, "afxdp_build_info") {
			t.Errorf("%s: %d, want %d: %s", path, code, want, body)
		}
	}
	for _, path := range []string{"/metrics", "/healthz", "/statusz"} {
		if code, _ := n.get(httpAddress, path); code != 200 {
			t.Errorf("%s at the address of health: %d", path, code)
		}
	}
}

func TestDocumentationHasEveryCause(t *testing.T) {
	source, err := os.ReadFile("inventory.go")
	if err != nil {
		t.Fatal(err)
	}
	docs, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(docs), "| reason | meaning |")
	table, _, _ = strings.Cut(table, "\n\n")
	words := func(pattern, text string) (all []string) {
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
			all = append(all, m[1])
		}
		return all
	}
	in, told := words(`cause\w+ +cause += "(\w+)"`, string(source)), words("\\| `(\\w+)` \\|", table)
	if len(in) == 0 || !slices.Equal(in, told) {
		t.Errorf("causes %q, documented %q", in, told)
	}
}
