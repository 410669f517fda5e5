package handoff

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/lease"
	"github.com/afxdp-project/afxdp/internal/wire"
)

// SocketName is the name of the listening socket in an allocation's directory.
const SocketName = "afxdp.sock"

// DefaultMaxConnections is how many connections an allocation may have at the same time.
const DefaultMaxConnections = 8

// Allocation is what one listening socket serves.
type Allocation struct {
	ID             string
	Dir            string // exists; holds the listening socket
	Pool           string
	Devices        []string
	MaxConnections int // at the same time; 0: DefaultMaxConnections
}

// Server serves the sockets of allocations.
type Server struct {
	// OnOpen, if set before the first Serve, is told of each OPEN: the allocation's pool, how long it took, and what it
	// was refused with or nil. It is called from the connections' goroutines, and must not block.
	OnOpen func(pool string, took time.Duration, refused *wire.Error)
	// OnRefused, if set before the first Serve, is told of refused OPENs of pods that have a lease of the allocation: at
	// most ten a minute for each allocation. It is called as OnOpen is.
	OnRefused func(pod lease.Pod, device, reason string)

	leases    *lease.Manager
	log       *slog.Logger
	deadlines deadlines

	mu        sync.Mutex
	closed    bool
	endpoints map[string]*endpoint // by allocation id
	// running are the goroutines. While an endpoint is there, so is its accept loop: none is added after the last one.
	running sync.WaitGroup
}

// NewServer returns a Server without allocations.
func NewServer(leases *lease.Manager, log *slog.Logger) *Server {
	return &Server{leases: leases, log: log, deadlines: defaultDeadlines, endpoints: make(map[string]*endpoint)}
}

// Serve has an allocation's socket listen before it returns. It can be repeated, also with other limits, which hold for
// new connections; a socket that has vanished is made again, in the directory as it is: the pod's mount of it must not
// go dead.
func (s *Server) Serve(a Allocation) error {
	if a.MaxConnections == 0 {
		a.MaxConnections = DefaultMaxConnections
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("serve allocation %s: %w", a.ID, net.ErrClosed)
	}
	path := filepath.Join(a.Dir, SocketName)
	e := s.endpoints[a.ID]
	if e != nil && e.socket.isAt(path) {
		e.change(a)
		return nil
	}
	socket, err := listen(path)
	if err != nil {
		return fmt.Errorf("serve allocation %s: %w", a.ID, err)
	}
	if e == nil {
		e = &endpoint{connections: make(map[*wire.Conn]struct{}), log: s.log.With("allocation", a.ID, "pool", a.Pool)}
		s.endpoints[a.ID] = e
	} else {
		s.closeSoon(e.socket)
	}
	e.socket = socket
	e.change(a)
	s.running.Go(func() { s.accept(e, socket) })
	return nil
}

// Stop closes an allocation's socket and its connections.
func (s *Server) Stop(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stop(id)
}

func (s *Server) stop(id string) {
	e := s.endpoints[id]
	if e == nil {
		return
	}
	delete(s.endpoints, id)
	e.socket.refuse()
	s.closeSoon(e.socket)
	for _, c := range e.close() {
		s.closeSoon(c)
	}
}

// closeSoon closes what pods have sent to. A pod's descriptors that nobody has received yet are closed along with it,
// which may block for as long as the pod likes.
func (s *Server) closeSoon(c interface{ Close() error }) {
	s.running.Go(func() { _ = c.Close() })
}

// Close closes all listening sockets and connections, and waits, until ctx is done, for their ends. The pods' sockets
// live on. Listening sockets stay in their directories, dead, until the next agent replaces them.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	for id := range s.endpoints {
		s.stop(id)
	}
	s.mu.Unlock()
	done := make(chan struct{})
	go func() {
		s.running.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the pods' connections to end: %w", ctx.Err())
	}
}

// endpoint is an allocation with its connections.
type endpoint struct {
	socket *socket // the listening one; the Server's mutex guards it
	log    *slog.Logger
	quiet  limiter
	told   limiter // of refused OPENs

	mu          sync.Mutex
	allocation  Allocation
	closed      bool
	connections map[*wire.Conn]struct{}
}

func (e *endpoint) change(a Allocation) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.allocation = a
}

// close has no further connection taken and returns those that are to be closed.
func (e *endpoint) close() []*wire.Conn {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	var conns []*wire.Conn
	for c := range e.connections {
		conns = append(conns, c)
	}
	return conns
}

// add counts a connection in, unless there are too many.
func (e *endpoint) add(c *wire.Conn) (Allocation, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return Allocation{}, net.ErrClosed
	}
	if n := len(e.connections); n >= e.allocation.MaxConnections {
		return Allocation{}, wire.Errorf(wire.CodeLimit,
			"the allocation has %d connections already, which is the pool's limit", n)
	}
	e.connections[c] = struct{}{}
	return e.allocation, nil
}

func (e *endpoint) remove(c *wire.Conn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.connections, c)
}

// warn logs what a pod can cause as often as it likes, but not as often as that.
func (e *endpoint) warn(message string, args ...any) {
	if suppressed, ok := e.quiet.allow(time.Now()); ok {
		if suppressed > 0 {
			args = append(args, "suppressed", suppressed)
		}
		e.log.Warn(message, args...)
	}
}

func (s *Server) accept(e *endpoint, l *socket) {
	for {
		u, err := l.unix.AcceptUnix()
		if errors.Is(err, net.ErrClosed) || errors.Is(err, unix.EINVAL) { // EINVAL: it refuses
			return
		}
		if err != nil {
			// Out of descriptors, or a connection that went away: neither is a reason to stop serving.
			e.warn("accept a pod's connection", "error", err)
			time.Sleep(50 * time.Millisecond)
			continue
		}
		conn := wire.NewConn(u)
		allocation, err := e.add(conn)
		if err != nil {
			var refused *wire.Error
			if errors.As(err, &refused) {
				_ = conn.Send(0, refused, -1, refusalTimeout)
			}
			// Closed here, although it may block: in goroutines of their own a pod could make any number of them.
			_ = conn.Close()
			continue
		}
		s.running.Go(func() {
			defer e.remove(conn)
			newSession(s, e, allocation, conn).run()
		})
	}
}
