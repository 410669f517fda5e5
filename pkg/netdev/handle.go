package netdev

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/mdlayher/genetlink"
	"golang.org/x/sys/unix"
)

// Config says how to open a [Handle]. The zero value is ready for use.
type Config struct {
	// SysfsRoot is where sysfs is mounted; "" is "/sys". The devices, PCI addresses and NUMA nodes of a NIC are read
	// from any sysfs; the settings of [Handle.DeviceSettings] need one that shows the handle's network namespace.
	SysfsRoot string
	// ProcfsRoot is where procfs is mounted; "" is "/proc". The threads of NAPIs are looked up there.
	ProcfsRoot string
	// IRQDir is the directory with the interrupts' settings; "" is "irq" in ProcfsRoot. In a container that one is
	// read-only, and nothing can be mounted over it.
	IRQDir string
}

// Handle is the view of one network namespace. It is safe for concurrent use; requests of one netlink protocol queue
// up behind each other.
type Handle struct {
	sysfs  string
	procfs string
	irqs   string
	cookie uint64

	route   *conn
	generic *conn
	// sock carries ioctls into the handle's network namespace.
	sock *os.File

	netdev  family
	ethtool family
}

// Open opens the calling thread's network namespace with the zero [Config]. The caller closes the handle.
func Open() (*Handle, error) { return Config{}.Open() }

// Open opens the calling thread's network namespace. The caller closes the handle.
func (c Config) Open() (_ *Handle, err error) {
	// All of a handle's sockets are made on one thread, so that they are of one network namespace.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	h := &Handle{sysfs: c.SysfsRoot, procfs: c.ProcfsRoot, irqs: c.IRQDir}
	if h.procfs == "" {
		h.procfs = "/proc"
	}
	if h.irqs == "" {
		h.irqs = filepath.Join(h.procfs, "irq")
	}
	if h.sysfs == "" {
		h.sysfs = "/sys"
	}
	defer func() {
		if err != nil {
			_ = h.Close()
		}
	}()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open a socket for device ioctls: %w", err)
	}
	h.sock = os.NewFile(uintptr(fd), "netdev-ioctl")
	if h.cookie, err = CookieOfSocket(fd); err != nil {
		return nil, err
	}
	if h.route, err = dial(unix.NETLINK_ROUTE); err != nil {
		return nil, fmt.Errorf("connect to rtnetlink: %w", err)
	}
	if h.generic, err = dial(unix.NETLINK_GENERIC); err != nil {
		return nil, fmt.Errorf("connect to generic netlink: %w", err)
	}
	if h.netdev, err = findFamily(h.generic, "netdev"); err != nil {
		return nil, err
	}
	if h.ethtool, err = findFamily(h.generic, "ethtool"); err != nil {
		return nil, err
	}
	return h, nil
}

// Close closes the handle's sockets. Watches that are still running go on until their context ends.
func (h *Handle) Close() error {
	var errs []error
	if h.sock != nil {
		errs = append(errs, h.sock.Close())
	}
	for _, c := range []*conn{h.route, h.generic} {
		if c != nil {
			errs = append(errs, c.nl.Close())
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close netdev handle: %w", err)
	}
	return nil
}

// NetnsCookie returns the cookie of the handle's network namespace: unique until the next boot, never reused.
func (h *Handle) NetnsCookie() uint64 { return h.cookie }

// CookieOfSocket returns the cookie of the network namespace in which a socket was created (SO_NETNS_COOKIE). The
// descriptor stays the caller's.
func CookieOfSocket(fd int) (uint64, error) {
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0, fmt.Errorf("read the network namespace cookie of socket %d: %w", fd, err)
	}
	return cookie, nil
}

// family is a generic netlink family of this kernel. Its id is 0 where the kernel does not have it.
type family struct {
	name   string
	id     uint16
	groups []genetlink.MulticastGroup
}

func findFamily(c *conn, name string) (family, error) {
	f, err := genetlink.NewConn(c.nl).GetFamily(name)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return family{name: name}, nil
	case err != nil:
		return family{}, fmt.Errorf("look up generic netlink family %s: %w", name, err)
	}
	return family{name: name, id: f.ID, groups: f.Groups}, nil
}

func (f family) group(name string) (uint32, bool) {
	for _, g := range f.groups {
		if g.Name == name {
			return g.ID, true
		}
	}
	return 0, false
}
