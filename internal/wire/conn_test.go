package wire

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/testutil"
)

// pair returns a connection, and the plain descriptor of its other end, which may send anything.
func pair(t *testing.T) (*Conn, int) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	u, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	return NewConn(u), fd
}

// soon is a bound for what the kernel does at once.
func soon() time.Time { return time.Now().Add(10 * time.Second) }

func devNull(t *testing.T, n int) []int {
	t.Helper()
	fds := make([]int, n)
	for i := range fds {
		fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
		fds[i] = fd
	}
	return fds
}

func encode(t *testing.T, m Message) []byte {
	t.Helper()
	b, err := Encode(5, m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Field case 44: no packet, however bad, leaves a descriptor in the process that receives it.
func TestBadPacketsAreRefusedAndLeaveNoDescriptor(t *testing.T) {
	umem, open := encode(t, &UMEM{Length: 4096, FrameSize: 4096}), encode(t, &Open{})
	long := append(open[:len(open):len(open)], make([]byte, MaxMessage+1-len(open))...)
	garbage := []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	fds := devNull(t, 253)
	one, all := unix.UnixRights(fds[0]), unix.UnixRights(fds...)
	credentials := unix.UnixCredentials(&unix.Ucred{Pid: int32(os.Getpid()), Uid: uint32(os.Getuid()), Gid: uint32(os.Getgid())})
	const tooMany = "more than one descriptor"
	for title, c := range map[string]struct {
		data, oob []byte
		want      string
		id        uint32
	}{
		"half a message":               {open[:20], nil, "says that it has 40 bytes, 20 came", 5},
		"half a header":                {open[:7], nil, "message of 7 bytes is shorter", 0},
		"garbage":                      {garbage, nil, `does not begin with "AFXD"`, 0},
		"garbage with an fd":           {garbage, one, "does not begin", 0},
		"too long":                     {long, nil, "longer than 16384 bytes", 5},
		"too long, with 253 fds":       {long, all, "longer than 16384 bytes", 5},
		"2 fds":                        {umem, unix.UnixRights(fds[:2]...), tooMany, 5},
		"100 fds":                      {umem, unix.UnixRights(fds[:100]...), tooMany, 5},
		"253 fds":                      {umem, all, tooMany, 5},
		"253 fds where none belongs":   {open, all, tooMany, 5},
		"an fd where none belongs":     {open, one, "OPEN came with a descriptor", 5},
		"no fd where one belongs":      {umem, nil, "UMEM came without its descriptor", 5},
		"credentials instead of an fd": {umem, credentials, "UMEM came without its descriptor", 5},
		"credentials beside an fd":     {open, append(one[:len(one):len(one)], credentials...), "OPEN came with a descriptor", 5},
		"empty with an fd":             {nil, one, "empty message", 0},
		"empty with 253 fds":           {nil, all, "empty message", 0},
	} {
		t.Run(title, func(t *testing.T) {
			before := testutil.OpenFDs()
			conn, peer := pair(t)
			if err := sendmsg(peer, c.data, c.oob); err != nil {
				t.Fatal(err)
			}
			_, err := conn.Recv(soon())
			var broken *ProtocolError
			if !errors.As(err, &broken) || !strings.Contains(broken.Reason, c.want) || broken.ID != c.id {
				t.Errorf("got %#v, want a protocol error with %q and id %d", err, c.want, c.id)
			}
			CloseUnexpected(err)
			if err := errors.Join(conn.Close(), unix.Close(peer)); err != nil {
				t.Error(err)
			}
			if leaked := testutil.LeakedFDs(before); leaked != nil {
				t.Errorf("left open: %v", leaked)
			}
		})
	}
}

func TestDescriptorArrivesOnceAndCloseOnExec(t *testing.T) {
	before := testutil.OpenFDs()
	a, raw := pair(t)
	b := connOf(t, raw)
	f, err := os.Open("/proc/self/stat")
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Send(9, &UMEM{Length: 4096, FrameSize: 4096}, int(f.Fd()), time.Second); err != nil {
		t.Fatal(err)
	}
	r, err := a.Recv(soon())
	if err != nil || r.ID != 9 || r.FD < 0 {
		t.Fatalf("got %+v, %v", r, err)
	}
	if flags, err := unix.FcntlInt(uintptr(r.FD), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("descriptor flags %#x, %v: not close-on-exec", flags, err)
	}
	var mine, got unix.Stat_t
	if err := errors.Join(unix.Fstat(int(f.Fd()), &mine), unix.Fstat(r.FD, &got)); err != nil || mine.Ino != got.Ino {
		t.Errorf("another file came: %v", err)
	}
	if err := errors.Join(unix.Close(r.FD), f.Close(), a.Close(), b.Close()); err != nil {
		t.Error(err)
	}
	if leaked := testutil.LeakedFDs(before); leaked != nil {
		t.Errorf("left open: %v", leaked)
	}
}

// connOf makes a Conn of a plain descriptor.
func connOf(t *testing.T, fd int) *Conn {
	t.Helper()
	f := os.NewFile(uintptr(fd), "peer")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	return NewConn(c.(*net.UnixConn))
}

// A peer that refuses and closes, with a request of ours unread, has its reason read all the same.
func TestReasonIsReadAlthoughThePeerLeftRequestsUnread(t *testing.T) {
	a, raw := pair(t)
	defer a.Close()
	b := connOf(t, raw)
	defer b.Close()
	if err := b.Send(1, &Hello{MinVersion: 1, MaxVersion: 1}, -1, time.Second); err != nil {
		t.Fatal(err)
	}
	if err := a.Send(0, Errorf(CodeLimit, "too many"), -1, time.Second); err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := b.Recv(soon())
	if e, ok := r.Message.(*Error); err != nil || !ok || e.Code != CodeLimit {
		t.Fatalf("got %+v, %v; want the reason", r, err)
	}
	if _, err := b.Recv(soon()); !errors.Is(err, io.EOF) {
		t.Errorf("after the reason: %v, want EOF", err)
	}
}

func TestEndOfConnectionIsEOF(t *testing.T) {
	for title, end := range map[string]func(fd int) error{
		"closed":            unix.Close,
		"closed unread":     func(fd int) error { return unix.Close(fd) },
		"empty packet":      func(fd int) error { return errors.Join(sendmsg(fd, nil, nil), unix.Close(fd)) },
		"shut down to send": func(fd int) error { return errors.Join(unix.Shutdown(fd, unix.SHUT_WR), unix.Close(fd)) },
	} {
		t.Run(title, func(t *testing.T) {
			conn, peer := pair(t)
			defer conn.Close()
			if title == "closed unread" {
				if err := conn.Send(1, &Closed{}, -1, time.Second); err != nil {
					t.Fatal(err)
				}
			}
			if err := end(peer); err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Recv(soon()); !errors.Is(err, io.EOF) {
				t.Errorf("got %v, want EOF", err)
			}
		})
	}
}

func TestSilentAndSlowPeersRunIntoDeadlines(t *testing.T) {
	conn, peer := pair(t)
	defer conn.Close()
	defer unix.Close(peer)
	if _, err := conn.Recv(time.Now().Add(20 * time.Millisecond)); !IsTimeout(err) {
		t.Errorf("silent peer: %v, want a timeout", err)
	}
	text := strings.Repeat("x", MaxText)
	for i := 0; ; i++ {
		err := conn.Send(1, Errorf(CodeInternal, "%s", text), -1, 20*time.Millisecond)
		if err == nil && i < 10000 {
			continue
		}
		if !IsTimeout(err) {
			t.Errorf("peer that never reads: %v after %d messages, want a timeout", err, i)
		}
		return
	}
}

func TestWrongNumberOfDescriptorsIsNotSent(t *testing.T) {
	conn, peer := pair(t)
	defer conn.Close()
	defer unix.Close(peer)
	if err := conn.Send(1, &UMEM{}, -1, time.Second); err == nil {
		t.Error("UMEM was sent without a descriptor")
	}
	if err := conn.Send(1, &Open{}, 0, time.Second); err == nil {
		t.Error("OPEN was sent with a descriptor")
	}
}

// Field case 43: a path that is too long is called that.
func TestPathThatIsTooLongIsNamed(t *testing.T) {
	path := "/" + strings.Repeat("a", MaxPath)
	_, err := Dial(path, time.Second)
	if err == nil || !strings.Contains(err.Error(), "has 108 bytes, at most 107 are possible") {
		t.Errorf("108 bytes: %v", err)
	}
	if err := CheckPath(path[:MaxPath]); err != nil {
		t.Errorf("107 bytes: %v", err)
	}
}
