package xsk

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// ErrUnsupported is what errors.Is finds when the kernel or the driver lacks a feature.
var ErrUnsupported = errors.New("not supported")

// Error is a refused operation on an AF_XDP socket. errors.Is sees the errno in it.
type Error struct {
	Op     string // what was tried, on what
	Err    error  // the kernel's answer
	Advice string // which rule was broken or what can be done; may be empty
}

func (e *Error) Error() string {
	if e.Advice == "" {
		return fmt.Sprintf("%s: %v", e.Op, e.Err)
	}
	return fmt.Sprintf("%s: %v (%s)", e.Op, e.Err, e.Advice)
}

// Unwrap returns the kernel's answer, and ErrUnsupported with it where that is what it means.
func (e *Error) Unwrap() []error {
	if errors.Is(e.Err, unix.EOPNOTSUPP) || errors.Is(e.Err, unix.EAFNOSUPPORT) || errors.Is(e.Err, unix.EPROTONOSUPPORT) {
		return []error{e.Err, ErrUnsupported}
	}
	return []error{e.Err}
}

func newSocketError(err error) error {
	e := &Error{Op: "create AF_XDP socket", Err: err}
	switch {
	case errors.Is(err, unix.EPERM):
		e.Advice = "creating one needs CAP_NET_RAW"
	case errors.Is(err, unix.EAFNOSUPPORT):
		e.Advice = "the kernel has no AF_XDP: CONFIG_XDP_SOCKETS is off"
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		e.Advice = "the limit of open files is reached"
	}
	return e
}

func umemError(c UMEMConfig, length int, err error) error {
	e := &Error{Op: fmt.Sprintf("register UMEM of %d bytes, frame size %d, headroom %d", length, c.FrameSize, c.Headroom), Err: err}
	switch {
	case errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.EPERM), errors.Is(err, unix.ENOMEM):
		e.Advice = "its pages cannot be locked: the process needs CAP_IPC_LOCK, or a memory-lock limit (ulimit -l) of that size"
	case errors.Is(err, unix.EFAULT):
		e.Advice = "not all of its pages are present: allocate the file (fallocate or MAP_POPULATE) and punch no holes"
	case errors.Is(err, unix.EBUSY):
		e.Advice = "the socket has a UMEM already"
	case errors.Is(err, unix.EINVAL):
		e.Advice = "address not page-aligned, or frame size, headroom or flags that this kernel refuses"
	}
	return e
}

func bindError(c BindConfig, err error) error {
	e := &Error{Op: fmt.Sprintf("bind AF_XDP socket to ifindex %d queue %d (%s)", c.Ifindex, c.Queue, c.describe()), Err: err}
	switch {
	case errors.Is(err, unix.EBUSY):
		e.Advice = "another AF_XDP socket holds the queue, or one that was closed is not yet released by the kernel"
	case errors.Is(err, unix.EOPNOTSUPP):
		switch {
		case c.MultiBuffer && c.Mode == ZeroCopyRequire:
			e.Advice = "the driver has no zero-copy, or none with multi-buffer"
		case c.Mode == ZeroCopyRequire:
			e.Advice = "the driver has no zero-copy mode; bind in copy mode"
		default:
			e.Advice = "the device cannot do this"
		}
	case errors.Is(err, unix.ENETDOWN):
		e.Advice = "the device is administratively down"
	case errors.Is(err, unix.ENODEV):
		e.Advice = "no such device in the socket's network namespace"
	case errors.Is(err, unix.ENXIO):
		e.Advice = "the device went away"
	case errors.Is(err, unix.EBADF):
		e.Advice = "the socket whose UMEM is to be shared is not bound or has none"
	case errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.ENOMEM):
		e.Advice = "no memory for the queue's buffers"
	case errors.Is(err, unix.EINVAL):
		e.Advice = bindRule(c)
	}
	return e
}

// bindRule names the rules whose breach the kernel answers with EINVAL only.
func bindRule(c BindConfig) string {
	switch {
	case c.Shared != nil:
		return "queue out of range; on the queue of the first socket a shared socket has no fill and completion ring of its own, " +
			"on another one it needs both"
	case c.MultiBuffer:
		return "queue out of range, a ring or the UMEM missing, or a kernel before 6.6, which has no multi-buffer"
	case c.Mode == ZeroCopyRequire:
		return "queue out of range, a ring or the UMEM missing, or rings, MTU or frame size that the driver's zero-copy mode refuses " +
			"(virtio-net needs VIRTIO_F_ACCESS_PLATFORM)"
	default:
		return "queue out of range, or a ring or the UMEM missing: needed are a UMEM, fill and completion ring, and rx or tx ring"
	}
}
