package xsk

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// WakeRX has the kernel go on with reception: it processes what the driver waits for and, on a busy-polling socket,
// polls the queue's NAPI once (recvfrom with MSG_DONTWAIT). It does not sleep.
//
// Raw system calls: they return within microseconds, and the scheduler's bookkeeping of a normal one (with another
// thread taking over the P after 20 µs) costs more than it gives.
func (s *Socket) WakeRX() error {
	_, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(s.fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
	return wakeError(errno)
}

// WakeTX has the kernel send what is in the tx ring (sendto with MSG_DONTWAIT). In copy mode one call sends at most 32
// packets; [ErrAgain] says that there is more, or no room on the completion ring or in the driver: complete, then call
// again.
func (s *Socket) WakeTX() error {
	_, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(s.fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
	return wakeError(errno)
}

// ErrAgain is the answer of a wakeup that could not do all there is to do.
const ErrAgain = unix.EAGAIN

// wakeError keeps errnos as they are (which does not allocate), but all that pass with time are ErrAgain: no room in
// the driver (EAGAIN, EBUSY), on the socket (ENOBUFS), no memory for the moment (ENOMEM).
func wakeError(errno syscall.Errno) error {
	switch errno {
	case 0:
		return nil
	case unix.EAGAIN, unix.EBUSY, unix.ENOBUFS, unix.ENOMEM, unix.EINTR:
		return ErrAgain
	}
	return errno
}
