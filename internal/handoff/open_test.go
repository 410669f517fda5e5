package handoff_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/handoff/handofftest"
	"github.com/afxdp-project/afxdp/internal/lease"
	"github.com/afxdp-project/afxdp/internal/wire"
	"github.com/afxdp-project/afxdp/pkg/xsk"
)

// Invariant 1: what a pod is handed is bound, so that it cannot bind it to a queue of its choice.
func TestHandedSocketsAreBound(t *testing.T) {
	n := handofftest.New(t)
	p := n.NewPod("a")
	p.Add(handofftest.DefaultSettings, 0, 1)
	c := connect(t, p, n.Serve("x", 0, 1))
	c.umem()
	for i := range uint32(2) {
		o, s := c.open(i)
		for queue := range uint32(4) {
			if err := s.Bind(xsk.BindConfig{Ifindex: n.Link.Index, Queue: queue}); !errors.Is(err, unix.EBUSY) {
				t.Errorf("device %d: binding what was handed out to queue %d: %v, want EBUSY", i, queue, err)
			}
		}
		cookie, err := s.Cookie()
		if err != nil || o.Cookie != cookie || o.Device != i || o.Fill != 64 || o.TX != 64 || o.Epoch == 0 {
			t.Errorf("device %d: OPENED %+v, socket cookie %d, %v", i, o, cookie, err)
		}
		if o.Flags&(wire.SocketZeroCopy|wire.SocketBusyPoll|wire.SocketMultiBuffer) != 0 || o.Flags&wire.SocketNeedWakeup == 0 {
			t.Errorf("device %d: flags %#x", i, o.Flags)
		}
		if o.Text != "busy polling is off in pool fast" {
			t.Errorf("device %d: %q", i, o.Text)
		}
		if _, err := s.Map(xsk.RingSizes{Fill: o.Fill, Completion: o.Completion, RX: o.RX, TX: o.TX}); err != nil {
			t.Errorf("device %d: %v", i, err)
		}
	}
}

func TestEachOpenIsToldWithItsOutcome(t *testing.T) {
	n := handofftest.New(t)
	told := make(chan string, 10)
	n.Server.OnOpen = func(pool string, took time.Duration, refused *wire.Error) {
		outcome := pool
		if refused != nil {
			outcome += " " + refused.Code.String()
		}
		if took <= 0 {
			t.Errorf("%s took %v", outcome, took)
		}
		told <- outcome
	}
	p := n.NewPod("a")
	p.Add(handofftest.DefaultSettings, 0, 1)
	path := n.Serve("x", 0, 1)
	c := connect(t, p, path)
	c.refused(goodOpen(0), -1, wire.CodeNoUMEM, "")
	c.umem()
	_, s := c.open(0)
	c.refused(goodOpen(7), -1, wire.CodeNoDevice, "")
	// A UMEM that is joined has as many frames as the one that was brought.
	joined := connect(t, p, path)
	if m, _ := joined.ask(&wire.Join{}, s.FD()); m.Type() != wire.TypeJoined {
		t.Fatalf("JOIN was answered with %+v", m)
	}
	joined.open(1)
	outcomes := []string{<-told, <-told, <-told, <-told}
	if want := []string{"fast no_umem", "fast", "fast no_device", "fast"}; !slices.Equal(outcomes, want) {
		t.Errorf("told of %q, want %q", outcomes, want)
	}
	for _, l := range n.Leases.Leases() {
		if l.Socket == nil || l.Socket.Frames != umemSize/4096 {
			t.Errorf("socket of %s: %+v, want %d frames", l.Device, l.Socket, umemSize/4096)
		}
	}
}

// A pod that is refused a thousand times a second is told of a few times.
func TestRefusedOpensAreToldWithTheirOwner(t *testing.T) {
	n := handofftest.New(t)
	var told []string
	n.Server.OnRefused = func(pod lease.Pod, device, reason string) {
		if pod.Name != "a" || pod.UID == "" || reason == "" {
			t.Errorf("told of %+v: %q", pod, reason)
		}
		told = append(told, device)
	}
	p := n.NewPod("a")
	p.Add(handofftest.DefaultSettings, 0, 1)
	c := connect(t, p, n.Serve("x", 0, 1))
	c.refused(goodOpen(1), -1, wire.CodeNoUMEM, "")
	for range 1000 {
		c.refused(goodOpen(7), -1, wire.CodeNoDevice, "")
	}
	if len(told) != 10 || told[0] != handofftest.Device(1) || told[1] != "" {
		t.Errorf("told of %q", told)
	}
}

func TestBusyPollIsWhatTheKernelTook(t *testing.T) {
	n := handofftest.New(t)
	p := n.NewPod("a")
	settings := handofftest.DefaultSettings
	settings.BusyPollBudget, settings.BusyPollTimeout = 64, 20*time.Microsecond
	settings.DeferHardIRQs, settings.GROFlushTimeout = 2, 200*time.Microsecond
	p.Add(settings, 0, 1)
	c := connect(t, p, n.Serve("x", 0, 1))
	c.umem()
	o, s := c.open(0)
	if o.Flags&wire.SocketBusyPoll == 0 || o.BusyPollBudget != 64 || o.BusyPollTimeout != 20 {
		t.Errorf("OPENED: %+v", o)
	}
	if v, err := unix.GetsockoptInt(s.FD(), unix.SOL_SOCKET, unix.SO_BUSY_POLL); err != nil || v != 20 {
		t.Errorf("SO_BUSY_POLL is %d, %v", v, err)
	}
	if o.Text == "" && o.NAPI == 0 {
		t.Error("busy polling is announced as active without a NAPI")
	}
	m, fd := c.ask(&wire.Open{Device: 1, Fill: 64, Completion: 64, RX: 64, TX: 64, Flags: wire.OpenNoBusyPoll}, -1)
	o, ok := m.(*wire.Opened)
	if !ok || o.Flags&wire.SocketBusyPoll != 0 || o.Text != "the client asked for no busy polling" {
		t.Fatalf("without busy polling: %+v", m)
	}
	if v, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BUSY_POLL); err != nil || v != 0 {
		t.Errorf("SO_BUSY_POLL is %d, %v", v, err)
	}
}

func TestBudgetIsNoLargerThanTheRXRing(t *testing.T) {
	n := handofftest.New(t)
	p := n.NewPod("a")
	settings := handofftest.DefaultSettings
	settings.BusyPollBudget, settings.BusyPollTimeout = 512, 20*time.Microsecond
	p.Add(settings, 0)
	c := connect(t, p, n.Serve("x", 0))
	c.umem()
	if o, _ := c.open(0); o.BusyPollBudget != 64 {
		t.Errorf("budget %d for an rx ring of 64", o.BusyPollBudget)
	}
}

// Field case 10: who holds a queue is said, and a queue that is released within the agent's patience is opened.
func TestHeldQueueIsWaitedForThenSaid(t *testing.T) {
	n := handofftest.New(t)
	p := n.NewPod("a")
	p.Add(handofftest.DefaultSettings, 0, 1)
	path := n.Serve("x", 0, 1)
	first, second := connect(t, p, path), connect(t, p, path)
	first.umem()
	_, held := first.open(0)

	second.umem()
	second.refused(goodOpen(0), -1, wire.CodeBusy, "already open by another connection of pod default/a")
	if d := dial(t, p, path).hello().Devices[0]; d.Flags&wire.DeviceOpen == 0 {
		t.Errorf("flags of an open device: %#x", d.Flags)
	}

	// The client says that it is done, but keeps the socket.
	if m, _ := first.ask(&wire.Close{Device: 0}, -1); m.Type() != wire.TypeClosed {
		t.Fatalf("CLOSE: %+v", m)
	}
	second.refused(goodOpen(0), -1, wire.CodeBusy, "the device is leased to this pod, so it is one of its own processes")

	// The UMEM has gone with the socket that could not be bound; this is told apart.
	second.refused(goodOpen(0), -1, wire.CodeNoUMEM, "OPEN before UMEM")
	second.umem()
	second.say(goodOpen(0), -1)
	time.Sleep(50 * time.Millisecond)
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	if r := second.hear(); r.Message.Type() != wire.TypeOpened {
		t.Errorf("a queue that was released meanwhile: %+v", r.Message)
	} else {
		_ = unix.Close(r.FD)
	}
}

// Field case 11: a UMEM can be registered anew once no socket is on it, and what was on it is told apart.
func TestUMEMGoesWithItsLastSocket(t *testing.T) {
	n := handofftest.New(t)
	p := n.NewPod("a")
	p.Add(handofftest.DefaultSettings, 0, 1)
	c := connect(t, p, n.Serve("x", 0, 1))
	c.umem()
	_, s := c.open(0)
	_ = s.Close()
	c.ask(&wire.Close{Device: 0}, -1)
	c.refused(goodOpen(1), -1, wire.CodeNoUMEM, "register the UMEM again")
	c.umem()
	c.open(1)
	c.open(0)
}

func TestQueuesOfTwoAllocationsShareAUMEM(t *testing.T) {
	n := handofftest.New(t)
	p := n.NewPod("a")
	p.Add(handofftest.DefaultSettings, 0, 1, 2)
	one, two := connect(t, p, n.Serve("x", 0)), connect(t, p, n.Serve("y", 1, 2))
	one.umem()
	_, first := one.open(0)
	if m, _ := two.ask(&wire.Join{}, first.FD()); m.Type() != wire.TypeJoined {
		t.Fatalf("JOIN: %+v", m)
	}
	_, second := two.open(0)
	// The group outlives its first socket.
	_ = first.Close()
	one.ask(&wire.Close{}, -1)
	_, third := two.open(1)
	for _, s := range []*xsk.Socket{second, third} {
		if _, err := s.Map(xsk.RingSizes{Fill: 64, Completion: 64, RX: 64, TX: 64}); err != nil {
			t.Error(err)
		}
	}
}

// Invariant 1: sockets that are not the pod's own are worth nothing to it, those that are not bound least of all.
func TestForeignSocketsAreNeitherJoinedNorResumed(t *testing.T) {
	n := handofftest.New(t)
	a, b := n.NewPod("a"), n.NewPod("b")
	a.Add(handofftest.DefaultSettings, 0)
	b.Add(handofftest.DefaultSettings, 1)
	pathA, pathB := n.Serve("x", 0), n.Serve("y", 1)
	c := connect(t, a, pathA)
	c.umem()
	_, ofA := c.open(0)
	fresh, err := xsk.NewSocket()
	if err != nil {
		t.Fatal(err)
	}
	defer fresh.Close()
	tcp, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(tcp)
	for title, test := range map[string]struct {
		fd    int
		words string
	}{
		"a socket of another pod": {ofA.FD(), "not the socket of this lease"},
		"an unbound socket":       {fresh.FD(), "not the socket of this lease"},
		"a TCP socket":            {tcp, "it is a socket of family 2"},
		"a memfd":                 {memfd(t, 4096, 0, 0), "socket operation on non-socket"},
	} {
		t.Run(title, func(t *testing.T) {
			c := connect(t, b, pathB)
			c.tb = t
			c.refused(&wire.Join{}, test.fd, wire.CodeNotYours, test.words)
			c.refused(&wire.Resume{Device: 0}, test.fd, wire.CodeNotYours, test.words)
			c.refused(goodOpen(0), -1, wire.CodeNoUMEM, "OPEN before UMEM")
			_ = c.Close()
		})
	}
	// Its own, but of another device or open already.
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	within(t, "the agent to see the end of the connection", func() bool { return !n.IsOpen(handofftest.Device(0)) })
	c = connect(t, a, pathA)
	if m, _ := c.ask(&wire.Resume{Device: 0}, ofA.FD()); m.Type() != wire.TypeResumed {
		t.Errorf("the pod's own socket: %+v", m)
	}
	c.refused(&wire.Resume{Device: 0}, ofA.FD(), wire.CodeBusy, "already open")
	// Otherwise a pod could have any number of second sockets, by connecting again and again.
	c.refused(&wire.Kick{Device: 0}, -1, wire.CodeState, "one for each OPEN")
	if !n.IsOpen(handofftest.Device(0)) {
		t.Error("the resumed device is not open")
	}
}

// Field case 14: a socket and the program on its NIC are both multi-buffer or both not, also where pools share a UMEM.
func TestPoolsThatDifferDoNotShareAUMEM(t *testing.T) {
	n := handofftest.New(t)
	p := n.NewPod("a")
	p.Add(handofftest.DefaultSettings, 0)
	other := handofftest.DefaultSettings
	other.Pool, other.NeedWakeup = "plain", false
	never := handofftest.DefaultSettings
	never.Pool, never.ZeroCopy = "copy", lease.ZeroCopyNever
	add := func(settings lease.Settings, queue int) {
		r := lease.Request{
			Pod: lease.Pod{UID: "uid-a", Namespace: "default", Name: "a"}, NetnsCookie: p.Cookie, Attachment: p.Attachment(),
			Devices: []lease.DeviceRequest{{Device: lease.Device{ID: handofftest.Device(queue), Link: n.Link, Queue: queue}, Settings: settings}},
		}
		if err := n.Leases.Activate(r); err != nil {
			t.Fatal(err)
		}
	}
	add(other, 1)
	add(never, 2)
	c := connect(t, p, n.Serve("x", 0, 1, 2))
	c.umem()
	c.open(0)
	c.refused(goodOpen(1), -1, wire.CodeUnsupported, "pools fast and plain differ in needWakeup or multiBuffer")
	c.open(2)
	two := connect(t, p, n.Serve("y", 1))
	two.umem()
	if o, _ := two.open(0); o.Flags&wire.SocketNeedWakeup != 0 {
		t.Errorf("flags %#x of a pool without need-wakeup", o.Flags)
	}
}

func TestLeaseThatEndsTellsItsClients(t *testing.T) {
	n := handofftest.New(t)
	p := n.NewPod("a")
	p.Add(handofftest.DefaultSettings, 0, 1)
	path := n.Serve("x", 0, 1)
	c := connect(t, p, path)
	c.umem()
	_, one := c.open(0)
	_, two := c.open(1)
	p.Del()
	r := c.hear()
	if r.ID != 0 {
		t.Errorf("the unasked message has id %d", r.ID)
	}
	c.isError(r.Message, wire.CodeEnded, "has ended: the pod's network was taken down")
	c.ends()
	_, _ = one.Close(), two.Close()
	p.Add(handofftest.DefaultSettings, 0, 1)
	c = connect(t, p, path)
	c.umem()
	c.open(0)
}

// The lease ends while a queue is waited for: the socket that is bound afterwards is not handed out.
func TestLeaseThatEndsWhileASocketIsMade(t *testing.T) {
	n := handofftest.New(t)
	p := n.NewPod("a")
	p.Add(handofftest.DefaultSettings, 0)
	c := connect(t, p, n.Serve("x", 0))
	c.umem()

	holder, err := xsk.NewSocket()
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Close()
	umem, err := xsk.NewUMEM(xsk.UMEMConfig{Frames: 64})
	if err != nil {
		t.Fatal(err)
	}
	defer umem.Close()
	err = errors.Join(holder.RegisterUMEM(umem.Bytes(), umem.Config), holder.SetRings(xsk.RingSizes{Fill: 64, Completion: 64, RX: 64}),
		holder.Bind(xsk.BindConfig{Ifindex: n.Link.Index, Queue: 0, Mode: xsk.ZeroCopyOff}))
	if err != nil {
		t.Fatal(err)
	}
	c.say(goodOpen(0), -1)
	time.Sleep(50 * time.Millisecond) // the agent waits for the queue now
	p.Del()
	if err := holder.Close(); err != nil {
		t.Fatal(err)
	}
	r := c.hear()
	if r.FD >= 0 {
		t.Error("a socket was handed out after the lease had ended")
		_ = unix.Close(r.FD)
	}
	c.isError(r.Message, wire.CodeNotLeased, "not leased")
	if left := n.Leases.Leases(); len(left) != 0 {
		t.Errorf("leases left: %+v", left)
	}
}

func TestTuningIsThatOfAnOpenDevice(t *testing.T) {
	n := handofftest.New(t)
	p := n.NewPod("a")
	p.Add(handofftest.DefaultSettings, 0, 1)
	c := connect(t, p, n.Serve("x", 0, 1))
	c.umem()
	c.refused(&wire.Tuning{Device: 0}, -1, wire.CodeState, "does not have device")
	c.refused(&wire.Tuning{Device: 9}, -1, wire.CodeNoDevice, "the allocation has 2")
	c.open(1)
	c.refused(&wire.Tuning{Device: 0}, -1, wire.CodeState, "does not have device")
	m, _ := c.ask(&wire.Tuning{Device: 1}, -1)
	if want := (wire.Tuned{Device: 1, Flags: wire.SocketNAPIKnown}); *m.(*wire.Tuned) != want {
		t.Errorf("got %+v, want %+v", m, want)
	}
}

func TestKickSocketIsForZeroCopyOnly(t *testing.T) {
	n := handofftest.New(t)
	p := n.NewPod("a")
	p.Add(handofftest.DefaultSettings, 0, 1)
	c := connect(t, p, n.Serve("x", 0, 1))
	c.umem()
	c.refused(&wire.Kick{Device: 0}, -1, wire.CodeState, "does not have device")
	c.open(0)
	c.refused(&wire.Kick{Device: 0}, -1, wire.CodeState, "copy mode")
	c.refused(&wire.Kick{Device: 9}, -1, wire.CodeNoDevice, "the allocation has 2")
	c.open(1) // the connection goes on
}
