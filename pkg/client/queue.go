package client

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/wire"
	"github.com/afxdp-project/afxdp/pkg/busypoll"
	"github.com/afxdp-project/afxdp/pkg/xsk"
)

// DefaultRingSize is used for rings whose size is 0, or the pool's limit if that is less. In entries.
const DefaultRingSize = 2048

// Queue is an open device: a bound AF_XDP socket with its rings mapped.
type Queue struct {
	Device Device
	Socket *xsk.Socket
	Rings  *xsk.Rings
	UMEM   *xsk.UMEM // shared by all queues that were opened on it; not closed with the queue
	Mode   Mode
	// Kick is the socket whose sendto has the driver send what is on the tx ring, where Socket's own cannot: see
	// busypoll.Queue.KickTX. nil: Socket's.
	Kick *xsk.Socket

	client *Client
	mu     sync.Mutex // against a resume while the queue is closed
	closed bool
	facts  busypoll.Facts // as the agent last said
}

// Mode is what was negotiated for a queue.
type Mode struct {
	ZeroCopy    bool
	NeedWakeup  bool
	MultiBuffer bool
	// BusyPoll reports that the kernel took the busy-poll options; whether polling works is another question: see
	// Obstacle.
	BusyPoll        bool
	BusyPollBudget  int
	BusyPollTimeout time.Duration
	// Deferral reports that the queue's interrupt deferral was read back as the pool wants it.
	Deferral        bool
	DeferHardIRQs   int
	GROFlushTimeout time.Duration
	NAPI            uint32 // right after the bind; 0: none seen. Queue.BusyPolling tells how things stand now
	// QueueNAPI is the NAPI that the kernel linked the rx queue to, 0 for none; nil where the kernel cannot tell.
	QueueNAPI    *uint32
	SeparateNAPI bool // rx and tx of the queue have NAPIs of their own
	// Obstacle says why busy polling cannot work; empty where it can.
	Obstacle string
}

// OpenConfig says how a device is opened.
type OpenConfig struct {
	Rings      xsk.RingSizes // 0: DefaultRingSize
	NoBusyPoll bool          // leave busy polling off although the pool has it
}

var errClosed = errors.New("the queue is closed")

// Open opens a device on a UMEM that Register made, or that Join joined. The caller closes the Queue.
func (c *Client) Open(device int, umem *xsk.UMEM, config OpenConfig) (*Queue, error) {
	if device < 0 || device >= len(c.devices) {
		return nil, fmt.Errorf("open device %d: the allocation has %d", device, len(c.devices))
	}
	d := c.devices[device]
	fail := func(err error) (*Queue, error) {
		return nil, fmt.Errorf("open %s queue %d: %w", d.Netdev, d.Queue, err)
	}
	sizes := config.Rings
	for _, size := range []*uint32{&sizes.Fill, &sizes.Completion, &sizes.RX, &sizes.TX} {
		if *size == 0 {
			*size = min(DefaultRingSize, c.maxRing)
		}
	}
	if err := sizes.Validate(); err != nil {
		return fail(err)
	}
	m := &wire.Open{Device: uint32(device), Fill: sizes.Fill, Completion: sizes.Completion, RX: sizes.RX, TX: sizes.TX}
	if config.NoBusyPoll {
		m.Flags |= wire.OpenNoBusyPoll
	}
	var q *Queue
	ask := query{message: m, want: wire.TypeOpened, take: func(r wire.Received) (err error) {
		q, err = c.take(d, umem, r)
		return err
	}}
	err := c.request(ask)
	if hasCode(err, wire.CodeNoUMEM) {
		// A lost connection, an earlier attempt to open, or the end of the last queue on it has taken the UMEM along. When
		// the agent has one all the same, another goroutine was here.
		c.mu.Lock()
		source := c.source
		c.mu.Unlock()
		if source == nil {
			return fail(fmt.Errorf("neither Register nor Join was called: %w", err))
		}
		err = c.request(*source, ask)
	}
	if errors.Is(err, errNotTaken) {
		_ = c.request(query{message: &wire.Close{Device: m.Device}, want: wire.TypeClosed, hurry: true})
	}
	if err != nil {
		return fail(err)
	}
	if q.Mode.ZeroCopy && q.Mode.BusyPoll && q.Mode.SeparateNAPI {
		if err := c.takeKick(q); err != nil {
			return fail(errors.Join(err, q.Close()))
		}
	}
	return q, nil
}

// takeKick asks for the socket that starts transmission on a queue whose own would only poll.
func (c *Client) takeKick(q *Queue) error {
	kick := &wire.Kick{Device: uint32(q.Device.Index)}
	err := c.request(query{message: kick, want: wire.TypeKicked, take: func(r wire.Received) (err error) {
		if q.Kick, err = xsk.SocketFromFD(r.FD); err != nil {
			return errors.Join(err, unix.Close(r.FD))
		}
		return nil
	}})
	if err != nil {
		return fmt.Errorf("get the socket that starts transmission: %w", err)
	}
	return nil
}

// errNotTaken is what errors.Is finds when the agent has opened a device but the client cannot take it.
var errNotTaken = errors.New("take the socket")

// take makes a Queue of an answer to OPEN.
func (c *Client) take(d Device, umem *xsk.UMEM, r wire.Received) (*Queue, error) {
	opened := r.Message.(*wire.Opened)
	socket, err := xsk.SocketFromFD(r.FD)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w", errNotTaken, err), unix.Close(r.FD))
	}
	rings, err := socket.Map(xsk.RingSizes{Fill: opened.Fill, Completion: opened.Completion, RX: opened.RX, TX: opened.TX})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w", errNotTaken, err), socket.Close())
	}
	q := &Queue{Device: d, Socket: socket, Rings: rings, UMEM: umem, Mode: mode(opened), client: c}
	q.facts = facts(q.Mode.ZeroCopy, opened.Flags, opened.QueueNAPI, opened.DeferHardIRQs, opened.GROFlushTimeout)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queues[d.Index] = q
	return q, nil
}

func mode(o *wire.Opened) Mode {
	has := func(f wire.SocketFlags) bool { return o.Flags&f != 0 }
	m := Mode{
		ZeroCopy: has(wire.SocketZeroCopy), NeedWakeup: has(wire.SocketNeedWakeup), MultiBuffer: has(wire.SocketMultiBuffer),
		BusyPoll: has(wire.SocketBusyPoll), BusyPollBudget: int(o.BusyPollBudget),
		BusyPollTimeout: time.Duration(o.BusyPollTimeout) * time.Microsecond,
		Deferral:        has(wire.SocketDeferral), DeferHardIRQs: int(o.DeferHardIRQs),
		GROFlushTimeout: time.Duration(o.GROFlushTimeout),
		NAPI:            o.NAPI, SeparateNAPI: has(wire.SocketSeparateNAPI), Obstacle: o.Text,
	}
	if has(wire.SocketNAPIKnown) {
		m.QueueNAPI = &o.QueueNAPI
	}
	return m
}

// BusyPolling reads whether the queue busy-polls at this moment: the socket's options, which the pod may have changed, the
// NAPI that it knows, and by the agent the NAPI that the queue has, with its settings; they change when the link goes down
// and up or the driver resets.
//
// The error says that the agent could not be asked, as while it is restarted: the status is then that of the socket as it
// is and of the queue as it was last read.
func (q *Queue) BusyPolling() (busypoll.Status, error) {
	askErr := q.readTuning()
	state, err := busypoll.Read(q.Socket.FD())
	if err != nil {
		return busypoll.Status{Reason: err.Error()}, askErr
	}
	q.mu.Lock()
	facts := q.facts
	q.mu.Unlock()
	status := busypoll.Assess(state, facts)
	if !q.Mode.BusyPoll && !status.Active && q.Mode.Obstacle != "" {
		status.Reason = q.Mode.Obstacle // why its options are off
	}
	return status, askErr
}

// readTuning has the agent read how the queue stands.
func (q *Queue) readTuning() error {
	m := &wire.Tuning{Device: uint32(q.Device.Index)}
	err := q.client.request(query{message: m, want: wire.TypeTuned, hurry: true, take: func(r wire.Received) error {
		t := r.Message.(*wire.Tuned)
		q.mu.Lock()
		defer q.mu.Unlock()
		q.facts = facts(q.Mode.ZeroCopy, t.Flags, t.QueueNAPI, t.DeferHardIRQs, t.GROFlushTimeout)
		return nil
	}})
	if err != nil {
		return fmt.Errorf("read how %s queue %d stands: %w", q.Device.Netdev, q.Device.Queue, err)
	}
	return nil
}

// facts makes what Assess needs of what the agent says of a queue.
func facts(zeroCopy bool, flags wire.SocketFlags, napi, deferHardIRQs uint32, flush uint64) busypoll.Facts {
	f := busypoll.Facts{ZeroCopy: zeroCopy}
	if flags&wire.SocketNAPIKnown != 0 {
		f.QueueNAPI = &napi
	}
	if flags&wire.SocketDeferral != 0 {
		f.Deferral = &busypoll.Deferral{HardIRQs: int(deferHardIRQs), GROFlushTimeout: time.Duration(flush)}
	}
	return f
}

// dup returns a descriptor of the socket for the caller to close.
func (q *Queue) dup() (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return -1, errClosed
	}
	s, err := q.Socket.Dup()
	if err != nil {
		return -1, err
	}
	return s.FD(), nil
}

// Close gives the device up: the agent sends its packets to the stack again, and the kernel releases the queue within
// 100 ms. The rings must not be used any more.
func (q *Queue) Close() error {
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return nil
	}
	q.closed = true
	err := errors.Join(q.Rings.Close(), q.Socket.Close())
	if q.Kick != nil {
		err = errors.Join(err, q.Kick.Close())
	}
	q.mu.Unlock()
	c := q.client
	c.mu.Lock()
	delete(c.queues, q.Device.Index)
	c.mu.Unlock()
	// Without a connection the agent holds nothing of the queue that it would have to be told to drop.
	_ = c.request(query{message: &wire.Close{Device: uint32(q.Device.Index)}, want: wire.TypeClosed, hurry: true})
	return err
}
