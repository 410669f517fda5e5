package handoff_test

import (
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/handoff/handofftest"
	"github.com/afxdp-project/afxdp/internal/testutil"
	"github.com/afxdp-project/afxdp/internal/wire"
	"github.com/afxdp-project/afxdp/pkg/xsk"
)

func TestMain(m *testing.M) { os.Exit(testutil.Main(m)) }

const patience = handofftest.Patience

// conn is a pod's connection on which anything can be said.
type conn struct {
	*wire.Conn
	tb testing.TB
	id uint32
}

// dial connects from inside the pod.
func dial(tb testing.TB, p *handofftest.Pod, path string) *conn {
	tb.Helper()
	c := &conn{tb: tb}
	err := p.Netns.Do(func() (err error) {
		c.Conn, err = wire.Dial(path, patience)
		return err
	})
	if err != nil {
		c.tb.Fatal(err)
	}
	c.tb.Cleanup(func() { _ = c.Close() })
	return c
}

// connect connects and shakes hands.
func connect(tb testing.TB, p *handofftest.Pod, path string) *conn {
	tb.Helper()
	c := dial(tb, p, path)
	c.hello()
	return c
}

func (c *conn) hello() *wire.Welcome {
	c.tb.Helper()
	m, _ := c.ask(&wire.Hello{MinVersion: 1, MaxVersion: 1}, -1)
	w, ok := m.(*wire.Welcome)
	if !ok {
		c.tb.Fatalf("HELLO was answered with %+v", m)
	}
	return w
}

func (c *conn) say(m wire.Message, fd int) {
	c.tb.Helper()
	c.id++
	if err := c.Send(c.id, m, fd, patience); err != nil {
		c.tb.Fatal(err)
	}
}

func (c *conn) hear() wire.Received {
	c.tb.Helper()
	r, err := c.Recv(time.Now().Add(patience))
	if err != nil {
		c.tb.Fatalf("wait for an answer: %v", err)
	}
	return r
}

// ask sends a request and returns the answer to it. The descriptor that came with it is closed with the test.
func (c *conn) ask(m wire.Message, fd int) (wire.Message, int) {
	c.tb.Helper()
	c.say(m, fd)
	r := c.hear()
	if r.ID != c.id {
		c.tb.Fatalf("the answer to request %d has id %d: %+v", c.id, r.ID, r.Message)
	}
	if r.FD >= 0 {
		c.tb.Cleanup(func() { _ = unix.Close(r.FD) })
	}
	return r.Message, r.FD
}

// refused asks for what must be refused.
func (c *conn) refused(m wire.Message, fd int, code wire.Code, words string) {
	c.tb.Helper()
	answer, _ := c.ask(m, fd)
	c.isError(answer, code, words)
}

func (c *conn) isError(m wire.Message, code wire.Code, words string) {
	c.tb.Helper()
	e, ok := m.(*wire.Error)
	if !ok || e.Code != code || !strings.Contains(e.Text, words) {
		c.tb.Errorf("got %+v, want an error of code %d with %q", m, code, words)
	}
}

// ends waits for the agent to close the connection.
func (c *conn) ends() {
	c.tb.Helper()
	if r, err := c.Recv(time.Now().Add(patience)); err == nil || wire.IsTimeout(err) {
		c.tb.Errorf("got %+v, %v; want the end of the connection", r, err)
	}
}

const umemSize = 1 << 20

var goodUMEM = wire.UMEM{Length: umemSize, FrameSize: 4096}

func goodOpen(device uint32) *wire.Open {
	return &wire.Open{Device: device, Fill: 64, Completion: 64, RX: 64, TX: 64}
}

// umem registers good memory.
func (c *conn) umem() {
	c.tb.Helper()
	m, _ := c.ask(&goodUMEM, memfd(c.tb, umemSize, umemSize, goodSeals))
	if _, ok := m.(*wire.UMEMOK); !ok {
		c.tb.Fatalf("UMEM was answered with %+v", m)
	}
}

// open opens a device and returns its socket, which is closed with the test.
func (c *conn) open(i uint32) (*wire.Opened, *xsk.Socket) {
	c.tb.Helper()
	m, fd := c.ask(goodOpen(i), -1)
	o, ok := m.(*wire.Opened)
	if !ok {
		c.tb.Fatalf("OPEN was answered with %+v", m)
	}
	s, err := xsk.SocketFromFD(fd)
	if err != nil {
		c.tb.Fatal(err)
	}
	return o, s
}

const goodSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW

// memfd makes a memfd of size bytes of which the first populated are there. It is closed with the test.
func memfd(tb testing.TB, size, populated int64, seals int) int {
	tb.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Ftruncate(fd, size); err != nil {
		tb.Fatal(err)
	}
	if populated > 0 {
		if err := unix.Fallocate(fd, 0, 0, populated); err != nil {
			tb.Fatal(err)
		}
	}
	if seals != 0 {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
			tb.Fatal(err)
		}
	}
	return fd
}

// bytesOf returns how many bytes of a file are in memory.
func bytesOf(tb testing.TB, fd int) int64 {
	tb.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		tb.Fatal(err)
	}
	return st.Blocks * 512
}

// lingering returns a TCP socket that, when its last descriptor is closed, blocks for a minute, or until release is
// called. The caller gives the descriptor away.
func lingering(tb testing.TB) (fd int, release func()) {
	tb.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer l.Close()
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		tb.Fatal(err)
	}
	sa := &unix.SockaddrInet4{Port: l.Addr().(*net.TCPAddr).Port, Addr: [4]byte{127, 0, 0, 1}}
	if err := unix.Connect(fd, sa); err != nil {
		tb.Fatal(err)
	}
	peer, err := l.Accept()
	if err != nil {
		tb.Fatal(err)
	}
	// More than the peer's window, and the peer never reads.
	b := make([]byte, 1<<20)
	for range 64 {
		if _, err := unix.SendmsgN(fd, b, nil, nil, unix.MSG_DONTWAIT); err != nil {
			break
		}
	}
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 60}); err != nil {
		tb.Fatal(err)
	}
	return fd, func() { _ = peer.(*net.TCPConn).SetLinger(0); _ = peer.Close() }
}

// within waits for something that is to happen at once.
func within(tb testing.TB, what string, done func() bool) {
	tb.Helper()
	for deadline := time.Now().Add(patience); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			tb.Fatalf("in vain waited for: %s", what)
		}
	}
}
