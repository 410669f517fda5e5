package xsk_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/testutil"
	"github.com/afxdp-project/afxdp/pkg/xsk"
)

func wantAdvice(t *testing.T, err error, target error, advice string) {
	t.Helper()
	var e *xsk.Error
	if !errors.As(err, &e) || !errors.Is(err, target) || !strings.Contains(e.Advice, advice) {
		t.Errorf("%v; want %v with the advice %q", err, target, advice)
	}
}

func TestZeroCopyIsRefusedWithAdviceWhereTheDriverHasNone(t *testing.T) {
	w := newWire(t, wireConfig{})
	_, err := w.near.tryOpen(t, portConfig{bind: xsk.BindConfig{Mode: xsk.ZeroCopyRequire}})
	wantAdvice(t, err, xsk.ErrUnsupported, "bind in copy mode")
	if !errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("the kernel's answer is not in %v", err)
	}
}

func TestZeroCopyAutoFallsBackToCopyMode(t *testing.T) {
	w := newWire(t, wireConfig{})
	p := w.near.open(t, portConfig{queue: 1})
	s, err := xsk.NewSocket()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	if err := s.RegisterUMEM(p.umem.Bytes(), p.umem.Config); err != nil {
		t.Fatal(err)
	}
	if err := s.SetRings(xsk.RingSizes{Fill: 8, Completion: 8, RX: 8}); err != nil {
		t.Fatal(err)
	}
	if err := s.Bind(xsk.BindConfig{Ifindex: w.near.index, Queue: 0}); err != nil {
		t.Fatal(err)
	}
	if zc, err := s.IsZeroCopy(); err != nil || zc {
		t.Errorf("zero-copy on a veth: %v, %v", zc, err)
	}
}

func TestBindMistakesAreExplained(t *testing.T) {
	w := newWire(t, wireConfig{})
	open := func(s side, c portConfig) error { _, err := s.tryOpen(t, c); return err }
	gone := w.near
	gone.index = 1 << 20
	wantAdvice(t, open(gone, portConfig{}), unix.ENODEV, "no such device")
	wantAdvice(t, open(w.near, portConfig{queue: 100}), unix.EINVAL, "queue out of range")
	wantAdvice(t, open(w.near, portConfig{sizes: xsk.RingSizes{RX: 8}}), unix.EINVAL, "a ring or the UMEM missing")
}

func TestSecondUMEMIsExplained(t *testing.T) {
	w := newWire(t, wireConfig{})
	p := w.near.open(t, portConfig{})
	err := p.socket.RegisterUMEM(p.umem.Bytes(), p.umem.Config)
	wantAdvice(t, err, unix.EBUSY, "has a UMEM already")
}

func TestHoleInTheUMEMIsNotMemory(t *testing.T) {
	testutil.NeedKernel(t)
	s, err := xsk.NewSocket()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	mem, err := unix.Mmap(-1, 0, 8192, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(mem) }()
	wantAdvice(t, s.RegisterUMEM(mem, xsk.UMEMConfig{Frames: 4, FrameSize: 2048}), unix.EFAULT, "not all of its pages")
}

// Field case 10: a queue that is held is EBUSY, and free within a bounded time after the holder's end.
func TestQueueIsFreeSoonAfterItsHolderIsClosed(t *testing.T) {
	w := newWire(t, wireConfig{})
	first := w.near.open(t, portConfig{})
	open := func() error { _, err := w.near.tryOpen(t, portConfig{}); return err }
	wantAdvice(t, open(), unix.EBUSY, "another AF_XDP socket holds the queue")

	if err := first.socket.Close(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(200 * time.Millisecond)
	wantAdvice(t, open(), unix.EBUSY, "holds the queue") // the mapped rings hold it, too
	first.close()
	start := time.Now()
	var err error
	if !within(t, func() bool { err = open(); return err == nil }) {
		t.Fatal(err)
	}
	t.Logf("free after %v", time.Since(start))
}

func TestSocketIsTakenOverFromItsDescriptor(t *testing.T) {
	w := newWire(t, wireConfig{})
	near, far := w.near.open(t, portConfig{fill: -1}), w.far.open(t, portConfig{})
	dup, err := unix.FcntlInt(uintptr(near.socket.FD()), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		t.Fatal(err)
	}
	s, err := xsk.SocketFromFD(dup)
	if err != nil {
		t.Fatal(err)
	}
	mine, err1 := near.socket.Cookie()
	its, err2 := s.Cookie()
	if err1 != nil || err2 != nil || mine != its || mine == 0 {
		t.Errorf("cookies of one socket's two descriptors: %d, %d; %v, %v", mine, its, err1, err2)
	}
	if other, _ := far.socket.Cookie(); other == mine {
		t.Errorf("two sockets have one cookie, %d", mine)
	}
	// The first owner goes; the second maps the rings anew and goes on.
	near.refill(16)
	near.close()
	near.socket, near.tb = s, t
	if near.rings, err = s.Map(xsk.RingSizes{Fill: 512, Completion: 512, RX: 512, TX: 512}); err != nil {
		t.Fatal(err)
	}
	out := packets(16, 100)
	far.send(out...)
	sameInOrder(t, near.receive(len(out)), out)
}

func TestOtherDescriptorsAreNoSocket(t *testing.T) {
	fds := make([]int, 2)
	if err := unix.Pipe2(fds, unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	udp, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range append(fds, udp) {
		if _, err := xsk.SocketFromFD(fd); err == nil {
			t.Errorf("descriptor %d is taken for an AF_XDP socket", fd)
		}
		if err := unix.Close(fd); err != nil {
			t.Errorf("a refused descriptor was closed: %v", err)
		}
	}
}

func TestMapOfOtherSizesIsExplained(t *testing.T) {
	w := newWire(t, wireConfig{})
	p := w.near.open(t, portConfig{sizes: xsk.RingSizes{Fill: 64, Completion: 64, RX: 64}})
	_, err := p.socket.Map(xsk.RingSizes{RX: 64, TX: 64})
	wantAdvice(t, err, unix.EINVAL, "no such ring")
	_, err = p.socket.Map(xsk.RingSizes{RX: 65536})
	wantAdvice(t, err, unix.EINVAL, "another size")
}

func TestProbeMapBoundMayBeAskedAgain(t *testing.T) {
	testutil.NeedKernel(t)
	for range 3 {
		if err := xsk.ProbeMapBound(); err != nil {
			t.Fatal(err)
		}
	}
}

// Field case 11: sockets of one queue share fill and completion ring; on another queue a socket has its own.
func TestSharedUMEM(t *testing.T) {
	w := newWire(t, wireConfig{})
	first := w.near.open(t, portConfig{first: 0, umem: xsk.UMEMConfig{Frames: 256}})
	sameQueue := w.near.open(t, portConfig{share: first, sizes: xsk.RingSizes{TX: 64}, first: 128, count: 0})
	otherQueue := w.near.open(t, portConfig{queue: 1, share: first, first: 128, count: 128})
	far := [2]*port{w.far.open(t, portConfig{}), w.far.open(t, portConfig{queue: 1})}

	// Reception on each queue, into one memory.
	for q, near := range []*port{first, otherQueue} {
		out := packets(10, 100+q)
		far[q].send(out...)
		sameInOrder(t, near.receive(len(out)), out)
	}
	// What the second socket of the queue sends completes on the ring of the first.
	var addr [1]uint64
	first.frames.Get(addr[:])
	d := xsk.Desc{Addr: addr[0], Len: 80}
	copy(first.umem.Packet(d), packet(7, 80))
	sameQueue.rings.TX.Transmit([]xsk.Desc{d})
	if err := sameQueue.socket.WakeTX(); err != nil {
		t.Fatal(err)
	}
	var done [1]uint64
	if !within(t, func() bool { return first.rings.Completion.Complete(done[:]) == 1 }) || done != addr {
		t.Errorf("completed %#x on the first socket's ring, want %#x", done, addr)
	}
	if got := far[0].receive(1); !bytes.Equal(got[0], packet(7, 80)) {
		t.Errorf("the second socket's packet arrived as %x", got[0])
	}
	out := packets(10, 300)
	otherQueue.send(out...)
	sameInOrder(t, far[1].receive(len(out)), out)
}

// Field case 11: the combinations that the kernel answers with EINVAL are explained.
func TestWrongSharingIsExplained(t *testing.T) {
	w := newWire(t, wireConfig{})
	first := w.near.open(t, portConfig{})
	for _, tc := range []struct {
		name   string
		c      portConfig
		target error
		advice string
	}{
		{"own fill and completion ring on the same queue", portConfig{share: first, count: 64}, unix.EINVAL,
			"on the queue of the first socket a shared socket has no fill and completion ring"},
		{"none on another queue", portConfig{share: first, queue: 1, sizes: xsk.RingSizes{RX: 64}}, unix.EINVAL,
			"on another one it needs both"},
		{"queue out of range", portConfig{share: first, queue: 99, count: 64}, unix.EINVAL, "queue out of range"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := w.near.tryOpen(t, tc.c)
			wantAdvice(t, err, tc.target, tc.advice)
		})
	}
	unbound := &port{umem: first.umem}
	var err error
	if unbound.socket, err = xsk.NewSocket(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unbound.socket.Close() }()
	_, err = w.near.tryOpen(t, portConfig{share: unbound, queue: 2, count: 64})
	wantAdvice(t, err, unix.EBADF, "not bound or has none")
}

// Field case 21: when the device goes away, system calls end in an error that says so.
func TestDeviceRemovedUnderASocket(t *testing.T) {
	w := newWire(t, wireConfig{})
	p := w.near.open(t, portConfig{})
	if err := testutil.DelLink(w.near.name); err != nil {
		t.Fatal(err)
	}
	for what, wake := range map[string]func() error{"WakeRX": p.socket.WakeRX, "WakeTX": p.socket.WakeTX} {
		for range 3 { // it stays so
			if err := wake(); !isGone(err) {
				t.Errorf("%s after the device's removal: %v", what, err)
			}
		}
	}
	if _, err := p.socket.Statistics(); err != nil {
		t.Errorf("statistics after the device's removal: %v", err)
	}
}

func TestDeviceSetDownUnderASocket(t *testing.T) {
	w := newWire(t, wireConfig{})
	p := w.near.open(t, portConfig{})
	if err := testutil.SetDown(w.near.name); err != nil {
		t.Fatal(err)
	}
	for what, wake := range map[string]func() error{"WakeRX": p.socket.WakeRX, "WakeTX": p.socket.WakeTX} {
		if err := wake(); !errors.Is(err, unix.ENETDOWN) {
			t.Errorf("%s on a device that is down: %v, want ENETDOWN", what, err)
		}
	}
	if err := testutil.SetUp(w.near.name); err != nil {
		t.Fatal(err)
	}
	if err := p.socket.WakeTX(); err != nil {
		t.Errorf("WakeTX on the device that is up again: %v", err)
	}
}
