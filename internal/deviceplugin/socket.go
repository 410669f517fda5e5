package deviceplugin

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// maxPath is what a Unix socket's address can hold, in bytes.
const maxPath = 107

// identity tells a file from another one that took its name. An inode number alone is soon used again; the time of
// modification of a socket is that of its making.
type identity struct {
	dev, ino uint64
	made     time.Time
}

func identify(path string) (identity, error) {
	st, err := os.Stat(path)
	if err != nil {
		return identity{}, err
	}
	sys := st.Sys().(*syscall.Stat_t)
	return identity{sys.Dev, sys.Ino, st.ModTime()}, nil
}

// listen makes a socket that only root can connect to. One that nobody listens on any more is replaced; a file of
// another kind, or a socket that somebody serves, is not touched.
func listen(path string) (*net.UnixListener, identity, error) {
	fail := func(err error) (*net.UnixListener, identity, error) {
		return nil, identity{}, fmt.Errorf("listen on %s: %w", path, err)
	}
	if len(path) > maxPath {
		return fail(fmt.Errorf("the path has %d bytes, a socket's at most %d: "+
			"use a shorter name for the pool or another root directory for kubelet", len(path), maxPath))
	}
	if err := removeStale(path); err != nil {
		return fail(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return fail(errors.Unwrap(err)) // the path is in the message already
	}
	// By the time that it is closed the name may belong to another socket.
	l.SetUnlinkOnClose(false)
	if err := os.Chmod(path, 0o600); err != nil {
		return fail(errors.Join(err, l.Close()))
	}
	id, err := identify(path)
	if err != nil {
		return fail(errors.Join(err, l.Close()))
	}
	return l, id, nil
}

// RemoveSockets removes the sockets of pools that nobody serves any more: those that agents which were killed have left.
func RemoveSockets(kubeletRoot string, pools []string) error {
	var errs []error
	for _, name := range pools {
		if err := removeStale(socketOf(kubeletRoot, name)); err != nil {
			errs = append(errs, fmt.Errorf("remove the socket of pool %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// socketOf returns the path of a pool's socket.
func socketOf(kubeletRoot, pool string) string {
	return filepath.Join(kubeletRoot, "device-plugins", "afxdp-"+pool+".sock")
}

func removeStale(path string) error {
	st, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case st.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("there is a file that is not a socket (%s): remove it if it is not needed", st.Mode())
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		_ = conn.Close()
		return errors.New("another process serves it: is another agent running on this node?")
	}
	if !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("find out whether another process serves it: %w", err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// removeOwn removes a socket if it is still the one that was made.
func removeOwn(path string, own identity) {
	if id, err := identify(path); err == nil && id == own {
		_ = os.Remove(path)
	}
}
