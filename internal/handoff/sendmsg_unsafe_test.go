package handoff_test

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/wire"
)

// sendmsg sends exactly what it is given. unix.Sendmsg would add a byte to an empty packet.
func sendmsg(c *wire.Conn, data, oob []byte) (err error) {
	iov := unix.Iovec{Base: unsafe.SliceData(data)}
	iov.SetLen(len(data))
	msg := unix.Msghdr{Iov: &iov, Iovlen: 1, Control: unsafe.SliceData(oob)}
	msg.SetControllen(len(oob))
	cerr := c.Control(func(fd uintptr) {
		if _, _, errno := unix.Syscall(unix.SYS_SENDMSG, fd, uintptr(unsafe.Pointer(&msg)), unix.MSG_NOSIGNAL); errno != 0 {
			err = errno
		}
	})
	if cerr != nil {
		return cerr
	}
	return err
}
