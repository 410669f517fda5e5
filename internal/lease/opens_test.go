package lease

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/afxdp-project/afxdp/internal/testutil"
)

// Field case 20: packets that found no socket are counted, and only those.
func TestOpenedSocketGetsItsQueuesPackets(t *testing.T) {
	n := newNode(t)
	n.add(alice, 1, 2)
	from := n.sender(1)
	n.wantUnclaimed("before it is opened", 1, from)

	process, g := n.open(alice, 1, ignored)
	process.wantPacket("opened:", from)
	v := n.View(deviceID(1), alice.cookie)
	if !v.Leased || !v.Open || v.Queue != 1 || v.Epoch != g.Epoch || v.Link.Name != near {
		t.Errorf("the pod's view of it: %+v", v)
	}
	if v := n.View(deviceID(2), alice.cookie); !v.Leased || v.Open {
		t.Errorf("the pod's view of the other device: %+v", v)
	}
	if s := n.Statistics(); len(s) != 1 {
		t.Errorf("statistics of %v, want those of one device", s)
	}

	o := n.Observe()
	if s := o.Sockets[deviceID(1)]; len(o.Leases) != 2 || len(o.Sockets) != 1 || s == nil || o.Unclaimed[near][1] != 1 {
		t.Errorf("observed: %+v, want two leases, the socket of one and a packet that found none before", o)
	} else if cookie, err := s.Cookie(); err != nil || cookie != process.record().Cookie {
		t.Errorf("observed a socket with cookie %d, %v; want %d", cookie, err, process.record().Cookie)
	}
	n.ok(o.Close())

	// The connection is lost: the packets still go to the pod. Only the agent's descriptor is gone.
	n.Closed(deviceID(1), g.Epoch, false)
	process.wantPacket("its connection lost:", from)
	if n.isOpen(deviceID(1)) {
		t.Error("it counts as open without a connection")
	}
	agents, err := process.socket.Dup()
	n.ok(err)
	l, err := n.Resumed(deviceID(1), alice.cookie, agents, ignored)
	n.ok(err)
	if l.Epoch != g.Epoch || l.Socket == nil || *l.Socket != process.record() {
		t.Errorf("resumed: %+v", l)
	}
	process.wantPacket("resumed:", from)

	n.Closed(deviceID(1), g.Epoch+1, true)
	if !n.isOpen(deviceID(1)) {
		t.Error("closed by someone with another epoch")
	}
	n.Closed(deviceID(1), g.Epoch, true)
	n.wantUnclaimed("done with it:", 1, from)
	process.close()
	n.del(alice)
	n.ok(maintain(n.Manager))
}

func TestOpenIsForTheOwnerOnly(t *testing.T) {
	n := newNode(t)
	n.add(alice, 0)
	n.add(bob, 1)
	process, g := n.open(alice, 0, ignored)
	group := process.record().Group

	anothers, old := g, g
	anothers.NetnsCookie = bob.cookie
	old.Epoch--
	for what, err := range map[string]error{
		"grant of another pod's device": second(n.Grant(deviceID(0), bob.cookie)),
		"grant of no lease":             second(n.Grant(deviceID(3), alice.cookie)),
		"opening with another's grant":  n.Opened(anothers, process.socket, Socket{}, ignored),
		"opening with an old grant":     n.Opened(old, process.socket, Socket{}, ignored),
		"resuming another pod's device": second(n.Resumed(deviceID(0), bob.cookie, process.socket, ignored)),
	} {
		if !errors.Is(err, ErrNotLeased) {
			t.Errorf("%s: %v, want ErrNotLeased", what, err)
		}
	}
	if v := n.View(deviceID(0), bob.cookie); v.Leased || v.Epoch != 0 || v.Link.Name != "" {
		t.Errorf("another pod is told %+v", v)
	}
	for what, err := range map[string]error{
		"a second grant":   second(n.Grant(deviceID(0), alice.cookie)),
		"a second opening": n.Opened(g, process.socket, process.record(), ignored),
		"resuming it":      second(n.Resumed(deviceID(0), alice.cookie, process.socket, ignored)),
	} {
		if !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), "alice") {
			t.Errorf("%s of an open device: %v, want ErrBusy that names the pod", what, err)
		}
	}
	n.Closed(deviceID(0), g.Epoch, false)
	stranger := bind(t, g.Link.Index, 3)
	if _, err := n.Resumed(deviceID(0), alice.cookie, stranger.socket, ignored); !errors.Is(err, ErrNotYours) {
		t.Errorf("resuming with another socket: %v, want ErrNotYours", err)
	}
	if _, err := n.Resumed(deviceID(1), bob.cookie, process.socket, ignored); !errors.Is(err, ErrNotYours) {
		t.Errorf("resuming a device that was never opened: %v, want ErrNotYours", err)
	}

	// Only what is open can be shared or found, and only by its pod.
	if _, err := n.Share(group, alice.cookie); err == nil {
		t.Error("a UMEM without an open socket is shared")
	}
	agents, err := process.socket.Dup()
	n.ok(err)
	_, err = n.Resumed(deviceID(0), alice.cookie, agents, ignored)
	n.ok(err)
	shared, err := n.Share(group, alice.cookie)
	n.ok(err)
	if c, err := shared.Cookie(); err != nil || c != group {
		t.Errorf("shared socket has cookie %d, %v; want %d", c, err, group)
	}
	n.ok(shared.Close())
	if _, err := n.Share(group, bob.cookie); err == nil {
		t.Error("a UMEM is shared with another pod")
	}
	if s, err := n.Find(group, alice.cookie); err != nil || s != process.record() {
		t.Errorf("found %+v, %v", s, err)
	}
	if _, err := n.Find(group, bob.cookie); !errors.Is(err, ErrNotYours) {
		t.Errorf("another pod finds the socket: %v", err)
	}
	process.close()
	n.del(alice)
	n.del(bob)
	n.ok(maintain(n.Manager))
}

func second[T any](_ T, err error) error { return err }

func TestEndOfALeaseRevokesItsSocket(t *testing.T) {
	n := newNode(t)
	n.add(alice, 0)
	n.add(bob, 1)
	from := n.sender(0)
	revoked := make(chan string)
	process, g := n.open(alice, 0, func(reason string) {
		// The connection may ask the Manager while it is told.
		n.Closed(deviceID(0), 0, false)
		revoked <- reason
	})
	process.wantPacket("opened:", from)
	n.del(alice)
	select {
	case reason := <-revoked:
		if !strings.Contains(reason, deviceID(0)) || !strings.Contains(reason, "network was taken down") {
			t.Errorf("revoked because %q", reason)
		}
	case <-time.After(patience):
		t.Fatal("the connection was not told")
	}
	n.wantUnclaimed("after the end", 0, from)
	if _, err := n.Grant(deviceID(0), alice.cookie); !errors.Is(err, ErrNotLeased) {
		t.Errorf("grant after the end: %v", err)
	}
	if err := n.Opened(g, process.socket, process.record(), ignored); !errors.Is(err, ErrNotLeased) {
		t.Errorf("opening with the grant of before: %v", err)
	}
	n.del(bob)
	process.close()
	n.ok(maintain(n.Manager))
}

// A queue is not free before its last holder is gone.
func TestHeldQueueIsQuarantined(t *testing.T) {
	n := newNode(t)
	before := n.now()
	n.add(alice, 0)
	process, _ := n.open(alice, 0, ignored)
	n.del(alice)
	n.wantState("after DEL", before)
	if pending, err := n.Maintain(); !pending || err != nil {
		t.Errorf("maintain: pending %t, %v", pending, err)
	}
	within(t, "the device is reported as held", func() bool {
		return strings.Contains(n.Held()[deviceID(0)], "held by a process of pod default/alice")
	})
	n.restart()
	if pending, err := n.Maintain(); !pending || err != nil {
		t.Errorf("maintain after a restart: pending %t, %v", pending, err)
	}
	n.del(alice) // again, as runtimes do
	n.ok(n.CollectGarbage("net", nil))
	n.ok(n.EndStale(func(Lease) (string, bool) { return "gone", true }))
	n.wantState("held", before)
	within(t, "the device is reported as held after a restart", func() bool { return n.Held()[deviceID(0)] != "" })
	wantError(t, "ADD of another pod", n.Activate(n.request(bob, 1, 0)), "still held by a process of pod default/alice")
	n.wantLeases("after the refusal", deviceID(0)+" alice a1 held")
	n.wantState("after the refusal", before)

	process.close()
	n.ok(maintain(n.Manager))
	if held := n.Held(); len(held) > 0 {
		t.Errorf("held: %v", held)
	}
	n.wantNothingLeft()
	n.add(bob, 0)
	process, _ = n.open(bob, 0, ignored)
	process.close()
	n.del(bob)
	n.ok(maintain(n.Manager))
}

// Kubelet may give a device to the next pod before the first one's DEL. What its processes hold is not forgotten.
func TestQueueHeldByThePodBefore(t *testing.T) {
	n := newNode(t)
	n.add(alice, 0)
	process, _ := n.open(alice, 0, ignored)
	n.add(bob, 0)
	n.wantLeases("given on", leaseOf(0, bob))
	if l, _ := n.Lease(deviceID(0)); l.Predecessor == nil || l.Predecessor.Name != "alice" {
		t.Errorf("predecessor %v, want alice", l.Predecessor)
	}
	n.restart()
	n.del(bob)
	within(t, "the device is reported as held by the first pod", func() bool {
		return strings.Contains(n.Held()[deviceID(0)], "default/alice")
	})
	process.close()
	n.ok(maintain(n.Manager))

	// A pod that has opened the queue had it from no one.
	n.add(alice, 0)
	process, _ = n.open(alice, 0, ignored)
	n.add(bob, 0)
	process.close()
	process, _ = n.open(bob, 0, ignored)
	if l, _ := n.Lease(deviceID(0)); l.Predecessor != nil {
		t.Errorf("predecessor %v after it was opened", l.Predecessor)
	}
	process.close()
	n.del(bob)
	n.ok(maintain(n.Manager))
}

func TestHeldQueueOfANICThatIsDownAndGone(t *testing.T) {
	n := newNode(t)
	n.add(alice, 0)
	process, _ := n.open(alice, 0, ignored)
	n.del(alice)
	n.ok(testutil.SetDown(near))
	if pending, err := n.Maintain(); !pending || err != nil {
		t.Errorf("maintain while the NIC is down: pending %t, %v; the process is still there", pending, err)
	}
	n.ok(testutil.DelLink(near))
	if pending, err := n.Maintain(); pending || err != nil {
		t.Errorf("maintain without the NIC: pending %t, %v; a queue that is gone is held by no one", pending, err)
	}
	process.close()
}

// Field case 1: an agent's restart takes nothing from the pods.
func TestRestartKeepsTraffic(t *testing.T) {
	n := newNode(t)
	n.add(alice, 0)
	n.add(bob, 1)
	from := n.sender(0)
	process, g := n.open(alice, 0, ignored)
	process.wantPacket("opened:", from)
	during := n.now()

	n.ok(n.Close())
	process.wantPacket("without an agent:", from)
	n.start()
	n.wantState("after the restart", during)
	n.wantLeases("after the restart", leaseOf(0, alice), leaseOf(1, bob))
	process.wantPacket("after the restart:", from)
	if v := n.View(deviceID(0), alice.cookie); !v.Leased || v.Open || v.Epoch != g.Epoch {
		t.Errorf("the pod's view of it after the restart: %+v", v)
	}
	agents, err := process.socket.Dup()
	n.ok(err)
	if _, err = n.Resumed(deviceID(0), alice.cookie, agents, ignored); err != nil {
		t.Error(err)
	}
	process.wantPacket("resumed:", from)
	n.del(bob)
	process.wantPacket("after the other pod's DEL:", from)
	process.close()
	n.del(alice)
	n.ok(maintain(n.Manager))
}

// The pins can be lost while the agent is away: it makes them anew, and resuming puts the sockets back.
func TestLostPinsAreMadeAnew(t *testing.T) {
	n := newNode(t)
	n.setKnobs(1, 5000)
	before := n.now()
	n.add(alice, 0)
	from := n.sender(0)
	process, _ := n.open(alice, 0, ignored)
	n.ok(n.Close())
	n.throwOff()
	n.removePins()
	n.setKnobs(1, 5000)

	n.start()
	n.wantAttached("after the start")
	n.wantKnobs("after the start", "2", "200000")
	n.wantUnclaimed("after the start", 0, from)
	agents, err := process.socket.Dup()
	n.ok(err)
	_, err = n.Resumed(deviceID(0), alice.cookie, agents, ignored)
	n.ok(err)
	process.wantPacket("resumed:", from)
	process.close()
	n.del(alice)
	n.ok(maintain(n.Manager))
	n.wantState("at the end", before)
}

// A lease can end while its device is being opened: the opening fails, or is revoked.
func TestOpeningAndEndAtOnce(t *testing.T) {
	n := newNode(t)
	n.add(bob, 3)
	opened, refused := 0, 0
	for i := range 20 {
		n.add(alice, 0)
		g, err := n.Grant(deviceID(0), alice.cookie)
		n.ok(err)
		process := bind(t, g.Link.Index, 0)
		agents, err := process.socket.Dup()
		n.ok(err)
		revoked, ended := make(chan string, 1), make(chan error)
		go func() {
			n.inside()
			time.Sleep(time.Duration(i) * 20 * time.Microsecond)
			ended <- n.Detach(alice.attachment("eth0"))
		}()
		switch err := n.Opened(g, agents, process.record(), func(reason string) { revoked <- reason }); {
		case err == nil:
			opened++
			n.ok(<-ended)
			<-revoked
		case errors.Is(err, ErrNotLeased):
			refused++
			n.ok(<-ended)
			n.ok(agents.Close())
		default:
			t.Fatal(err)
		}
		if s := n.Statistics(); len(s) > 0 {
			t.Errorf("statistics of %v", s)
		}
		process.close()
		n.ok(n.Retune())
		n.ok(maintain(n.Manager))
	}
	t.Logf("%d were opened, %d refused", opened, refused)
	n.del(bob)
}
