package handoff

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/lease"
	"github.com/afxdp-project/afxdp/internal/wire"
)

// SocketName is the name of the listening socket in an allocation's directory.
const SocketName = "afxdp.sock"

// Allocation is what one listening socket serves.
type Allocation struct {
	ID             string
	Dir            string // exists; holds the listening socket
	Pool           string
	Devices        []string
	MaxConnections int // at the same time
}

// Server serves the sockets of allocations.
type Server struct {
	leases *lease.Manager
	log    *slog.Logger

	mu        sync.Mutex
	listeners map[string]*listener // by allocation id
	sessions  sync.WaitGroup
}

// NewServer returns a Server without allocations.
func NewServer(leases *lease.Manager, log *slog.Logger) *Server {
	return &Server{leases: leases, log: log, listeners: make(map[string]*listener)}
}

// Serve has an allocation's socket listen before it returns. It can be repeated; a socket that has vanished is made
// again, in the directory as it is: the pod's mount of it must not go dead.
func (s *Server) Serve(a Allocation) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	path := filepath.Join(a.Dir, SocketName)
	old := s.listeners[a.ID]
	if old != nil && old.isAt(path) {
		return nil
	}
	l, err := listen(a, path)
	if err != nil {
		return fmt.Errorf("serve allocation %s: %w", a.ID, err)
	}
	if old != nil {
		_ = old.unix.Close()
	}
	s.listeners[a.ID] = l
	s.sessions.Go(func() { s.accept(l) })
	return nil
}

// Stop closes an allocation's socket and its connections.
func (s *Server) Stop(id string) {
	s.mu.Lock()
	l := s.listeners[id]
	delete(s.listeners, id)
	s.mu.Unlock()
	if l != nil {
		l.close()
	}
}

// Close closes all listening sockets and connections, and waits, until ctx is done, for their ends. The pods' sockets
// live on. Listening sockets stay in their directories, dead, until the next agent replaces them.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	for id, l := range s.listeners {
		l.close()
		delete(s.listeners, id)
	}
	s.mu.Unlock()
	done := make(chan struct{})
	go func() {
		s.sessions.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the pods' connections to end: %w", ctx.Err())
	}
}

// listener is an allocation's socket with its connections.
type listener struct {
	allocation Allocation
	unix       *net.UnixListener
	dev, ino   uint64 // of the socket's file

	mu          sync.Mutex
	closed      bool
	connections map[*wire.Conn]struct{}
}

// listen makes a listening socket that every uid may connect to. It appears under its name by a rename, so that one left
// by an earlier agent is replaced in one step.
func listen(a Allocation, path string) (*listener, error) {
	if err := wire.CheckPath(path + ".new"); err != nil {
		return nil, err
	}
	temp := path + ".new"
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	u, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: temp, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	u.SetUnlinkOnClose(false)
	var st unix.Stat_t
	err = errors.Join(os.Chmod(temp, 0o666), os.Rename(temp, path), unix.Stat(path, &st))
	if err != nil {
		return nil, errors.Join(err, u.Close())
	}
	return &listener{allocation: a, unix: u, dev: st.Dev, ino: st.Ino, connections: make(map[*wire.Conn]struct{})}, nil
}

func (l *listener) isAt(path string) bool {
	var st unix.Stat_t
	return unix.Stat(path, &st) == nil && st.Dev == l.dev && st.Ino == l.ino
}

func (l *listener) close() {
	_ = l.unix.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for c := range l.connections {
		_ = c.Close()
	}
}

// add counts a connection in, unless there are too many.
func (l *listener) add(c *wire.Conn) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return net.ErrClosed
	}
	if n := len(l.connections); n >= l.allocation.MaxConnections {
		return wire.Errorf(wire.CodeLimit, "the allocation has %d connections already, which is the pool's limit", n)
	}
	l.connections[c] = struct{}{}
	return nil
}

func (l *listener) remove(c *wire.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.connections, c)
}

func (s *Server) accept(l *listener) {
	for {
		u, err := l.unix.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// Out of descriptors, or a connection that went away: neither is a reason to stop serving.
			s.log.Warn("accept a pod's connection", "allocation", l.allocation.ID, "error", err)
			time.Sleep(50 * time.Millisecond)
			continue
		}
		conn := wire.NewConn(u)
		if err := l.add(conn); err != nil {
			var refused *wire.Error
			if errors.As(err, &refused) {
				_ = conn.Send(0, refused, -1, refusalTimeout)
			}
			_ = conn.Close()
			continue
		}
		s.sessions.Go(func() {
			defer l.remove(conn)
			newSession(s, l.allocation, conn).run()
		})
	}
}
