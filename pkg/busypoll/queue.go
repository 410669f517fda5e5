package busypoll

import (
	"errors"
	"sync/atomic"

	"github.com/afxdp-project/afxdp/pkg/xsk"
)

// Handler works on packets of q, which are in q.UMEM, in place and in order. It returns how many of the descriptors,
// from the first on, are to be sent on; the frames of the rest are freed. To send some and drop others it swaps the
// descriptors. A packet of several descriptors comes whole, and must stay so. The slice is the loop's.
//
// As a generator it is given descriptors of free frames instead, writes packets into the first few, sets their Len and
// returns how many.
type Handler func(q *Queue, packets []xsk.Desc) (transmit int)

// Queue is one socket's part of a Loop. Its exported fields must not be changed once the loop runs.
type Queue struct {
	Name   string // for errors, such as ens1-q0
	Socket *xsk.Socket
	Rings  *xsk.Rings
	UMEM   *xsk.UMEM
	// Frames are the frames of this queue that are in no ring. The loop is their owner while it runs.
	Frames *xsk.Frames

	// Handle is given what is received; without it nothing is.
	Handle Handler
	// Generate is given free frames to send, when the tx ring has room. With Handle beside it, half of the frames at
	// most are used for reception.
	Generate Handler

	// KickTX, if set, is the socket whose sendto starts transmission, instead of Socket. In zero-copy mode a busy-polling
	// socket's sendto only polls the NAPI of its rx queue. Where the tx queue has another one (virtio-net; igb with
	// separate vectors) transmission would stall; a second socket without the busy-poll options, on the same queue and
	// UMEM, starts it. In copy mode a socket sends only what is on its own ring, so KickTX must be nil.
	KickTX *xsk.Socket

	busy     atomic.Bool
	current  Counters // the loop's own
	shown    [counters]atomic.Uint64
	inFlight int // descriptors submitted and not completed
	onFill   int // frames with the kernel for reception
	maxFill  int
}

// SetBusyPolling tells whether the socket really busy-polls, as Status.Active does. Only then the loop makes system
// calls to poll, and does not sleep. It may be called while the loop runs, from any goroutine.
func (q *Queue) SetBusyPolling(on bool) { q.busy.Store(on) }

// InFlight returns how many descriptors have been queued for transmission and not come back. It is the loop's to ask.
func (q *Queue) InFlight() int { return q.inFlight }

func (q *Queue) init() error {
	switch {
	case q.Socket == nil || q.Rings == nil || q.UMEM == nil || q.Frames == nil:
		return errors.New("socket, rings, UMEM and frames must be set")
	case q.Handle == nil && q.Generate == nil:
		return errors.New("neither Handle nor Generate is set")
	case q.Handle != nil && (q.Rings.RX == nil || q.Rings.Fill == nil):
		return errors.New("to receive, it needs an rx and a fill ring")
	case q.Generate != nil && q.Rings.TX == nil:
		return errors.New("to send, it needs a tx ring")
	case q.Rings.TX != nil && q.Rings.Completion == nil:
		return errors.New("its tx ring needs a completion ring")
	}
	q.maxFill = q.Frames.Free()
	if q.Generate != nil {
		q.maxFill /= 2
	}
	return nil
}

// Counters count what a queue's loop did.
type Counters struct {
	RXPackets, RXBytes uint64
	// RXPolled are the descriptors that came onto the rx ring while one of the loop's own polls ran, a system call on a
	// socket that busy-polls. What came between them was brought by interrupts, by the timer that stands in for them, or by
	// a NAPI's thread.
	RXPolled           uint64
	RXDescs            uint64 // all descriptors of RXPackets: as many, unless packets span frames
	TXPackets, TXBytes uint64 // queued for transmission
	Completed          uint64 // descriptors that came back after transmission
	RXCalls, TXCalls   uint64 // wakeups by recvfrom and by sendto
	TXAgain            uint64 // those of TXCalls that could not do all: drained, and called again
	Sleeps             uint64 // waits for a packet, of the whole loop
}

const counters = 11

func (c *Counters) list() [counters]*uint64 {
	return [counters]*uint64{
		&c.RXPackets, &c.RXBytes, &c.RXPolled, &c.RXDescs, &c.TXPackets, &c.TXBytes, &c.Completed, &c.RXCalls, &c.TXCalls, &c.TXAgain, &c.Sleeps,
	}
}

// Counters returns the counters as of a moment ago; once the loop has ended they are exact. It may be called from any
// goroutine.
func (q *Queue) Counters() (c Counters) {
	for i, v := range c.list() {
		*v = q.shown[i].Load()
	}
	return c
}

func (q *Queue) publish() {
	for i, v := range q.current.list() {
		q.shown[i].Store(*v)
	}
}
