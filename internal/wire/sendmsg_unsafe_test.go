package wire

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// sendmsg sends exactly what it is given. unix.Sendmsg would add a byte to an empty packet.
func sendmsg(fd int, data, oob []byte) error {
	iov := unix.Iovec{Base: unsafe.SliceData(data)}
	iov.SetLen(len(data))
	msg := unix.Msghdr{Iov: &iov, Iovlen: 1, Control: unsafe.SliceData(oob)}
	msg.SetControllen(len(oob))
	_, _, errno := unix.Syscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&msg)), unix.MSG_NOSIGNAL)
	if errno != 0 {
		return errno
	}
	return nil
}
