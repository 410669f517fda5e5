package client_test

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"runtime"
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
	if _, err := c.Register(client.UMEMConfig{UMEMConfig: xsk.UMEMConfig{Frames: 64}}); !says(err, "the agent did not answer UMEM within 50ms") {
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
		if _, err := c.Register(client.UMEMConfig{UMEMConfig: xsk.UMEMConfig{Frames: 64}}); !says(err, "the agent answered UMEM with OPENED") {
			t.Errorf("UMEM: %v", err)
		}
		if _, err := c.Open(0, nil, client.OpenConfig{}); !errors.Is(err, unix.ENOTSOCK) {
			t.Errorf("OPENED with what is no socket: %v", err)
		}
		if closes.Load() != 1 {
			t.Errorf("the agent was told %d times that the device is not used, want 1", closes.Load())
		}
		if _, err := c.Open(0, nil, client.OpenConfig{}); !says(err, "the agent answered OPEN with JOINED") {
			t.Errorf("OPEN: %v", err)
		}
		if c.Resumes() != 1 {
			t.Errorf("%d new connections after an answer that nobody waits for, want 1", c.Resumes())
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if _, err := c.Open(0, nil, client.OpenConfig{}); !says(err, "the client is closed") {
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
