package handoff

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/lease"
	"github.com/afxdp-project/afxdp/internal/wire"
	"github.com/afxdp-project/afxdp/pkg/busypoll"
	"github.com/afxdp-project/afxdp/pkg/xsk"
)

// register takes the pod's UMEM for the sockets that this connection opens.
func (s *session) register(m *wire.UMEM, fd int) (wire.Message, error) {
	if s.first != nil || len(s.open) > 0 {
		return nil, wire.Errorf(wire.CodeState, "the connection has a UMEM already")
	}
	maxBytes, maxFrames := uint64(0), uint32(0)
	for _, id := range s.allocation.Devices {
		if v := s.leases.View(id, s.cookie); v.Leased {
			maxBytes, maxFrames = v.Settings.MaxUMEM, v.Settings.MaxFrames
		}
	}
	if maxBytes == 0 {
		return nil, wire.Errorf(wire.CodeNotLeased, "no device of this allocation is leased to the pod any more")
	}
	zeroCopy, obstacle := s.leases.PodZeroCopy(s.cookie)
	switch {
	case m.Flags&wire.UMEMZeroCopyOff != 0:
		zeroCopy = false
	case m.Flags&wire.UMEMZeroCopyRequire != 0 && !zeroCopy:
		return nil, wire.Errorf(wire.CodeUnsupported, "zero-copy is required, but not all devices of the pod have it: %s", obstacle)
	}
	socket, err := registerUMEM(fd, m, maxBytes, maxFrames)
	if err != nil {
		return nil, err
	}
	cookie, err := socket.Cookie()
	if err != nil {
		return nil, errors.Join(err, socket.Close())
	}
	s.first, s.group, s.zeroCopy = socket, cookie, zeroCopy
	return &wire.UMEMOK{ZeroCopy: bit(zeroCopy)}, nil
}

// join has this connection use the UMEM of a socket that the pod opened on another one.
func (s *session) join(fd int) (wire.Message, error) {
	if s.first != nil || len(s.open) > 0 {
		return nil, wire.Errorf(wire.CodeState, "the connection has a UMEM already")
	}
	socket, err := xsk.SocketFromFD(fd) // not closed: fd stays the caller's
	if err != nil {
		return nil, wire.Errorf(wire.CodeNotYours, "%v", err)
	}
	cookie, err := socket.Cookie()
	if err != nil {
		return nil, err
	}
	found, err := s.leases.Find(cookie, s.cookie)
	if err != nil {
		return nil, err
	}
	s.group, s.zeroCopy = found.Group, found.ZeroCopy
	return &wire.Joined{ZeroCopy: bit(s.zeroCopy)}, nil
}

// resume takes back a socket that an earlier agent, or this one on an earlier connection, has handed out.
func (s *session) resume(m *wire.Resume, fd int) (wire.Message, error) {
	device, err := s.device(m.Device)
	if err != nil {
		return nil, err
	}
	received, err := xsk.SocketFromFD(fd)
	if err != nil {
		return nil, wire.Errorf(wire.CodeNotYours, "%v", err)
	}
	socket, err := received.Dup()
	if err != nil {
		return nil, err
	}
	l, err := s.leases.Resumed(device, s.cookie, socket, s.revoke)
	if err != nil {
		return nil, errors.Join(err, socket.Close())
	}
	s.open[device] = l.Epoch
	s.group, s.zeroCopy = l.Socket.Group, l.Socket.ZeroCopy
	s.log.Info("socket resumed", "device", device, "pod", l.Pod.String())
	return &wire.Resumed{Device: m.Device, Epoch: l.Epoch}, nil
}

// openDevice makes the socket of a device. The answer carries a descriptor of its own: the lease manager's can be closed
// at any time, by the end of the lease, and its number be another file's then.
func (s *session) openDevice(m *wire.Open) (_ wire.Message, fd int, err error) {
	device, err := s.device(m.Device)
	if err != nil {
		return nil, -1, err
	}
	if s.group == 0 {
		return nil, -1, wire.Errorf(wire.CodeState, "OPEN before UMEM or JOIN")
	}
	g, err := s.leases.Grant(device, s.cookie)
	if err != nil {
		return nil, -1, err
	}
	sizes, err := ringSizes(m, g.Settings.MaxRingSize)
	if err != nil {
		return nil, -1, err
	}
	socket, err := s.bind(g, sizes)
	if err != nil {
		return nil, -1, err
	}
	opened, record, err := s.negotiate(m, g, socket)
	if err != nil {
		return nil, -1, errors.Join(err, socket.Close())
	}
	handed, err := socket.Dup()
	if err != nil {
		return nil, -1, errors.Join(err, socket.Close())
	}
	if err := s.leases.Opened(g, socket, record, s.revoke); err != nil {
		return nil, -1, errors.Join(err, handed.Close(), socket.Close())
	}
	s.open[device] = g.Epoch
	s.log.Info("socket opened", "device", device, "zeroCopy", record.ZeroCopy, "busyPollObstacle", opened.Text)
	return opened, handed.FD(), nil
}

func ringSizes(m *wire.Open, limit uint32) (xsk.RingSizes, error) {
	sizes := xsk.RingSizes{Fill: m.Fill, Completion: m.Completion, RX: m.RX, TX: m.TX}
	if largest := max(m.Fill, m.Completion, m.RX, m.TX); largest > limit {
		return sizes, wire.Errorf(wire.CodeLimit, "a ring of %d entries is larger than the pool's limit of %d", largest, limit)
	}
	if err := sizes.Validate(); err != nil {
		return sizes, wire.Errorf(wire.CodeMalformed, "OPEN: %v", err)
	}
	if sizes.Fill == 0 {
		return sizes, wire.Errorf(wire.CodeMalformed, "OPEN: fill and completion ring size: 0; a device's socket needs both")
	}
	return sizes, nil
}

// bind makes a bound socket. The first on a UMEM is the one that it was registered with; if that one cannot be bound,
// the UMEM goes with it.
func (s *session) bind(g lease.Grant, sizes xsk.RingSizes) (_ *xsk.Socket, err error) {
	socket, c := s.first, xsk.BindConfig{Ifindex: g.Link.Index, Queue: uint32(g.Queue)}
	s.first = nil
	if socket != nil {
		c.Mode, c.NeedWakeup, c.MultiBuffer = xsk.ZeroCopyOff, g.Settings.NeedWakeup, g.Settings.MultiBuffer
		if s.zeroCopy {
			c.Mode = xsk.ZeroCopyRequire
		}
		defer func() {
			if err != nil {
				s.group = 0
			}
		}()
	} else {
		if c.Shared, err = s.leases.Share(s.group, s.cookie); err != nil {
			return nil, wire.Errorf(wire.CodeState, "%v", err)
		}
		defer func() { err = errors.Join(err, c.Shared.Close()) }()
		if socket, err = xsk.NewSocket(); err != nil {
			return nil, err
		}
	}
	if err = socket.SetRings(sizes); err == nil {
		err = bindPatiently(socket, c)
	}
	if err != nil {
		if errors.Is(err, unix.EBUSY) {
			err = fmt.Errorf("%w; the device is leased to this pod, so it is one of its own processes, or another one on the node", err)
		}
		return nil, errors.Join(err, socket.Close())
	}
	return socket, nil
}

// busyPatience is how long a queue that is held is waited for: the kernel releases one 30 to 70 ms after its last
// descriptor and mapping is gone.
const busyPatience = time.Second

func bindPatiently(socket *xsk.Socket, c xsk.BindConfig) error {
	for deadline := time.Now().Add(busyPatience); ; time.Sleep(10 * time.Millisecond) {
		err := socket.Bind(c)
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return err
		}
	}
}

// negotiate sets the busy-poll options and describes the socket as it is.
func (s *session) negotiate(m *wire.Open, g lease.Grant, socket *xsk.Socket) (*wire.Opened, lease.Socket, error) {
	cookie, err := socket.Cookie()
	if err != nil {
		return nil, lease.Socket{}, err
	}
	zeroCopy, err := socket.IsZeroCopy()
	if err != nil {
		return nil, lease.Socket{}, err
	}
	o := &wire.Opened{Socket: wire.Socket{
		Device: m.Device, Fill: m.Fill, Completion: m.Completion, RX: m.RX, TX: m.TX, Cookie: cookie, Epoch: g.Epoch,
		QueueNAPI:     g.Tuning.RXNAPI,
		DeferHardIRQs: g.Tuning.DeferHardIRQs, GROFlushTimeout: uint64(g.Tuning.GROFlushTimeout),
	}}
	for flag, set := range map[wire.SocketFlags]bool{
		wire.SocketZeroCopy: zeroCopy, wire.SocketNeedWakeup: g.Settings.NeedWakeup, wire.SocketMultiBuffer: g.Settings.MultiBuffer,
		wire.SocketDeferral: g.Tuning.Deferral, wire.SocketNAPIKnown: g.Tuning.NAPIKnown,
		wire.SocketSeparateNAPI: g.Tuning.RXNAPI != 0 && g.Tuning.TXNAPI != 0 && g.Tuning.RXNAPI != g.Tuning.TXNAPI,
	} {
		if set {
			o.Flags |= flag
		}
	}
	o.Text = s.setBusyPoll(o, m, g, socket)
	return o, lease.Socket{Cookie: cookie, Group: s.group, ZeroCopy: zeroCopy}, nil
}

// setBusyPoll sets the socket's options for busy polling and returns why it cannot work, if so.
func (s *session) setBusyPoll(o *wire.Opened, m *wire.Open, g lease.Grant, socket *xsk.Socket) string {
	switch {
	case g.Settings.BusyPollBudget == 0:
		return fmt.Sprintf("busy polling is off in pool %s", g.Settings.Pool)
	case m.Flags&wire.OpenNoBusyPoll != 0:
		return "the client asked for no busy polling"
	}
	options := busypoll.Options{Budget: g.Settings.BusyPollBudget, Timeout: g.Settings.BusyPollTimeout}
	if err := busypoll.Enable(socket.FD(), options); err != nil {
		return err.Error()
	}
	o.Flags |= wire.SocketBusyPoll
	o.BusyPollBudget, o.BusyPollTimeout = uint32(options.Budget), uint32(options.Timeout.Microseconds())
	state, err := busypoll.Read(socket.FD())
	if err != nil {
		return err.Error()
	}
	o.NAPI = state.NAPI
	facts := busypoll.Facts{ZeroCopy: o.Flags&wire.SocketZeroCopy != 0}
	if g.Tuning.NAPIKnown {
		facts.QueueNAPI = &g.Tuning.RXNAPI
	}
	if g.Tuning.Deferral {
		facts.Deferral = &busypoll.Deferral{HardIRQs: int(g.Tuning.DeferHardIRQs), GROFlushTimeout: g.Tuning.GROFlushTimeout}
	}
	if status := busypoll.Assess(state, facts); !status.Active {
		return status.Reason
	}
	return ""
}

func (s *session) dropFirst() {
	if s.first != nil {
		_ = s.first.Close()
		s.first = nil
	}
}

func bit(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}
