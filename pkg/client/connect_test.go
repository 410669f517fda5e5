package client_test

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/handoff/handofftest"
	"github.com/afxdp-project/afxdp/internal/testutil"
	"github.com/afxdp-project/afxdp/internal/wire"
	"github.com/afxdp-project/afxdp/pkg/client"
	"github.com/afxdp-project/afxdp/pkg/xsk"
)

func connect(t *testing.T, p *handofftest.Pod, path string) (c *client.Client, err error) {
	t.Helper()
	err = p.Netns.Do(func() (err error) {
		c, err = client.Connect(context.Background(), path)
		return err
	})
	return c, err
}

func TestConnectTakesDirectoryOrSocket(t *testing.T) {
	n := handofftest.New(t)
	p := n.NewPod("a")
	p.Add(handofftest.DefaultSettings, 1)
	path := n.Serve("x", 0, 1)
	for _, path := range []string{path, filepath.Dir(path), filepath.Dir(path) + "/"} {
		c, err := connect(t, p, path)
		if err != nil {
			t.Fatal(err)
		}
		s := handofftest.DefaultSettings
		if c.Pool() != "fast" || c.MaxUMEM() != s.MaxUMEM || c.MaxRingSize() != s.MaxRingSize || c.Resumes() != 0 {
			t.Errorf("pool %s, limits %d, %d, %d resumes", c.Pool(), c.MaxUMEM(), c.MaxRingSize(), c.Resumes())
		}
		want := client.Device{Index: 1, Netdev: handofftest.NIC, Queue: 1, NUMANode: n.Link.NUMANode, MTU: 1500, Leased: true}
		if d := c.Devices(); len(d) != 2 || d[1] != want || d[0] != (client.Device{NUMANode: -1}) {
			t.Errorf("devices %+v", d)
		}
		if err := errors.Join(c.Close(), c.Close(), c.Err()); err != nil {
			t.Error(err)
		}
		<-c.Done()
	}
}

func TestRefusalsHaveCodesAndReasons(t *testing.T) {
	n := handofftest.New(t)
	p := n.NewPod("a")
	path := n.Serve("x", 0)
	isRefused := func(err error, code client.Code, words ...string) {
		t.Helper()
		var refused *client.Error
		if !errors.As(err, &refused) || refused.Code != code {
			t.Errorf("got %v, want code %d", err, code)
		}
		for _, w := range words {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("got %v, want %q in it", err, w)
			}
		}
	}
	_, err := connect(t, p, path)
	isRefused(err, client.CodeNotLeased, "connect to the node agent at "+path, "the CNI plugin has not run for the pod yet")

	p.Add(handofftest.DefaultSettings, 0)
	c, err := connect(t, p, path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = c.Register(client.UMEMConfig{UMEMConfig: xsk.UMEMConfig{Frames: 1 << 20}})
	isRefused(err, client.CodeLimit, "4294967296 bytes are more than the pool's limit of 67108864")
	_, err = c.Register(client.UMEMConfig{UMEMConfig: xsk.UMEMConfig{Frames: 64}, ZeroCopy: xsk.ZeroCopyRequire})
	isRefused(err, client.CodeUnsupported, "register UMEM", "not all devices of the pod have it: hnear")
	if _, err := c.Register(client.UMEMConfig{}); err == nil || !strings.Contains(err.Error(), "frames: 0") {
		t.Errorf("no frames: %v", err)
	}
	if _, err = c.Open(0, nil, client.OpenConfig{}); err == nil || !strings.Contains(err.Error(), "neither Register nor Join was called") {
		t.Errorf("Open before Register: %v", err)
	}
	umem, err := c.Register(client.UMEMConfig{UMEMConfig: xsk.UMEMConfig{Frames: 64}, ZeroCopy: xsk.ZeroCopyOff})
	if err != nil {
		t.Fatal(err)
	}
	defer umem.Close()
	_, err = c.Open(0, umem, client.OpenConfig{Rings: xsk.RingSizes{RX: 4096}})
	isRefused(err, client.CodeLimit, "open hnear queue 0", "larger than the pool's limit of 1024")
	if _, err = c.Open(0, umem, client.OpenConfig{Rings: xsk.RingSizes{RX: 63}}); err == nil || !strings.Contains(err.Error(), "no power of two") {
		t.Errorf("ring of 63: %v", err)
	}
	if _, err = c.Open(1, umem, client.OpenConfig{}); err == nil || !strings.Contains(err.Error(), "open device 1: the allocation has 1") {
		t.Errorf("no such device: %v", err)
	}
	q, err := c.Open(0, umem, client.OpenConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if q.Rings.RX.Size() != 1024 || q.Mode.ZeroCopy || !q.Mode.NeedWakeup || q.Mode.Obstacle != "busy polling is off in pool fast" {
		t.Errorf("rx ring of %d, mode %+v", q.Rings.RX.Size(), q.Mode)
	}
	_, err = c.Open(0, umem, client.OpenConfig{})
	isRefused(err, client.CodeBusy, "this connection has it open")
	if err := errors.Join(q.Close(), q.Close()); err != nil {
		t.Error(err)
	}
	if err := c.Join(q); err == nil || !strings.Contains(err.Error(), "join the UMEM of hnear queue 0: the queue is closed") {
		t.Errorf("Join of a closed queue: %v", err)
	}
}

func TestOpenAllLeavesNothingOnError(t *testing.T) {
	n := handofftest.New(t)
	p := n.NewPod("a")
	p.Add(handofftest.DefaultSettings, 0, 1)
	path := n.Serve("x", 0, 1)
	holder, err := connect(t, p, path)
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Close()
	umem, err := holder.Register(client.UMEMConfig{UMEMConfig: xsk.UMEMConfig{Frames: 64}})
	if err != nil {
		t.Fatal(err)
	}
	defer umem.Close()
	q, err := holder.Open(1, umem, client.OpenConfig{})
	if err != nil {
		t.Fatal(err)
	}
	c, err := connect(t, p, path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	before := testutil.OpenFDs()
	if set, err := c.OpenAll(client.AllConfig{}); err == nil || set != nil || !strings.Contains(err.Error(), "open hnear queue 1") {
		t.Errorf("got %v, %v", set, err)
	}
	if leaked := testutil.LeakedFDs(before); leaked != nil {
		t.Errorf("left open: %v", leaked)
	}
	if n.Leases.IsOpen(handofftest.Device(0)) {
		t.Error("the device that was opened is still open")
	}
	if _, err := c.OpenAll(client.AllConfig{FramesPerQueue: 1 << 31}); err == nil || !strings.Contains(err.Error(), "too many") {
		t.Errorf("more frames than there can be: %v", err)
	}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	set, err := c.OpenAll(client.AllConfig{FramesPerQueue: 100})
	if err != nil {
		t.Fatal(err)
	}
	if len(set.Queues) != 2 || set.UMEM.Config.Frames != 200 || set.Frames[1].Free() != 100 {
		t.Errorf("%d queues, %d frames, %d free", len(set.Queues), set.UMEM.Config.Frames, set.Frames[1].Free())
	}
	if err := set.Close(); err != nil {
		t.Error(err)
	}
}

func TestConnectWithoutAnAgentSaysSo(t *testing.T) {
	n := handofftest.New(t)
	path := n.Serve("x", 0)
	n.Stop()
	defer n.Start()
	before := testutil.OpenFDs()
	for path, want := range map[string]string{
		path:                               "the agent is not running",
		filepath.Dir(path):                 "the agent is not running",
		t.TempDir():                        "not the directory of an allocation, or the agent has not run since the node was started",
		"/run/" + strings.Repeat("x", 103): "has 108 bytes, at most 107 are possible",
	} {
		if _, err := client.Connect(context.Background(), path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", path, err, want)
		}
	}
	if leaked := testutil.LeakedFDs(before); leaked != nil {
		t.Errorf("left open: %v", leaked)
	}
}

func TestEnvironmentNamesThePools(t *testing.T) {
	t.Setenv("AFXDP_TEST_INSIDE", "1") // no path
	if _, err := client.DefaultPath(); err == nil || !strings.Contains(err.Error(), "no AFXDP_<POOL> variable is set") {
		t.Errorf("no pool: %v", err)
	}
	t.Setenv("AFXDP_FAST", "/run/afxdp/fast")
	if path, err := client.DefaultPath(); path != "/run/afxdp/fast" || err != nil {
		t.Errorf("one pool: %s, %v", path, err)
	}
	t.Setenv("AFXDP_SLOW_2", "/run/afxdp/slow-2")
	if _, err := client.DefaultPath(); err == nil || !strings.Contains(err.Error(), "2 AFXDP_<POOL> variables are set") {
		t.Errorf("two pools: %v", err)
	}
	if p := client.Pools(); len(p) != 2 || p["FAST"] != "/run/afxdp/fast" || p["SLOW_2"] != "/run/afxdp/slow-2" {
		t.Errorf("pools %v", p)
	}
}

// fakeAgent answers each connection with what script says, after a WELCOME with one device.
func fakeAgent(t *testing.T, script func(c *wire.Conn)) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		for {
			u, err := l.AcceptUnix()
			if err != nil {
				return
			}
			c := wire.NewConn(u)
			r, err := c.Recv(time.Now().Add(handofftest.Patience))
			if err == nil {
				_ = c.Send(r.ID, &wire.Welcome{Version: 1, Pool: "p", MaxUMEM: 1 << 20, MaxRingSize: 64, Devices: []wire.Device{{Flags: wire.DeviceLeased}}}, -1, time.Second)
				script(c)
			}
			_ = c.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-finished
	})
	return path
}

// until EOF the script takes requests and answers each with f.
func answer(c *wire.Conn, f func(r wire.Received)) {
	for {
		r, err := c.Recv(time.Now().Add(handofftest.Patience))
		if err != nil {
			return
		}
		if r.FD >= 0 {
			_ = unix.Close(r.FD)
		}
		f(r)
	}
}

// Connect gives up with its context, and leaves neither goroutine nor descriptor.
func TestConnectEndsWithItsContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"}) // accepts nothing
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	before, goroutines := testutil.OpenFDs(), runtime.NumGoroutine()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	begin := time.Now()
	if _, err := client.Connect(ctx, path); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if took := time.Since(begin); took > handofftest.Patience {
		t.Errorf("took %v", took)
	}
	within(t, "the goroutines to end", func() bool { return runtime.NumGoroutine() <= goroutines })
	if leaked := testutil.LeakedFDs(before); leaked != nil {
		t.Errorf("left open: %v", leaked)
	}
}

func TestAgentThatDoesNotAnswerIsGivenUp(t *testing.T) {
	path := fakeAgent(t, func(c *wire.Conn) { answer(c, func(wire.Received) {}) })
	goroutines := runtime.NumGoroutine()
	c, err := client.Connect(context.Background(), path)
	if err != nil {
		t.Fatal(err)
	}
	c.SetTimeout(50 * time.Millisecond)
	if _, err := c.Register(client.UMEMConfig{UMEMConfig: xsk.UMEMConfig{Frames: 64}}); err == nil || !strings.Contains(err.Error(), "the agent did not answer UMEM within 50ms") {
		t.Errorf("got %v", err)
	}
	// With the connection goes what the agent may make too late.
	within(t, "the client to connect anew", func() bool { return c.Resumes() == 1 })
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	within(t, "the goroutines to end", func() bool { return runtime.NumGoroutine() <= goroutines })
}

// What an agent sends that it must not is closed, and the connection with it.
func TestAnswersThatDoNotFitAreNotTaken(t *testing.T) {
	before := testutil.OpenFDs()
	t.Run("agent", func(t *testing.T) {
		var opens int // of the agent's goroutine
		var closes atomic.Int32
		null, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(null)
		opened := &wire.Opened{Socket: wire.Socket{Fill: 64, Completion: 64, RX: 64, TX: 64}}
		path := fakeAgent(t, func(c *wire.Conn) {
			answer(c, func(r wire.Received) {
				switch r.Message.(type) {
				case *wire.UMEM: // as if it were OPEN
					_ = c.Send(r.ID, opened, null, time.Second)
				case *wire.Open:
					switch opens++; opens {
					case 1: // no socket
						_ = c.Send(r.ID, opened, null, time.Second)
					case 2: // nobody's answer
						_ = c.Send(r.ID+7, opened, null, time.Second)
					case 3:
						_ = c.Send(r.ID, &wire.Joined{}, -1, time.Second)
					}
				case *wire.Close:
					closes.Add(1)
					_ = c.Send(r.ID, &wire.Closed{}, -1, time.Second)
				}
			})
		})
		c, err := client.Connect(context.Background(), path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Register(client.UMEMConfig{UMEMConfig: xsk.UMEMConfig{Frames: 64}}); err == nil || !strings.Contains(err.Error(), "the agent answered UMEM with OPENED") {
			t.Errorf("UMEM: %v", err)
		}
		if _, err := c.Open(0, nil, client.OpenConfig{}); !errors.Is(err, unix.ENOTSOCK) {
			t.Errorf("OPENED with what is no socket: %v", err)
		}
		if closes.Load() != 1 {
			t.Errorf("the agent was told %d times that the device is not used, want 1", closes.Load())
		}
		if _, err := c.Open(0, nil, client.OpenConfig{}); err == nil || !strings.Contains(err.Error(), "the agent answered OPEN with JOINED") {
			t.Errorf("OPEN: %v", err)
		}
		if c.Resumes() != 1 {
			t.Errorf("%d new connections after an answer that nobody waits for, want 1", c.Resumes())
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if _, err := c.Open(0, nil, client.OpenConfig{}); err == nil || !strings.Contains(err.Error(), "the client is closed") {
			t.Errorf("after Close: %v", err)
		}
	})
	if leaked := testutil.LeakedFDs(before); leaked != nil {
		t.Errorf("left open: %v", leaked)
	}
}

// Close is not held up by an agent that does not answer while the client connects anew.
func TestCloseInterruptsReconnecting(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	before, goroutines := testutil.OpenFDs(), runtime.NumGoroutine()
	accepted := make(chan *wire.Conn)
	go func() { // one connection is served, the next is not
		u, err := l.AcceptUnix()
		if err != nil {
			t.Error(err)
		}
		c := wire.NewConn(u)
		r, err := c.Recv(time.Now().Add(handofftest.Patience))
		if err != nil {
			t.Error(err)
		}
		_ = c.Send(r.ID, &wire.Welcome{Version: 1}, -1, time.Second)
		accepted <- c
	}()
	c, err := client.Connect(context.Background(), path)
	if err != nil {
		t.Fatal(err)
	}
	if err := (<-accepted).Close(); err != nil {
		t.Fatal(err)
	}
	u, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if took := time.Since(begin); took > handofftest.Patience {
		t.Errorf("Close took %v", took)
	}
	_ = u.Close()
	within(t, "the goroutines to end", func() bool { return runtime.NumGoroutine() <= goroutines })
	if leaked := testutil.LeakedFDs(before); leaked != nil {
		t.Errorf("left open: %v", leaked)
	}
}
