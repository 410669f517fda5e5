package busypoll

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/pkg/xsk"
)

// Config shapes a Loop.
type Config struct {
	// Batch is how many descriptors are worked on at once, 32 or more. 0 means 64.
	Batch int
	// IdleRounds is how many rounds in a row find nothing to do before the loop sleeps, 0 means 1000 (tens of
	// microseconds). A loop with a socket that busy-polls never sleeps.
	IdleRounds int
	// MaxSleep bounds a sleep, and so how long Stop and the removal of a device may go unnoticed. 0 means 100 ms.
	MaxSleep time.Duration
}

const (
	// minBatch holds the largest packet, of 18 descriptors.
	minBatch = 32
	// publishRounds is after how many rounds the counters are shown.
	publishRounds = 32
	// completionSleep bounds a sleep while packets are being sent: their completion wakes nobody.
	completionSleep = 50 * time.Microsecond
)

// Loop receives, handles and sends on one or several queues from one thread. No packet is lost for want of room: no more
// is received than the tx ring could take.
//
// Its sockets must be bound with need-wakeup.
type Loop struct {
	queues  []*Queue
	config  Config
	descs   []xsk.Desc
	addrs   []uint64
	fds     []unix.PollFd
	timeout unix.Timespec
	idle    int           // rounds in a row in which nothing moved
	slept   time.Duration // in vain, since the devices were last seen to be there
	rounds  int
	stop    atomic.Bool
}

// NewLoop makes a loop over queues, each of which may be in one loop only.
func NewLoop(queues []*Queue, c Config) (*Loop, error) {
	if c.Batch == 0 {
		c.Batch = 64
	}
	if c.IdleRounds == 0 {
		c.IdleRounds = 1000
	}
	if c.MaxSleep == 0 {
		c.MaxSleep = 100 * time.Millisecond
	}
	if c.Batch < minBatch {
		return nil, fmt.Errorf("make loop: batch: %d is less than %d", c.Batch, minBatch)
	}
	if c.IdleRounds < 0 || c.MaxSleep < 0 {
		return nil, errors.New("make loop: idle rounds and maximal sleep must not be negative")
	}
	if len(queues) == 0 {
		return nil, errors.New("make loop: it has no queue")
	}
	l := &Loop{queues: queues, config: c, descs: make([]xsk.Desc, c.Batch), addrs: make([]uint64, c.Batch)}
	for i, q := range queues {
		if q.Name == "" {
			q.Name = fmt.Sprint(i)
		}
		if err := q.init(); err != nil {
			return nil, fmt.Errorf("make loop: queue %s: %w", q.Name, err)
		}
		l.fds = append(l.fds, unix.PollFd{Fd: int32(q.Socket.FD()), Events: unix.POLLIN})
	}
	return l, nil
}

// Run runs the loop, on a thread of its own, until ctx is done or Stop is called, and then returns nil; or until a
// queue fails, as when its device goes away. What was queued for transmission then may not have been sent; see
// [Loop.Drain].
func (l *Loop) Run(ctx context.Context) error {
	defer context.AfterFunc(ctx, l.Stop)()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer l.publish()
	for !l.stop.Load() {
		if _, err := l.Round(); err != nil {
			return err
		}
	}
	return nil
}

// Stop ends Run after the round or sleep that it is in. It may be called from any goroutine, also before Run.
func (l *Loop) Stop() { l.stop.Store(true) }

// Round works once on each queue, and returns how many descriptors moved. Where for Config.IdleRounds none did, it
// sleeps until a packet comes, for Config.MaxSleep at most. It is for those who need a loop of their own around it; Run
// is the usual one.
func (l *Loop) Round() (moved int, err error) {
	for _, q := range l.queues {
		n, err := l.work(q)
		if err != nil {
			return moved, err
		}
		moved += n
	}
	if l.rounds++; l.rounds%publishRounds == 0 {
		l.publish()
	}
	if moved > 0 {
		l.idle = 0
		return moved, nil
	}
	if l.idle++; l.idle < l.config.IdleRounds {
		return 0, nil
	}
	l.idle = 0
	return 0, l.wait()
}

// work moves completions and free frames, up to a batch of packets in and out on q, and makes one wakeup.
func (l *Loop) work(q *Queue) (moved int, err error) {
	moved += l.complete(q)
	received := 0
	if q.Handle != nil {
		moved += l.refill(q)
		received = l.receive(q)
		moved += received
	}
	if q.Generate != nil {
		moved += l.generate(q)
	}
	return moved, q.wake(received > 0)
}

func (l *Loop) complete(q *Queue) (moved int) {
	for q.inFlight > 0 {
		n := q.Rings.Completion.Complete(l.addrs)
		q.Frames.Put(l.addrs[:n])
		q.inFlight -= n
		moved += n
		if n < len(l.addrs) {
			break
		}
	}
	q.current.Completed += uint64(moved)
	return moved
}

// refill gives the kernel frames to receive into, as many as the fill ring takes: a NIC whose own ring has few frames
// drops what comes in a burst.
func (l *Loop) refill(q *Queue) (moved int) {
	for {
		n := min(len(l.addrs), q.Frames.Free(), q.maxFill-q.onFill)
		if n <= 0 {
			return moved
		}
		n = q.Frames.Get(l.addrs[:n])
		taken := q.Rings.Fill.Refill(l.addrs[:n])
		q.Frames.Put(l.addrs[taken:n])
		q.onFill += taken
		moved += taken
		if taken < n {
			return moved
		}
	}
}

func (l *Loop) receive(q *Queue) int {
	rx, tx := q.Rings.RX, q.Rings.TX
	room := len(l.descs)
	if tx != nil {
		room = tx.Reserve(room)
	}
	n := rx.Peek(room)
	for n > 0 && rx.At(n-1).Continued() {
		n-- // the packet's end is not here yet
	}
	if n == 0 {
		if tx != nil {
			tx.Cancel()
		}
		return 0
	}
	packets := l.descs[:n:n]
	rx.Receive(packets)
	q.onFill -= n
	q.current.RXDescs += uint64(n)
	for i := range packets {
		q.current.RXBytes += uint64(packets[i].Len)
		if !packets[i].Continued() {
			q.current.RXPackets++
		}
	}
	transmit := q.Handle(q, packets)
	if tx == nil {
		transmit = 0
	} else {
		q.transmit(packets[:transmit])
	}
	q.Frames.PutPackets(packets[transmit:])
	return n
}

func (l *Loop) generate(q *Queue) int {
	n := q.Rings.TX.Reserve(min(len(l.descs), q.Frames.Free()))
	if n == 0 {
		return 0
	}
	n = q.Frames.Get(l.addrs[:n])
	frames := l.descs[:n:n]
	for i, a := range l.addrs[:n] {
		frames[i] = xsk.Desc{Addr: a}
	}
	transmit := q.Generate(q, frames)
	q.transmit(frames[:transmit])
	q.Frames.PutPackets(frames[transmit:])
	return transmit
}

// transmit writes packets into what is reserved on the tx ring and gives up the rest.
func (q *Queue) transmit(packets []xsk.Desc) {
	tx := q.Rings.TX
	for i := range packets {
		tx.Set(i, packets[i])
		q.current.TXBytes += uint64(packets[i].Len)
		if !packets[i].Continued() {
			q.current.TXPackets++
		}
	}
	tx.Submit(len(packets))
	q.inFlight += len(packets)
}

func (l *Loop) publish() {
	for _, q := range l.queues {
		q.publish()
	}
}

// Drain sends what is still queued for transmission and takes its frames back, for as long as limit. It is to be called
// after Run, and returns how many descriptors have not come back.
func (l *Loop) Drain(limit time.Duration) (left int, err error) {
	defer l.publish()
	for deadline := time.Now().Add(limit); ; time.Sleep(completionSleep) {
		left = 0
		for _, q := range l.queues {
			l.complete(q)
			if err := q.wake(false); err != nil {
				return left, err
			}
			left += q.inFlight
		}
		if left == 0 || time.Now().After(deadline) {
			return left, nil
		}
	}
}
