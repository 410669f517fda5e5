package busypoll

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/pkg/xsk"
)

// wake makes the system calls that are due: those that the kernel asks for by the rings' need-wakeup flags, and on a
// socket that really busy-polls one that polls. A sendto polls as well as a recvfrom, so one is enough.
//
// While packets come off the rx ring, received, there may be more in it, and a poll, which brings up to a budget of
// packets, might find no room for them. So it polls when the ring has been emptied.
func (q *Queue) wake(received bool) error {
	busy := q.busy.Load()
	polled := false
	if q.inFlight > 0 && (busy || q.Rings.TX.Pending() > 0 && q.Rings.TX.NeedsWakeup()) {
		kick := q.Socket
		if q.KickTX != nil {
			kick = q.KickTX
		}
		polled = kick == q.Socket
		waiting := q.waiting()
		q.current.TXCalls++
		err := kick.WakeTX()
		if busy && polled {
			q.current.RXPolled += uint64(q.waiting() - waiting)
		}
		if errors.Is(err, xsk.ErrAgain) {
			q.current.TXAgain++ // the next round drains the completion ring and kicks again
		} else if err != nil {
			return q.failed("send", err)
		}
	}
	if q.Handle != nil && (busy && !polled && !received || q.Rings.Fill.NeedsWakeup()) {
		return q.wakeRX()
	}
	return nil
}

// waiting returns how many descriptors wait on the rx ring. What it grows by during a call that polls came by that poll.
func (q *Queue) waiting() int {
	if q.Handle == nil {
		return 0
	}
	return q.Rings.RX.Pending()
}

func (q *Queue) wakeRX() error {
	waiting := q.waiting()
	q.current.RXCalls++
	err := q.Socket.WakeRX()
	if q.busy.Load() {
		q.current.RXPolled += uint64(q.waiting() - waiting)
	}
	if err != nil && !errors.Is(err, xsk.ErrAgain) {
		return q.failed("receive", err)
	}
	return nil
}

func (q *Queue) failed(what string, err error) error {
	why := ""
	switch {
	case errors.Is(err, unix.ENXIO), errors.Is(err, unix.ENODEV):
		why = " (its device is gone, or has taken the queue away)"
	case errors.Is(err, unix.ENETDOWN):
		why = " (its device is down)"
	}
	return fmt.Errorf("%s on queue %s: %w%s", what, q.Name, err, why)
}

// wait sleeps until a packet comes. It does not while a socket busy-polls: polling is then what brings packets.
func (l *Loop) wait() error {
	limit := l.config.MaxSleep
	for i, q := range l.queues {
		if q.busy.Load() {
			return l.probe()
		}
		if q.inFlight > 0 {
			limit = min(limit, completionSleep)
		}
		l.fds[i].Revents = 0
		q.current.Sleeps++
	}
	l.publish()
	l.timeout = unix.NsecToTimespec(int64(limit))
	n, err := unix.Ppoll(l.fds, &l.timeout, nil)
	if err != nil && err != unix.EINTR {
		return fmt.Errorf("wait for packets: %w", err)
	}
	if n > 0 && !l.trouble() {
		return nil
	}
	if l.slept += limit; l.slept < l.config.MaxSleep && n <= 0 {
		return nil
	}
	l.slept = 0
	return l.probe()
}

// probe finds out whether a device is gone: its socket is then no longer woken, and only a system call tells.
func (l *Loop) probe() error {
	for _, q := range l.queues {
		if err := q.wakeRX(); err != nil {
			return err
		}
	}
	return nil
}

// trouble reports whether poll showed anything but packets.
func (l *Loop) trouble() bool {
	for i := range l.fds {
		if l.fds[i].Revents&^unix.POLLIN != 0 {
			return true
		}
	}
	return false
}
