package handoff_test

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/handoff/handofftest"
	"github.com/afxdp-project/afxdp/internal/wire"
	"github.com/afxdp-project/afxdp/pkg/xsk"
)

const notLeased = "no device of this allocation is leased to the network namespace"

// Field case 5: what identifies a pod is its network namespace, whatever it may call itself.
func TestOnlyThePodWithTheLeaseIsServed(t *testing.T) {
	n := handofftest.New(t)
	p, other := n.NewPod("a"), n.NewPod("b")
	path := n.Serve("x", 0, 1)
	hello := &wire.Hello{MinVersion: 1, MaxVersion: 1}
	turnedAway := func(c *conn) {
		t.Helper()
		c.refused(hello, -1, wire.CodeNotLeased, notLeased)
		c.ends()
	}
	turnedAway(dial(t, p, path)) // before ADD

	p.Add(handofftest.DefaultSettings, 0)
	turnedAway(dial(t, other, path))
	other.Add(handofftest.DefaultSettings, 2)
	turnedAway(dial(t, other, path)) // with a lease, but of none of these devices

	c := dial(t, p, path)
	w := c.hello()
	if w.Pool != "fast" || w.MaxUMEM != handofftest.DefaultSettings.MaxUMEM || w.MaxRingSize != handofftest.DefaultSettings.MaxRingSize || len(w.Devices) != 2 {
		t.Errorf("WELCOME: %+v", w)
	}
	d := w.Devices[0]
	if d.Netdev.String() != handofftest.NIC || d.Queue != 0 || d.MTU != 1500 || d.Flags != wire.DeviceLeased || d.Epoch == 0 {
		t.Errorf("the leased device: %+v", d)
	}
	if w.Devices[1] != (wire.Device{NUMA: -1}) {
		t.Errorf("of a device without a lease is told: %+v", w.Devices[1])
	}
	c.umem()
	c.refused(goodOpen(1), -1, wire.CodeNotLeased, "not leased to the pod of this network namespace")

	p.Del()
	turnedAway(dial(t, p, path))
	c.refused(goodOpen(0), -1, wire.CodeNotLeased, "not leased")
}

func TestRequestsOutOfPlaceAreRefused(t *testing.T) {
	n := handofftest.New(t)
	p := n.NewPod("a")
	p.Add(handofftest.DefaultSettings, 0)
	path := n.Serve("x", 0)
	c := connect(t, p, path)
	c.refused(goodOpen(0), -1, wire.CodeNoUMEM, "OPEN before UMEM")
	c.refused(goodOpen(7), -1, wire.CodeNoDevice, "device 7: the allocation has 1")
	c.refused(goodOpen(1<<32-1), -1, wire.CodeNoDevice, "device 4294967295")
	c.refused(&wire.Close{Device: 9}, -1, wire.CodeNoDevice, "device 9")
	c.umem()
	c.refused(&goodUMEM, memfd(t, umemSize, umemSize, goodSeals), wire.CodeState, "has a UMEM already")
	s, err := xsk.NewSocket()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	c.refused(&wire.Join{}, s.FD(), wire.CodeState, "has a UMEM already")
	c.refused(&wire.Resume{}, s.FD(), wire.CodeState, "RESUME comes before UMEM")
	if m, _ := c.ask(&wire.Close{Device: 0}, -1); m.Type() != wire.TypeClosed {
		t.Errorf("CLOSE of a device that is not open: %+v", m)
	}
	c.open(0)
	c.refused(goodOpen(0), -1, wire.CodeBusy, "this connection has it open")
	c.refused(&goodUMEM, memfd(t, umemSize, umemSize, goodSeals), wire.CodeState, "has a UMEM already")
}

// Field case 15: ring sizes are checked before the kernel sees them, with the rule in the message.
func TestBadRingSizesAreRefusedWithTheRule(t *testing.T) {
	n := handofftest.New(t)
	p := n.NewPod("a")
	p.Add(handofftest.DefaultSettings, 0)
	c := connect(t, p, n.Serve("x", 0))
	c.umem()
	for _, test := range []struct {
		m     wire.Open
		code  wire.Code
		words string
	}{
		{wire.Open{Fill: 65, Completion: 64, RX: 64, TX: 64}, wire.CodeInvalid, "fill ring size: 65 is no power of two"},
		{wire.Open{Fill: 64, Completion: 64, RX: 64, TX: 63}, wire.CodeInvalid, "tx ring size: 63 is no power of two"},
		{wire.Open{RX: 64, TX: 64}, wire.CodeInvalid, "fill and completion ring size: 0"},
		{wire.Open{Fill: 64, RX: 64, TX: 64}, wire.CodeInvalid, "one is 0"},
		{wire.Open{Fill: 64, Completion: 64}, wire.CodeInvalid, "both 0; a socket needs one"},
		{wire.Open{Fill: 64, Completion: 64, RX: 2048}, wire.CodeLimit, "2048 entries is larger than the pool's limit of 1024"},
		{wire.Open{Fill: 1 << 31, Completion: 64, RX: 64}, wire.CodeLimit, "2147483648 entries"},
		{wire.Open{Fill: 64, Completion: 1<<32 - 1, RX: 64}, wire.CodeLimit, "4294967295 entries"},
	} {
		c.refused(&test.m, -1, test.code, test.words)
	}
	// None of it has cost the UMEM.
	if m, _ := c.ask(&wire.Open{Fill: 64, Completion: 128, RX: 1024}, -1); m.Type() != wire.TypeOpened {
		t.Errorf("good sizes: %+v", m)
	}
}

// What breaks the protocol is answered with the reason, then the connection ends; the next one is served.
func TestBrokenProtocolEndsTheConnection(t *testing.T) {
	n := handofftest.New(t)
	p := n.NewPod("a")
	p.Add(handofftest.DefaultSettings, 0)
	path := n.Serve("x", 0)
	encode := func(m wire.Message) []byte {
		b, err := wire.Encode(77, m)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	fds := make([]int, 253)
	for i := range fds {
		fds[i] = memfd(t, 4096, 0, 0)
	}
	one, all := unix.UnixRights(fds[0]), unix.UnixRights(fds...)
	hello := encode(&wire.Hello{MinVersion: 1, MaxVersion: 1})
	umem, open := encode(&goodUMEM), encode(goodOpen(0))
	for title, test := range map[string]struct {
		first     bool // instead of HELLO
		data, oob []byte
		code      wire.Code
		words     string
	}{
		"garbage first":           {true, []byte("hello?"), nil, wire.CodeMalformed, "shorter than the header"},
		"OPEN first":              {true, open, nil, wire.CodeMalformed, "OPEN came before HELLO"},
		"UMEM first":              {true, umem, one, wire.CodeMalformed, "UMEM came before HELLO"},
		"HELLO with an fd":        {true, hello, one, wire.CodeMalformed, "HELLO came with a descriptor"},
		"HELLO with 253 fds":      {true, hello, all, wire.CodeMalformed, "more than one descriptor"},
		"HELLO of later versions": {true, encode(&wire.Hello{MinVersion: 2, MaxVersion: 9}), nil, wire.CodeVersion, "the agent speaks version 1, the client versions 2 to 9"},
		"HELLO of version 0":      {true, encode(&wire.Hello{}), nil, wire.CodeVersion, "versions 0 to 0"},
		"HELLO twice":             {false, hello, nil, wire.CodeMalformed, "HELLO is no request, or came twice"},
		"an answer":               {false, encode(&wire.Closed{}), nil, wire.CodeMalformed, "CLOSED is no request"},
		"an answer with an fd":    {false, encode(&wire.Opened{}), one, wire.CodeMalformed, "OPENED is no request"},
		"an error": {false, encode(wire.Errorf(wire.CodeEnded,
			"over")), nil, wire.CodeMalformed, "ERROR is no request"},
		"garbage":                          {false, []byte(strings.Repeat("x", 99)), nil, wire.CodeMalformed, "does not begin with"},
		"half a message":                   {false, open[:30], nil, wire.CodeMalformed, "says that it has 40 bytes, 30 came"},
		"a message too long":               {false, append(open[:40:40], make([]byte, wire.MaxMessage)...), nil, wire.CodeMalformed, "longer than"},
		"unknown flags":                    {false, encode(&wire.Open{Flags: 1 << 31}), nil, wire.CodeMalformed, "unknown flags"},
		"UMEM without fd":                  {false, umem, nil, wire.CodeMalformed, "without its descriptor"},
		"UMEM with 2 fds":                  {false, umem, unix.UnixRights(fds[:2]...), wire.CodeMalformed, "more than one descriptor"},
		"UMEM with 253 fds":                {false, umem, all, wire.CodeMalformed, "more than one descriptor"},
		"OPEN with 253 fds":                {false, open, all, wire.CodeMalformed, "more than one descriptor"},
		"an fd in an empty packet":         {false, nil, one, wire.CodeMalformed, "empty message"},
		"unknown type":                     {false, []byte("AFXD\x01\x00\x63\x00\x10\x00\x00\x00\x4d\x00\x00\x00"), nil, wire.CodeMalformed, "unknown message type 99"},
		"other version after the HELLO":    {false, []byte("AFXD\x02\x00\x05\x00\x10\x00\x00\x00\x4d\x00\x00\x00"), nil, wire.CodeMalformed, "protocol version 2, agreed is 1"},
		"RESUME with a reserved field set": {false, encode(&wire.Resume{Reserved: 1}), one, wire.CodeMalformed, "reserved is 0x1"},
	} {
		t.Run(title, func(t *testing.T) {
			c := dial(t, p, path)
			c.tb = t
			if !test.first {
				c.hello()
			}
			if err := sendmsg(c.Conn, test.data, test.oob); err != nil {
				t.Fatal(err)
			}
			c.isError(c.hear().Message, test.code, test.words)
			c.ends()
		})
	}
	// Field case 44: and the agent has closed all that came, which the node checks at the end.
	c := connect(t, p, path)
	c.umem()
	c.open(0)
}

// Field case 1: a client that says nothing is not waited for, one that has said HELLO may be silent as long as it
// likes.
func TestSilenceBeforeHelloEndsTheConnection(t *testing.T) {
	n := handofftest.New(t)
	p := n.NewPod("a")
	p.Add(handofftest.DefaultSettings, 0)
	n.Server.SetDeadlines(50*time.Millisecond, patience)
	path := n.Serve("x", 0)
	c := dial(t, p, path)
	c.isError(c.hear().Message, wire.CodeMalformed, "no HELLO came within 50ms")
	c.ends()

	n.Stop()
	n.Start()
	n.Server.SetDeadlines(200*time.Millisecond, patience)
	c = connect(t, p, n.Serve("x", 0))
	time.Sleep(600 * time.Millisecond)
	c.umem()
}

func TestClientThatNeverReadsIsDropped(t *testing.T) {
	n := handofftest.New(t)
	p := n.NewPod("a")
	p.Add(handofftest.DefaultSettings, 0)
	n.Server.SetDeadlines(patience, 50*time.Millisecond)
	path := n.Serve("x", 0)
	c := connect(t, p, path)
	c.umem()
	c.open(0)
	for {
		c.id++
		if err := c.Send(c.id, goodOpen(9), -1, patience); err != nil {
			if wire.IsTimeout(err) {
				t.Error("the connection goes on although its client reads nothing")
			}
			break
		}
	}
	within(t, "the agent to give the device up", func() bool { return !n.IsOpen(handofftest.Device(0)) })
	connect(t, p, path)
}
