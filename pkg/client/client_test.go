package client_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/handoff/handofftest"
	"github.com/afxdp-project/afxdp/pkg/client"
)

const nobody = 65534

func startNobody(tb testing.TB, p *handofftest.Pod) *process {
	tb.Helper()
	return startProcess(tb, p, &unix.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}})
}

// Field case 4: a pod needs no capability and no root, has any uid and a memory-lock limit of 64 KiB, and gets its
// queues on one UMEM with every packet, in both directions.
func TestUnprivilegedPodGetsItsQueuesAndPackets(t *testing.T) {
	user := func(uid uint32) *unix.SysProcAttr {
		return &unix.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	}
	for _, test := range []struct {
		title string
		attr  *unix.SysProcAttr
		uids  string // as the process sees them
	}{
		{"nobody", user(nobody), "65534 65534 65534 65534"},
		{"a large uid", user(1000650000), "1000650000 1000650000 1000650000 1000650000"},
		{"a user namespace", &unix.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 1000, HostID: 165536, Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 1000, HostID: 165536, Size: 1}},
			Credential:  &syscall.Credential{Uid: 1000, Gid: 1000, NoSetGroups: true},
		}, "1000 1000 1000 1000"},
	} {
		t.Run(test.title, func(t *testing.T) {
			n := handofftest.New(t)
			far := handofftest.NewFarEnd(t, 2)
			p := n.NewPod("a")
			p.Add(handofftest.DefaultSettings, 0, 1)
			pr := startProcess(t, p, test.attr)
			pr.do(order{Do: "connect", Path: n.Serve("x", 0, 1)})
			r := pr.do(order{Do: "openall"})
			if r.UID != test.uids || r.Capabilities != "" || r.MemoryLock != 64<<10 {
				t.Errorf("uids %s, capabilities %q, memory-lock limit %d", r.UID, r.Capabilities, r.MemoryLock)
			}
			far.Exchange(500)
			if r := pr.report(""); r.Received[0] != 500 || r.Received[1] != 500 {
				t.Errorf("the pod has received %d", r.Received)
			}
			pr.do(order{Do: "close"})
		})
	}
}

// Field case 10: a process that is killed has its queues opened by the next one at once. AFXDP_TEST_KILLS says how
// often this is tried.
func TestKilledProcessFreesItsQueues(t *testing.T) {
	kills := 10
	if s := os.Getenv("AFXDP_TEST_KILLS"); s != "" {
		var err error
		if kills, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	n := handofftest.New(t)
	far := handofftest.NewFarEnd(t, 2)
	p := n.NewPod("a")
	p.Add(handofftest.DefaultSettings, 0, 1)
	path := n.Serve("x", 0, 1)
	connected := func() *process {
		pr := startNobody(t, p)
		pr.do(order{Do: "connect", Path: path})
		return pr
	}
	pr := connected()
	pr.do(order{Do: "openall"})
	for range kills {
		next := connected()
		pr.kill()
		next.do(order{Do: "openall"})
		far.Exchange(20)
		pr = next
	}
}

// Field case 1: the agent ends and another one takes up: every packet gets through meanwhile, and afterwards the
// agent has the sockets again, again and again.
func TestAgentIsRestartedUnderTraffic(t *testing.T) {
	n := handofftest.New(t)
	far := handofftest.NewFarEnd(t, 2)
	p := n.NewPod("a")
	p.Add(handofftest.DefaultSettings, 0, 1)
	pr := startNobody(t, p)
	pr.do(order{Do: "connect", Path: n.Serve("x", 0, 1)})
	pr.do(order{Do: "openall"})
	for i := range uint64(4) {
		n.Stop()
		far.Exchange(200)
		forgetSocket(t, 0)
		n.Start()
		if statistics := n.Leases.Statistics(); len(statistics) != 0 {
			t.Fatalf("statistics before anything is resumed: %v", statistics)
		}
		n.Serve("x", 0, 1)
		within(t, "the client to resume", func() bool { return pr.report("").Resumes == i+1 })
		if statistics := n.Leases.Statistics(); len(statistics) != 2 {
			t.Errorf("statistics after the client has resumed: %v", statistics)
		}
		far.Exchange(250)
	}
	if r := pr.report(""); r.Done || r.Received[0] != 4*450 || r.Received[1] != 4*450 {
		t.Errorf("after four restarts: %+v", r)
	}
	pr.do(order{Do: "close"})
	if n.IsOpen(handofftest.Device(0)) || n.IsOpen(handofftest.Device(1)) {
		t.Error("closed devices are still open")
	}
}

// forgetSocket takes a queue's socket out of the pinned XSKMAP, as if the map had been made anew.
func forgetSocket(t *testing.T, queue uint32) {
	t.Helper()
	paths, err := filepath.Glob("/sys/fs/bpf/afxdp/*/xsks")
	if err != nil || len(paths) != 1 {
		t.Fatal(paths, err)
	}
	m, err := ebpf.LoadPinnedMap(paths[0], nil)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := m.Delete(queue); err != nil {
		t.Fatal(err)
	}
}

// What a client has registered but not opened is gone with the connection; it registers again by itself.
func TestUMEMIsRegisteredAgainWhenItIsLost(t *testing.T) {
	n := handofftest.New(t)
	p := n.NewPod("a")
	p.Add(handofftest.DefaultSettings, 0, 1)
	pr := startNobody(t, p)
	pr.do(order{Do: "connect", Path: n.Serve("x", 0, 1)})
	pr.do(order{Do: "register"})
	n.Stop()
	n.Start()
	// Asked while there is no socket to connect to yet: the request waits for the agent.
	pr.begin(order{Do: "open", Device: 0})
	n.Serve("x", 0, 1)
	if r := pr.result(); r.Error != "" {
		t.Fatal(r.Error)
	}
	// And when the last socket on it was closed.
	pr.do(order{Do: "closequeue", Device: 0})
	pr.do(order{Do: "open", Device: 1})
	pr.do(order{Do: "open", Device: 0})
	pr.do(order{Do: "close"})
}

func TestClientsOfTwoAllocationsShareAUMEM(t *testing.T) {
	n := handofftest.New(t)
	far := handofftest.NewFarEnd(t, 3)
	p := n.NewPod("a")
	p.Add(handofftest.DefaultSettings, 0, 1, 2)
	pr := startNobody(t, p)
	pr.do(order{Do: "connect", Client: "one", Path: n.Serve("x", 0)})
	pr.do(order{Do: "connect", Client: "two", Path: n.Serve("y", 1, 2)})
	pr.do(order{Do: "register", Client: "one"})
	pr.do(order{Do: "open", Client: "one", Device: 0})
	pr.do(order{Do: "join", Client: "two", From: "one"})
	pr.do(order{Do: "open", Client: "two", From: "one", Device: 0})
	pr.do(order{Do: "open", Client: "two", From: "one", Device: 1})
	far.Exchange(100)
	n.Stop()
	n.Start()
	n.Serve("x", 0)
	n.Serve("y", 1, 2)
	within(t, "both clients to resume", func() bool { return len(n.Leases.Statistics()) == 3 })
	far.Exchange(100)
	pr.do(order{Do: "close", Client: "two", From: "one"})
	pr.do(order{Do: "close", Client: "one"})
}

func TestClosedDeviceIsFreeForAnotherClient(t *testing.T) {
	n := handofftest.New(t)
	far := handofftest.NewFarEnd(t, 1)
	p := n.NewPod("a")
	p.Add(handofftest.DefaultSettings, 0, 1)
	path := n.Serve("x", 0, 1)
	pr := startNobody(t, p)
	for _, name := range []string{"one", "two"} {
		pr.do(order{Do: "connect", Client: name, Path: path})
		pr.do(order{Do: "register", Client: name})
	}
	pr.do(order{Do: "open", Client: "one", Device: 0})
	if r := pr.try(order{Do: "open", Client: "two", Device: 0}); r.Code != client.CodeBusy {
		t.Errorf("a device that is open: %s (code %d)", r.Error, r.Code)
	}
	pr.do(order{Do: "open", Client: "one", Device: 1})
	pr.do(order{Do: "closequeue", Client: "one", Device: 0})
	pr.do(order{Do: "open", Client: "two", Device: 0})
	far.Exchange(50)
	// A client that is closed has its queues go on until they are closed.
	pr.do(order{Do: "close", Client: "one"})
	pr.do(order{Do: "close", Client: "two"})
}

func TestClientEndsWithItsLease(t *testing.T) {
	n := handofftest.New(t)
	p := n.NewPod("a")
	p.Add(handofftest.DefaultSettings, 0)
	path := n.Serve("x", 0)
	pr := startNobody(t, p)
	pr.do(order{Do: "connect", Path: path})
	pr.do(order{Do: "openall"})
	if r := pr.report(""); r.Done {
		t.Fatalf("done before the lease has ended: %s", r.DoneErr)
	}
	p.Del()
	within(t, "the client to end", func() bool { return pr.report("").Done })
	if r := pr.report(""); r.DoneCode != client.CodeEnded {
		t.Errorf("the client ended with %q", r.DoneErr)
	}
	pr.do(order{Do: "close"})

	// And when it ends while there is no agent.
	p.Add(handofftest.DefaultSettings, 0)
	pr.do(order{Do: "connect", Client: "b", Path: path})
	pr.do(order{Do: "openall", Client: "b"})
	n.Stop()
	n.Start()
	p.Del()
	n.Serve("x", 0)
	within(t, "the client to end", func() bool { return pr.report("b").Done })
	if r := pr.report("b"); r.DoneCode != client.CodeNotLeased {
		t.Errorf("the client ended with %q", r.DoneErr)
	}
	pr.do(order{Do: "close", Client: "b"})
}

// Queues are opened and closed while the agent is restarted: none is forgotten, none is held when all are closed.
func TestQueuesComeAndGoDuringRestarts(t *testing.T) {
	n := handofftest.New(t)
	p := n.NewPod("a")
	p.Add(handofftest.DefaultSettings, 0, 1, 2)
	pr := startNobody(t, p)
	pr.do(order{Do: "connect", Path: n.Serve("x", 0, 1, 2)})
	before := pr.do(order{Do: "register"})
	pr.begin(order{Do: "churn"})
	for range 5 {
		time.Sleep(100 * time.Millisecond)
		n.Stop()
		n.Start()
		n.Serve("x", 0, 1, 2)
	}
	if r := pr.result(); r.Error != "" {
		t.Error(r.Error)
	} else if r.Resumes == 0 {
		t.Error("the connection was never lost")
	}
	for q := range 3 {
		within(t, "the device to be free", func() bool { return !n.IsOpen(handofftest.Device(q)) })
		pr.do(order{Do: "open", Device: q})
		pr.do(order{Do: "closequeue", Device: q})
	}
	if r := pr.report(""); len(r.FDs) != len(before.FDs) || r.Goroutines != before.Goroutines {
		t.Errorf("descriptors were %q, %d goroutines; now %q, %d", before.FDs, before.Goroutines, r.FDs, r.Goroutines)
	}
	pr.do(order{Do: "close"})
}

func says(err error, words string) bool { return err != nil && strings.Contains(err.Error(), words) }

func within(tb testing.TB, what string, done func() bool) {
	tb.Helper()
	for deadline := time.Now().Add(handofftest.Patience); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			tb.Fatalf("in vain waited for %s", what)
		}
	}
}
