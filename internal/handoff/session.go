package handoff

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/lease"
	"github.com/afxdp-project/afxdp/internal/wire"
	"github.com/afxdp-project/afxdp/pkg/netdev"
	"github.com/afxdp-project/afxdp/pkg/xsk"
)

// deadlines are how long a client may take.
type deadlines struct {
	hello time.Duration // to say HELLO
	send  time.Duration // to make room for an answer
}

var defaultDeadlines = deadlines{hello: 5 * time.Second, send: 5 * time.Second}

// refusalTimeout is for what is sent from the accept loop, which one client must not hold up.
const refusalTimeout = 10 * time.Millisecond

// session is one connection. Its goroutine reads requests one after the other; only revoke comes from elsewhere.
type session struct {
	leases     *lease.Manager
	onOpen     func(pool string, took time.Duration, refused *wire.Error)
	onRefused  func(pod lease.Pod, device, reason string)
	deadlines  deadlines
	endpoint   *endpoint
	allocation Allocation
	conn       *wire.Conn
	cookie     uint64 // of the peer's network namespace

	first    *xsk.Socket       // has the UMEM, is not bound yet
	group    uint64            // cookie of the socket that has or had the UMEM first; 0: no UMEM
	zeroCopy bool              // of the UMEM
	frames   uint32            // of the UMEM
	open     map[string]uint64 // epoch by device
	mayKick  map[string]bool   // devices that were opened on this connection and have no kick socket
	looks    map[string]look   // by device, at how its queue is tuned

	last  int // what came with the request that ended the connection, or -1
	ended sync.Once
}

func newSession(s *Server, e *endpoint, a Allocation, conn *wire.Conn) *session {
	return &session{
		leases: s.leases, onOpen: s.OnOpen, onRefused: s.OnRefused, deadlines: s.deadlines, endpoint: e, allocation: a, conn: conn,
		open: make(map[string]uint64), mayKick: make(map[string]bool), looks: make(map[string]look), last: -1,
	}
}

// run serves the connection until it ends.
func (s *session) run() {
	err := s.serve()
	// Devices are given up first: what follows may block on a hostile descriptor.
	for device, epoch := range s.open {
		s.leases.Closed(device, epoch, false)
	}
	if s.first != nil {
		_ = s.first.Close()
	}
	_ = s.conn.Close()
	wire.CloseUnexpected(err)
	if s.last >= 0 {
		_ = unix.Close(s.last)
	}
	if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
		s.endpoint.warn("pod's connection ended", "netnsCookie", s.cookie, "error", err)
	}
}

func (s *session) serve() (err error) {
	if s.cookie, err = s.conn.PeerNetns(); err != nil {
		return err
	}
	// A peer that says nothing is not served for ever; later it may be silent as long as it wants.
	r, err := s.receive(time.Now().Add(s.deadlines.hello))
	if err != nil {
		return err
	}
	if err := s.handle(r, s.hello); err != nil {
		return err
	}
	for {
		r, err := s.receive(time.Time{})
		if err != nil {
			return err
		}
		if err := s.handle(r, s.answer); err != nil {
			return err
		}
	}
}

// receive receives one request and answers one that breaks the protocol.
func (s *session) receive(deadline time.Time) (wire.Received, error) {
	r, err := s.conn.Recv(deadline)
	var broken *wire.ProtocolError
	switch {
	case errors.As(err, &broken):
		_ = s.conn.Send(broken.ID, wire.Errorf(wire.CodeMalformed, "%s", broken.Reason), -1, s.deadlines.send)
	case wire.IsTimeout(err):
		late := wire.Errorf(wire.CodeMalformed, "no HELLO came within %v", s.deadlines.hello)
		_ = s.conn.Send(0, late, -1, s.deadlines.send)
		return r, late
	}
	return r, err
}

// fatal is an error that ends the connection once it is sent.
type fatal struct{ error }

func (f fatal) Unwrap() error { return f.error }

func malformed(format string, args ...any) error {
	return fatal{wire.Errorf(wire.CodeMalformed, format, args...)}
}

// handle answers one request with what answer returns. An error ends the connection.
func (s *session) handle(r wire.Received, answer func(wire.Received) (wire.Message, int, error)) error {
	m, fd, err := answer(r)
	if err != nil {
		var end fatal
		if serr := s.send(r.ID, toWire(err), -1); serr != nil || !errors.As(err, &end) {
			err = serr
		}
	} else {
		err = s.send(r.ID, m, fd)
	}
	if fd >= 0 {
		_ = unix.Close(fd)
	}
	switch {
	case err != nil:
		s.last = r.FD
	case r.FD >= 0:
		_ = unix.Close(r.FD) // may block; the answer is on its way
	}
	return err
}

// hello answers the first request. Its errors end the connection.
func (s *session) hello(r wire.Received) (wire.Message, int, error) {
	hello, ok := r.Message.(*wire.Hello)
	if !ok {
		return nil, -1, malformed("%s came before HELLO", r.Message.Type())
	}
	if hello.MinVersion > wire.Version || hello.MaxVersion < wire.Version {
		return nil, -1, fatal{wire.Errorf(wire.CodeVersion, "the agent speaks version %d, the client versions %d to %d",
			wire.Version, hello.MinVersion, hello.MaxVersion)}
	}
	welcome, err := s.welcome()
	if err != nil {
		return nil, -1, fatal{err}
	}
	return welcome, -1, nil
}

// answer returns the answer to one request, with the descriptor that it carries or -1. The caller closes that and what
// came with the request.
func (s *session) answer(r wire.Received) (wire.Message, int, error) {
	switch m := r.Message.(type) {
	case *wire.UMEM:
		answer, err := s.register(m, r.FD)
		return answer, -1, err
	case *wire.Open:
		begin := time.Now()
		answer, fd, err := s.openDevice(m)
		s.opened(time.Since(begin), err)
		if err != nil {
			s.refused(m.Device, err)
		}
		return answer, fd, err
	case *wire.Resume:
		answer, err := s.resume(m, r.FD)
		return answer, -1, err
	case *wire.Join:
		answer, err := s.join(r.FD)
		return answer, -1, err
	case *wire.Kick:
		return s.kick(m)
	case *wire.Tuning:
		answer, err := s.tuning(m)
		return answer, -1, err
	case *wire.Close:
		device, err := s.device(m.Device)
		if err != nil {
			return nil, -1, err
		}
		if epoch, ok := s.open[device]; ok {
			s.leases.Closed(device, epoch, true)
			delete(s.open, device)
			delete(s.mayKick, device)
		}
		return &wire.Closed{Device: m.Device}, -1, nil
	}
	return nil, -1, malformed("%s is no request, or came twice", r.Message.Type())
}

// opened tells how an OPEN went.
func (s *session) opened(took time.Duration, err error) {
	if s.onOpen == nil {
		return
	}
	var refused *wire.Error
	if err != nil {
		refused = toWire(err)
	}
	s.onOpen(s.allocation.Pool, took, refused)
}

// refused tells of a refused OPEN, unless whose it is is not known: no name that a pod could choose plays a part.
func (s *session) refused(number uint32, err error) {
	if s.onRefused == nil {
		return
	}
	for _, id := range s.allocation.Devices {
		l, ok := s.leases.Lease(id)
		if !ok || l.NetnsCookie != s.cookie {
			continue
		}
		if _, ok := s.endpoint.told.allow(time.Now()); ok {
			device, _ := s.device(number) // empty: the allocation has no such device, which the error says
			s.onRefused(l.Pod, device, toWire(err).Text)
		}
		return
	}
}

func (s *session) send(id uint32, m wire.Message, fd int) error {
	return s.conn.Send(id, m, fd, s.deadlines.send)
}

// revoke tells the pod that a lease has ended and ends the connection.
func (s *session) revoke(reason string) {
	s.ended.Do(func() {
		_ = s.conn.Send(0, wire.Errorf(wire.CodeEnded, "%s", reason), -1, s.deadlines.send)
		_ = s.conn.Close()
	})
}

// welcome describes the allocation's devices as they stand for this peer.
func (s *session) welcome() (*wire.Welcome, error) {
	w := &wire.Welcome{Version: wire.Version, Pool: s.allocation.Pool}
	leased := false
	for _, id := range s.allocation.Devices {
		v := s.leases.View(id, s.cookie)
		d := wire.Device{NUMA: -1}
		if v.Leased {
			leased = true
			name, err := wire.MakeName(v.Link.Name)
			if err != nil {
				return nil, err
			}
			d = wire.Device{
				Netdev: name, Queue: uint32(v.Queue), NUMA: int32(v.Link.NUMANode), MTU: uint32(v.Link.MTU),
				Flags: wire.DeviceLeased, Epoch: v.Epoch,
			}
			if v.Open {
				d.Flags |= wire.DeviceOpen
			}
			if v.Settings.MultiBuffer {
				d.Flags |= wire.DeviceMultiBuffer
			}
			w.MaxUMEM, w.MaxRingSize = v.Settings.MaxUMEM, v.Settings.MaxRingSize
		}
		w.Devices = append(w.Devices, d)
	}
	if !leased {
		return nil, wire.Errorf(wire.CodeNotLeased,
			"no device of this allocation is leased to the network namespace that the connection "+
				"comes from: the CNI plugin has not run for the pod yet, or the lease has ended")
	}
	return w, nil
}

// device returns the id of a device that a request names by number.
func (s *session) device(i uint32) (string, error) {
	if uint64(i) >= uint64(len(s.allocation.Devices)) {
		return "", wire.Errorf(wire.CodeNoDevice, "device %d: the allocation has %d", i, len(s.allocation.Devices))
	}
	return s.allocation.Devices[i], nil
}

// toWire makes an error that a client can act on.
func toWire(err error) *wire.Error {
	var e *wire.Error
	if errors.As(err, &e) {
		return e
	}
	var refused *lease.RefusedError
	code := wire.CodeInternal
	switch {
	case errors.Is(err, lease.ErrNotLeased):
		code = wire.CodeNotLeased
	case errors.Is(err, lease.ErrBusy), errors.Is(err, unix.EBUSY):
		code = wire.CodeBusy
	case errors.Is(err, lease.ErrNotYours):
		code = wire.CodeNotYours
	case errors.Is(err, netdev.ErrNoDevice), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENETDOWN):
		code = wire.CodeNoDevice
	case errors.Is(err, xsk.ErrUnsupported):
		code = wire.CodeUnsupported
	case errors.As(err, &refused):
		code = wire.CodeState
	}
	return &wire.Error{Code: code, Text: err.Error()}
}
