package xsk

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// Socket is an AF_XDP socket.
type Socket struct{ fd int }

// NewSocket makes an AF_XDP socket in the calling thread's network namespace. It needs CAP_NET_RAW.
func NewSocket() (*Socket, error) {
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, newSocketError(err)
	}
	return &Socket{fd}, nil
}

// SocketFromFD takes over fd, which must be an AF_XDP socket. On error fd stays the caller's.
func SocketFromFD(fd int) (*Socket, error) {
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return nil, &Error{Op: fmt.Sprintf("take descriptor %d as AF_XDP socket", fd), Err: err}
	}
	if domain != unix.AF_XDP {
		return nil, fmt.Errorf("take descriptor %d as AF_XDP socket: it is a socket of family %d", fd, domain)
	}
	return &Socket{fd}, nil
}

// FD lends the descriptor.
func (s *Socket) FD() int { return s.fd }

// Close closes the descriptor. The kernel releases the queue 30 to 70 ms after the last descriptor and mapping of the
// socket is gone.
func (s *Socket) Close() error {
	if s.fd < 0 {
		return nil
	}
	fd := s.fd
	s.fd = -1
	return unix.Close(fd)
}

// Cookie returns the kernel's identifier of the socket, which no other socket has until the next boot (SO_COOKIE). All
// descriptors of one socket have the same.
func (s *Socket) Cookie() (uint64, error) {
	c, err := unix.GetsockoptUint64(s.fd, unix.SOL_SOCKET, unix.SO_COOKIE)
	if err != nil {
		return 0, &Error{Op: "read socket cookie", Err: err}
	}
	return c, nil
}

// SetRings makes the rings, before Bind. Ring memory is the kernel's and charged to no one.
func (s *Socket) SetRings(sizes RingSizes) error {
	if err := sizes.Validate(); err != nil {
		return fmt.Errorf("set rings: %w", err)
	}
	for _, r := range []struct {
		name string
		opt  int
		size uint32
	}{
		{"fill", unix.XDP_UMEM_FILL_RING, sizes.Fill},
		{"completion", unix.XDP_UMEM_COMPLETION_RING, sizes.Completion},
		{"rx", unix.XDP_RX_RING, sizes.RX},
		{"tx", unix.XDP_TX_RING, sizes.TX},
	} {
		if r.size == 0 {
			continue
		}
		if err := unix.SetsockoptInt(s.fd, unix.SOL_XDP, r.opt, int(r.size)); err != nil {
			return &Error{Op: fmt.Sprintf("make %s ring of %d entries", r.name, r.size), Err: err}
		}
	}
	return nil
}

// ZeroCopy says whether a socket works on the driver's own buffers.
type ZeroCopy int

// The zero value asks for zero-copy and takes copy mode where the driver has none.
const (
	ZeroCopyAuto    ZeroCopy = iota
	ZeroCopyRequire          // XDP_ZEROCOPY
	ZeroCopyOff              // XDP_COPY
)

func (z ZeroCopy) String() string {
	switch z {
	case ZeroCopyRequire:
		return "require"
	case ZeroCopyOff:
		return "off"
	default:
		return "auto"
	}
}

// BindConfig says where and how a socket is bound.
type BindConfig struct {
	Ifindex int
	Queue   uint32
	Mode    ZeroCopy
	// NeedWakeup has the kernel tell when it needs a system call (XDP_USE_NEED_WAKEUP).
	NeedWakeup bool
	// MultiBuffer takes packets larger than a frame as several descriptors (XDP_USE_SG). The XDP program must be
	// a multi-buffer one then, and only then.
	MultiBuffer bool
	// Shared is a bound socket whose UMEM is used (XDP_SHARED_UMEM). Mode, NeedWakeup and MultiBuffer are then those
	// of that socket and are not looked at.
	Shared *Socket
}

func (c BindConfig) flags() uint16 {
	if c.Shared != nil {
		return unix.XDP_SHARED_UMEM // any other flag beside it is EINVAL
	}
	var f uint16
	switch c.Mode {
	case ZeroCopyRequire:
		f |= unix.XDP_ZEROCOPY
	case ZeroCopyOff:
		f |= unix.XDP_COPY
	}
	if c.NeedWakeup {
		f |= unix.XDP_USE_NEED_WAKEUP
	}
	if c.MultiBuffer {
		f |= unix.XDP_USE_SG
	}
	return f
}

func (c BindConfig) describe() string {
	if c.Shared != nil {
		return "shared UMEM"
	}
	parts := []string{"zero-copy " + c.Mode.String()}
	if c.NeedWakeup {
		parts = append(parts, "need-wakeup")
	}
	if c.MultiBuffer {
		parts = append(parts, "multi-buffer")
	}
	return strings.Join(parts, ", ")
}

// Bind binds the socket to a queue of a device. The socket has a UMEM (or shares one) and its rings.
func (s *Socket) Bind(c BindConfig) error {
	sa := &unix.SockaddrXDP{Flags: c.flags(), Ifindex: uint32(c.Ifindex), QueueID: c.Queue}
	if c.Shared != nil {
		sa.SharedUmemFD = uint32(c.Shared.fd)
	}
	if err := unix.Bind(s.fd, sa); err != nil {
		return bindError(c, err)
	}
	return nil
}

// Dup returns the socket under a descriptor of its own.
func (s *Socket) Dup() (*Socket, error) {
	fd, err := unix.FcntlInt(uintptr(s.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, &Error{Op: "duplicate AF_XDP socket", Err: err}
	}
	return &Socket{fd}, nil
}
