package handoff

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/lease"
	"github.com/afxdp-project/afxdp/internal/wire"
	"github.com/afxdp-project/afxdp/pkg/xsk"
)

// register takes the pod's UMEM for the sockets that this connection opens.
func (s *session) register(m *wire.UMEM, fd int) (wire.Message, error) {
	if err := s.mayTakeUMEM(); err != nil {
		return nil, err
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
		return nil, wire.Errorf(wire.CodeUnsupported,
			"zero-copy is required, but not all devices of the pod have it: %s", obstacle)
	}
	socket, err := registerUMEM(fd, m, maxBytes, maxFrames)
	if err != nil {
		return nil, err
	}
	cookie, err := socket.Cookie()
	if err != nil {
		return nil, errors.Join(err, socket.Close())
	}
	s.first, s.group, s.zeroCopy, s.frames = socket, cookie, zeroCopy, uint32(m.Length/uint64(m.FrameSize))
	return &wire.UMEMOK{ZeroCopy: bit(zeroCopy)}, nil
}

// mayTakeUMEM allows a UMEM as long as the connection has none that is of use.
func (s *session) mayTakeUMEM() error {
	if s.first != nil || len(s.open) > 0 {
		return wire.Errorf(wire.CodeState, "the connection has a UMEM already")
	}
	return nil
}

// join has this connection use the UMEM of a socket that the pod opened on another one.
func (s *session) join(fd int) (wire.Message, error) {
	if err := s.mayTakeUMEM(); err != nil {
		return nil, err
	}
	socket, err := xsk.SocketFromFD(fd) // not closed: fd stays the caller's
	if err != nil {
		return nil, wire.Errorf(wire.CodeNotYours, "JOIN: %v", err)
	}
	cookie, err := socket.Cookie()
	if err != nil {
		return nil, err
	}
	found, err := s.leases.Find(cookie, s.cookie)
	if err != nil {
		return nil, err
	}
	s.group, s.zeroCopy, s.frames = found.Group, found.ZeroCopy, found.Frames
	return &wire.Joined{ZeroCopy: bit(s.zeroCopy)}, nil
}

// resume takes back a socket that an earlier agent, or this one on an earlier connection, has handed out. Its UMEM is
// the connection's from then on.
func (s *session) resume(m *wire.Resume, fd int) (wire.Message, error) {
	device, err := s.device(m.Device)
	if err != nil {
		return nil, err
	}
	if s.first != nil {
		return nil, wire.Errorf(wire.CodeState, "the connection has a UMEM already: RESUME comes before UMEM")
	}
	received, err := xsk.SocketFromFD(fd)
	if err != nil {
		return nil, wire.Errorf(wire.CodeNotYours, "RESUME: %v", err)
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
	s.group, s.zeroCopy, s.frames = l.Socket.Group, l.Socket.ZeroCopy, l.Socket.Frames
	s.endpoint.log.Debug("socket resumed", "device", device, "pod", l.Pod.String())
	return &wire.Resumed{Device: m.Device, Epoch: l.Epoch}, nil
}

// openDevice makes the socket of a device. The answer carries a descriptor of its own: the lease manager's can be
// closed at any time, by the end of the lease, and its number be another file's then.
func (s *session) openDevice(m *wire.Open) (_ wire.Message, fd int, err error) {
	device, err := s.device(m.Device)
	if err != nil {
		return nil, -1, err
	}
	if s.group == 0 {
		return nil, -1, wire.Errorf(wire.CodeNoUMEM, "OPEN before UMEM or JOIN")
	}
	if _, ok := s.open[device]; ok {
		return nil, -1, wire.Errorf(wire.CodeBusy, "device %s: this connection has it open already", device)
	}
	// The client before may have been killed a moment ago.
	deadline := time.Now().Add(busyPatience)
	var g lease.Grant
	err = patiently(deadline, lease.ErrBusy, func() (err error) {
		g, err = s.leases.Grant(device, s.cookie)
		return err
	})
	if err != nil {
		return nil, -1, err
	}
	sizes, err := ringSizes(m, g.Settings.MaxRingSize)
	if err != nil {
		return nil, -1, err
	}
	if err := s.checkPool(g); err != nil {
		return nil, -1, err
	}
	socket, err := s.bind(g, sizes, deadline)
	if err != nil {
		return nil, -1, err
	}
	// A zero-copy bind may have had the driver make the queue's NAPIs anew.
	if g.Tuning, err = s.leases.TuneAgain(device, s.cookie); err != nil {
		return nil, -1, errors.Join(err, socket.Close())
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
	s.open[device], s.mayKick[device] = g.Epoch, true
	s.endpoint.log.Debug("socket opened", "device", device, "zeroCopy", record.ZeroCopy, "busyPollObstacle", opened.Text)
	return opened, handed.FD(), nil
}

// kickRing is the size of a kick socket's tx ring: the kernel wants one, and nothing is put on it.
const kickRing = 2

// kick makes a second socket on the queue of a device that this connection has open. It is the pod's alone: the agent
// keeps no copy, since there is nothing to count, resume or take out of the XSKMAP. There is one for each OPEN, not for
// each connection: the next OPEN succeeds only when this one is closed everywhere, so a pod cannot collect them.
func (s *session) kick(m *wire.Kick) (_ wire.Message, fd int, err error) {
	device, err := s.device(m.Device)
	if err != nil {
		return nil, -1, err
	}
	if _, ok := s.open[device]; !ok {
		return nil, -1, wire.Errorf(wire.CodeState, "KICK: this connection does not have device %s open", device)
	}
	if !s.mayKick[device] {
		return nil, -1, wire.Errorf(wire.CodeState,
			"KICK: device %s has had its second socket, or was resumed: there is one for each OPEN",
			device)
	}
	if !s.zeroCopy {
		return nil, -1, wire.Errorf(wire.CodeState,
			"KICK: the socket of device %s is in copy mode, where a socket sends only what is on "+
				"its own ring", device)
	}
	first, at, err := s.leases.Socket(device, s.cookie)
	if err != nil {
		return nil, -1, err
	}
	defer func() { err = errors.Join(err, first.Close()) }()
	socket, err := xsk.NewSocket()
	if err != nil {
		return nil, -1, err
	}
	if err = socket.SetRings(xsk.RingSizes{TX: kickRing}); err == nil {
		err = socket.Bind(xsk.BindConfig{Ifindex: at.Link.Index, Queue: uint32(at.Queue), Shared: first})
	}
	if err != nil {
		return nil, -1, errors.Join(err, socket.Close())
	}
	delete(s.mayKick, device)
	return &wire.Kicked{Device: m.Device, TX: kickRing}, socket.FD(), nil
}

func ringSizes(m *wire.Open, limit uint32) (xsk.RingSizes, error) {
	sizes := xsk.RingSizes{Fill: m.Fill, Completion: m.Completion, RX: m.RX, TX: m.TX}
	if largest := max(m.Fill, m.Completion, m.RX, m.TX); largest > limit {
		return sizes, wire.Errorf(wire.CodeLimit,
			"a ring of %d entries is larger than the pool's limit of %d", largest, limit)
	}
	if err := sizes.Validate(); err != nil {
		return sizes, wire.Errorf(wire.CodeInvalid, "OPEN: %v", err)
	}
	if sizes.Fill == 0 {
		return sizes, wire.Errorf(wire.CodeInvalid, "OPEN: fill and completion ring size: 0; a device's socket needs both")
	}
	return sizes, nil
}

// checkPool refuses a device whose pool does not go with the connection's UMEM. Sockets on one UMEM are all bound with
// the flags of the first, whatever their pools say; so these must say the same, or what the client is told of its
// socket, and how the NIC's program runs, would not be true.
func (s *session) checkPool(g lease.Grant) error {
	switch own := g.Settings; {
	case own.ZeroCopy == lease.ZeroCopyRequire && !s.zeroCopy:
		return wire.Errorf(wire.CodeUnsupported,
			"pool %s requires zero-copy, but the sockets of this UMEM are in copy mode: the client "+
				"asked for that, or not all devices of the pod can", own.Pool)
	case own.ZeroCopy == lease.ZeroCopyNever && s.zeroCopy:
		return wire.Errorf(wire.CodeUnsupported,
			"pool %s has zeroCopy: never, but the sockets of this UMEM are zero-copy", own.Pool)
	}
	if s.first != nil {
		return nil
	}
	for _, l := range s.leases.Leases() {
		if l.Socket == nil || l.Socket.Group != s.group || l.NetnsCookie != s.cookie {
			continue
		}
		if other := l.Settings; other.NeedWakeup != g.Settings.NeedWakeup || other.MultiBuffer != g.Settings.MultiBuffer {
			return wire.Errorf(wire.CodeUnsupported,
				"pools %s and %s differ in needWakeup or multiBuffer, so their devices cannot share "+
					"a UMEM", other.Pool, g.Settings.Pool)
		}
	}
	return nil
}

// bind makes a bound socket. The first on a UMEM is the one that it was registered with; if that one cannot be bound,
// the UMEM goes with it.
func (s *session) bind(g lease.Grant, sizes xsk.RingSizes, deadline time.Time) (_ *xsk.Socket, err error) {
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
			return nil, wire.Errorf(wire.CodeNoUMEM, "%v", err)
		}
		defer func() { err = errors.Join(err, c.Shared.Close()) }()
		if socket, err = xsk.NewSocket(); err != nil {
			return nil, err
		}
	}
	if err = socket.SetRings(sizes); err == nil {
		err = patiently(deadline, unix.EBUSY, func() error { return socket.Bind(c) })
	}
	if err != nil {
		if errors.Is(err, unix.EBUSY) {
			err = fmt.Errorf("%w; the device is leased to this pod, so it is one of its own processes, or another one on "+
				"the node",
				err)
		}
		return nil, errors.Join(err, socket.Close())
	}
	return socket, nil
}

// busyPatience is how long a queue that is held is waited for: the kernel releases one 30 to 70 ms after its last
// descriptor and mapping is gone.
const busyPatience = time.Second

// patiently repeats what fails with the error busy, until deadline.
func patiently(deadline time.Time, busy error, f func() error) error {
	for {
		err := f()
		if !errors.Is(err, busy) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func bit(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}
