package handoff

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/wire"
)

// socket is a listening socket with the file by which it is found.
type socket struct {
	unix     *net.UnixListener
	dev, ino uint64
}

// listen makes a listening socket that every uid may connect to. It appears under its name by a rename, so that one
// left by an earlier agent is replaced in one step.
func listen(path string) (*socket, error) {
	temp := path + ".new"
	if err := wire.CheckPath(temp); err != nil {
		return nil, err
	}
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove what an earlier agent left: %w", err)
	}
	u, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: temp, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	u.SetUnlinkOnClose(false)
	var st unix.Stat_t
	err = errors.Join(os.Chmod(temp, 0o666), unix.Lstat(temp, &st), os.Rename(temp, path))
	if err != nil {
		return nil, errors.Join(err, u.Close(), os.Remove(temp))
	}
	return &socket{u, st.Dev, st.Ino}, nil
}

// isAt reports whether the socket is found at path.
func (l *socket) isAt(path string) bool {
	var st unix.Stat_t
	return unix.Lstat(path, &st) == nil && st.Dev == l.dev && st.Ino == l.ino
}

// refuse has the kernel refuse new connections at once. Unlike Close it never blocks.
func (l *socket) refuse() {
	if raw, err := l.unix.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) })
	}
}

// Close closes the socket and leaves its file.
func (l *socket) Close() error { return l.unix.Close() }
