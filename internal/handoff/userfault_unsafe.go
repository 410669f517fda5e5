package handoff

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// From linux/userfaultfd.h.
const (
	uffdUserModeOnly   = 1
	uffdAPIVersion     = 0xaa
	uffdFeatureSIGBUS  = 1 << 7
	uffdModeMissing    = 1
	uffdioAPI          = 0xc018aa3f // _IOWR(0xAA, 0x3F, struct uffdio_api)
	uffdioRegister     = 0xc020aa00 // _IOWR(0xAA, 0x00, struct uffdio_register)
	uffdioAPISize      = 24
	uffdioRegisterSize = 32
)

type uffdioAPIArg struct{ api, features, ioctls uint64 }

type uffdioRegisterArg struct{ start, length, mode, ioctls uint64 }

// forbidMissingPages has any access to a page of mem that is not there fail, the kernel's own access included, instead
// of making the page (userfaultfd with UFFD_FEATURE_SIGBUS). It lasts until the returned descriptor is closed. No right
// is needed, as the descriptor is for faults of user mode only: with SIGBUS the others fail all the same.
func forbidMissingPages(mem []byte) (fd int, err error) {
	r, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|uffdUserModeOnly, 0, 0)
	if errno != 0 {
		return -1, fmt.Errorf("userfaultfd: %w (the container's seccomp profile must allow it)", errno)
	}
	fd = int(r)
	api := uffdioAPIArg{api: uffdAPIVersion, features: uffdFeatureSIGBUS}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, r, uffdioAPI, uintptr(unsafe.Pointer(&api))); errno != 0 {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("userfaultfd API: %w", errno)
	}
	reg := uffdioRegisterArg{
		start: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))), length: uint64(len(mem)), mode: uffdModeMissing,
	}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, r, uffdioRegister, uintptr(unsafe.Pointer(&reg))); errno != 0 {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("register memory with userfaultfd: %w", errno)
	}
	return fd, nil
}

// The argument structs have the kernel's sizes.
var (
	_ = [1]struct{}{}[unsafe.Sizeof(uffdioAPIArg{})-uffdioAPISize]
	_ = [1]struct{}{}[unsafe.Sizeof(uffdioRegisterArg{})-uffdioRegisterSize]
)
