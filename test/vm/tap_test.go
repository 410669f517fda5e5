//go:build vm

package vm

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/testutil"
)

// openTap makes a tap with so many queues in the tests' network namespace, and sets it up. Each queue is a file, for
// QEMU; the tap goes with the last of them.
func openTap(name string, queues int) (_ []*os.File, err error) {
	var files []*os.File
	defer func() {
		if err != nil {
			closeAll(files)
			err = fmt.Errorf("make tap %s: %w", name, err)
		}
	}()
	flags := uint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if queues > 1 {
		flags |= unix.IFF_MULTI_QUEUE
	}
	for range queues {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return nil, err
		}
		files = append(files, os.NewFile(uintptr(fd), name))
		ifr, err := unix.NewIfreq(name)
		if err != nil {
			return nil, err
		}
		ifr.SetUint16(flags)
		if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
			return nil, err
		}
	}
	return files, testutil.SetUp(name)
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}
