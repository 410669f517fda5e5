package handoff_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/handoff"
	"github.com/afxdp-project/afxdp/internal/handoff/handofftest"
	"github.com/afxdp-project/afxdp/internal/wire"
)

// Field case 2: the socket listens before Serve returns. Repeated, it stays the same; removed, it is made again in the
// directory as it is.
func TestSocketListensBeforeServeReturns(t *testing.T) {
	n := handofftest.New(t)
	p := n.NewPod("a")
	p.Add(handofftest.DefaultSettings, 0)
	inode := func(path string) uint64 {
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			t.Fatal(err)
		}
		return st.Ino
	}
	path := n.Serve("x", 0)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o666 {
		t.Errorf("mode %v, %v; every uid must be able to connect", info.Mode(), err)
	}
	dir, file := inode(filepath.Dir(path)), inode(path)
	c := connect(t, p, path)
	n.Serve("x", 0)
	if inode(path) != file {
		t.Error("a socket that was there was replaced")
	}
	for _, replace := range []func() error{
		func() error { return os.Remove(path) },
		func() error { return errors.Join(os.Remove(path), os.WriteFile(path, nil, 0o600)) },
		func() error { return errors.Join(os.Remove(path), os.WriteFile(path+".new", nil, 0o600)) },
	} {
		if err := replace(); err != nil {
			t.Fatal(err)
		}
		n.Serve("x", 0)
		_ = connect(t, p, path).Close()
	}
	if inode(filepath.Dir(path)) != dir {
		t.Error("the directory was replaced: the pod's mount of it is dead")
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("the directory has %v, %v", entries, err)
	}
	// A connection to a socket that was replaced goes on, and ends with the allocation.
	c.umem()
	n.Server.Stop("x")
	c.ends()
	if _, err := wire.Dial(path, time.Second); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("after Stop: %v, want a refused connection", err)
	}
	n.Server.Stop("x")
}

// Field case 1: one socket serves any number of clients, after each other and several at once, also for the next agent.
func TestSocketServesForAsLongAsTheAllocation(t *testing.T) {
	n := handofftest.New(t)
	p := n.NewPod("a")
	p.Add(handofftest.DefaultSettings, 0)
	for range 3 {
		path := n.Serve("x", 0)
		for range 30 {
			_ = connect(t, p, path).Close()
		}
		n.Stop()
		if _, err := wire.Dial(path, time.Second); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("without an agent: %v, want a refused connection", err)
		}
		n.Start()
	}
}

func TestConnectionsAreLimited(t *testing.T) {
	n := handofftest.New(t)
	p := n.NewPod("a")
	p.Add(handofftest.DefaultSettings, 0)
	path := n.Serve("x", 0)
	var conns []*conn
	for range handoff.DefaultMaxConnections {
		conns = append(conns, connect(t, p, path))
	}
	for range 20 {
		c := dial(t, p, path)
		// With a request unread, too, the reason comes through.
		_ = c.Send(1, &wire.Hello{MinVersion: 1, MaxVersion: 1}, -1, patience)
		c.isError(c.hear().Message, wire.CodeLimit, "has 8 connections already")
		c.ends()
	}
	_ = conns[3].Close()
	within(t, "a place to be free", func() bool {
		c := dial(t, p, path)
		defer c.Close()
		_ = c.Send(1, &wire.Hello{MinVersion: 1, MaxVersion: 1}, -1, patience)
		return c.hear().Message.Type() == wire.TypeWelcome
	})
	// Other limits hold without a new socket.
	a := handoff.Allocation{ID: "x", Dir: filepath.Dir(path), Devices: []string{handofftest.Device(0)}, MaxConnections: 1}
	if err := n.Server.Serve(a); err != nil {
		t.Fatal(err)
	}
	c := dial(t, p, path)
	c.isError(c.hear().Message, wire.CodeLimit, "the pool's limit")
	conns[0].umem()
}

// Field case 43: a path that cannot be is named with its length.
func TestPathTooLongForASocketIsNamed(t *testing.T) {
	n := handofftest.New(t)
	dir := "/run/" + strings.Repeat("d", 108-len("/run/")-1-len(handoff.SocketName))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	err := n.Server.Serve(handoff.Allocation{ID: "x", Dir: dir})
	if err == nil || !strings.Contains(err.Error(), "serve allocation x: socket path "+dir) || !strings.Contains(err.Error(), "at most 107") {
		t.Errorf("got %v", err)
	}
	if err := n.Server.Serve(handoff.Allocation{ID: "x", Dir: "/run/none"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a directory: %v", err)
	}
}

func TestNothingIsServedAfterClose(t *testing.T) {
	n := handofftest.New(t)
	path := n.Serve("x", 0)
	n.Stop()
	if err := n.Server.Serve(handoff.Allocation{ID: "x", Dir: filepath.Dir(path)}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Serve after Close: %v", err)
	}
	n.Start()
}

// Invariant 6: closing a hostile descriptor blocks. The pod that sent it is answered, others are served, and nothing
// that the agent does for them or for itself waits.
func TestDescriptorsWhoseCloseBlocksHoldNobodyUp(t *testing.T) {
	n := handofftest.New(t)
	a, b := n.NewPod("a"), n.NewPod("b")
	a.Add(handofftest.DefaultSettings, 0)
	b.Add(handofftest.DefaultSettings, 1)
	pathA, pathB := n.Serve("x", 0), n.Serve("y", 1)
	var releases []func()
	give := func(c *conn, m wire.Message) {
		t.Helper()
		fd, release := lingering(t)
		releases = append(releases, release)
		c.id++
		// One that is turned away is closed at once; the descriptor is then with the agent already, or on its way.
		if err := c.Send(c.id, m, fd, patience); err != nil && !errors.Is(err, unix.EPIPE) {
			t.Fatal(err)
		}
		// Not by this thread when it is the last one.
		go unix.Close(fd)
	}
	released := false
	release := func() {
		if !released {
			released = true
			for _, r := range releases {
				r()
			}
		}
	}
	defer release()

	c := connect(t, a, pathA)
	give(c, &goodUMEM)
	c.isError(c.hear().Message, wire.CodeInvalid, "no memfd") // while the agent closes the first
	give(c, &goodUMEM)                                        // not received as long as that blocks

	holder := connect(t, a, pathA)
	holder.umem()
	_, s := holder.open(0)
	give(holder, &wire.Resume{})
	holder.isError(holder.hear().Message, wire.CodeNotYours, "family 2")

	for range handoff.DefaultMaxConnections {
		// More than are accepted, all with a descriptor that nobody receives.
		refused := dial(t, a, pathA)
		give(refused, &goodUMEM)
	}

	other := connect(t, b, pathB)
	other.umem()
	other.open(0)
	begin := time.Now()
	a.Del()
	holder.isError(holder.hear().Message, wire.CodeEnded, "has ended")
	_ = s.Close()
	n.Server.Stop("x")
	n.Serve("x", 0)
	if m, _ := other.ask(&wire.Close{}, -1); m.Type() != wire.TypeClosed {
		t.Errorf("CLOSE of the other pod: %+v", m)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if err := n.Server.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Close: %v; the descriptors do not block, so this test shows nothing", err)
	}
	if took := time.Since(begin); took > patience {
		t.Errorf("held up for %v", took)
	}
	release()
}
