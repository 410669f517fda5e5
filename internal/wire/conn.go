package wire

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// MaxPath is the longest path of a Unix socket, in bytes (sun_path less its final NUL).
const MaxPath = 107

// Conn sends and receives messages. One goroutine may receive while any number send.
type Conn struct{ unix *net.UnixConn }

// Dial connects to the socket at path.
func Dial(path string, timeout time.Duration) (*Conn, error) {
	if err := CheckPath(path); err != nil {
		return nil, err
	}
	c, err := (&net.Dialer{Timeout: timeout}).Dial("unixpacket", path)
	if err != nil {
		return nil, err
	}
	return &Conn{c.(*net.UnixConn)}, nil
}

// CheckPath refuses a path that is too long for a Unix socket, which the kernel calls an invalid argument.
func CheckPath(path string) error {
	if len(path) > MaxPath {
		return fmt.Errorf("socket path %s has %d bytes, at most %d are possible", path, len(path), MaxPath)
	}
	return nil
}

// NewConn takes over an accepted connection of network "unixpacket".
func NewConn(c *net.UnixConn) *Conn { return &Conn{c} }

// Close closes the connection.
func (c *Conn) Close() error { return c.unix.Close() }

// PeerNetns returns the cookie of the network namespace in which the peer made its socket (SO_NETNS_COOKIE). On an
// accepted socket the kernel vouches for it; it is the identity of a pod.
func (c *Conn) PeerNetns() (cookie uint64, err error) {
	cerr := c.Control(func(fd uintptr) {
		cookie, err = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	})
	return cookie, errors.Join(cerr, err)
}

// Control calls f with the connection's descriptor, which is lent.
func (c *Conn) Control(f func(fd uintptr)) error {
	raw, err := c.unix.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(f)
}

// Send sends a message, with the descriptor fd where its type has one, which stays the caller's; else fd is -1. The
// peer must take it within timeout.
func (c *Conn) Send(id uint32, m Message, fd int, timeout time.Duration) error {
	b, err := Encode(id, m)
	if err != nil {
		return err
	}
	if (fd >= 0) != m.Type().carriesFD() {
		return fmt.Errorf("send %s: wrong number of descriptors", m.Type())
	}
	var oob []byte
	if fd >= 0 {
		oob = unix.UnixRights(fd)
	}
	if err := c.unix.SetWriteDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	if _, _, err := c.unix.WriteMsgUnix(b, oob, nil); err != nil {
		return fmt.Errorf("send %s: %w", m.Type(), err)
	}
	return nil
}

// Received is one received message.
type Received struct {
	ID      uint32
	Message Message
	FD      int // the caller's, or -1
}

// ProtocolError is a message that breaks the protocol. The connection is of no further use, but an Error may be sent.
type ProtocolError struct {
	ID     uint32
	Reason string
	// Unexpected is a descriptor that came with it, or -1. The caller closes it, after all else that it has to do: closing
	// a hostile descriptor may block.
	Unexpected int
}

func (e *ProtocolError) Error() string { return "protocol error: " + e.Reason }

// CloseUnexpected closes the descriptor that came with a message for which Recv returned err, if one did.
func CloseUnexpected(err error) {
	var broken *ProtocolError
	if errors.As(err, &broken) && broken.Unexpected >= 0 {
		_ = unix.Close(broken.Unexpected)
	}
}

// Recv receives one message. A zero deadline waits for ever; io.EOF says that the peer closed the connection.
//
// Bounds: MaxMessage bytes and one descriptor are taken. What is more than that is an error, and the kernel closes
// surplus descriptors on the way, which may block this thread if they are hostile, but no other.
func (c *Conn) Recv(deadline time.Time) (Received, error) {
	if err := c.unix.SetReadDeadline(deadline); err != nil {
		return Received{}, err
	}
	b := make([]byte, MaxMessage)
	// CMSG_LEN, not CMSG_SPACE, whose padding has room for a second descriptor.
	oob := make([]byte, unix.CmsgLen(4))
	n, oobn, flags, _, err := c.unix.ReadMsgUnix(b, oob)
	if errors.Is(err, unix.ECONNRESET) {
		// The peer closed the connection before it read all that we sent. This is told first and once; what it sent
		// before, such as the reason, is still to be read.
		n, oobn, flags, _, err = c.unix.ReadMsgUnix(b, oob)
	}
	switch {
	case errors.Is(err, io.EOF) && oobn == 0 && flags&unix.MSG_CTRUNC == 0, errors.Is(err, unix.ECONNRESET):
		return Received{}, io.EOF
	case err != nil && !errors.Is(err, io.EOF):
		return Received{}, err
	}
	fd := parseFD(oob[:oobn])
	id, m, derr := Decode(b[:n])
	bad := func(format string, args ...any) (Received, error) {
		return Received{}, &ProtocolError{ID: id, Reason: fmt.Sprintf(format, args...), Unexpected: fd}
	}
	switch {
	case n == 0:
		return bad("empty message") // which looks like the end, but came with descriptors
	case flags&unix.MSG_TRUNC != 0:
		return bad("message is longer than %d bytes", MaxMessage)
	case flags&unix.MSG_CTRUNC != 0:
		return bad("more than one descriptor came with the message, or the receiver's limit of open files is reached")
	case derr != nil:
		return bad("%v", derr)
	case fd >= 0 && !m.Type().carriesFD():
		return bad("%s came with a descriptor", m.Type())
	case fd < 0 && m.Type().carriesFD():
		return bad("%s came without its descriptor", m.Type())
	}
	return Received{ID: id, Message: m, FD: fd}, nil
}

// parseFD returns the descriptor in a control message that has room for one, or -1.
func parseFD(oob []byte) int {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(messages) != 1 {
		return -1
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return -1
	}
	return fds[0]
}

// IsTimeout reports whether err is a deadline that passed.
func IsTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }
