package busypoll

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// State is what the kernel shows of a socket now.
type State struct {
	Preferred bool          // SO_PREFER_BUSY_POLL
	Timeout   time.Duration // SO_BUSY_POLL
	NAPI      uint32        // id of the NAPI that the socket polls, 0 for none (SO_INCOMING_NAPI_ID)
	// Budget is SO_BUSY_POLL_BUDGET in packets, where 0 is the kernel's default; -1 where it cannot be read, as up to
	// Linux 6.18.
	Budget int
}

// Read reads the state of the socket fd. Whoever holds a descriptor of the socket can have changed it since.
func Read(fd int) (State, error) { return read(socket(fd)) }

var incomingNAPI = option{unix.SO_INCOMING_NAPI_ID, "SO_INCOMING_NAPI_ID"}

func read(s sockopts) (State, error) {
	var values [3]int
	for i, o := range []option{preferBusyPoll, busyPoll, incomingNAPI} {
		v, err := s.get(o)
		if errors.Is(err, unix.ENOPROTOOPT) {
			err = errors.Join(err, ErrUnsupported)
		}
		if err != nil {
			return State{}, fmt.Errorf("read %s: %w", o.name, err)
		}
		values[i] = v
	}
	st := State{
		Preferred: values[0] != 0, Timeout: time.Duration(values[1]) * time.Microsecond, NAPI: uint32(values[2]),
		Budget: -1,
	}
	if v, err := s.get(busyPollBudget); err == nil {
		st.Budget = v
	}
	return st, nil
}

// Deferral is how a queue's interrupts are put off.
type Deferral struct {
	HardIRQs        int           // napi_defer_hard_irqs: how many polls that find nothing before they come back
	GROFlushTimeout time.Duration // gro_flush_timeout: how long the timer waits that polls instead of them
}

// Facts are what must be known beside the socket's State to tell whether busy polling is real.
type Facts struct {
	// Deferral is what the kernel shows of the queue's NAPI, or of the whole device; nil when it could not be read.
	Deferral *Deferral
	// QueueNAPI is the NAPI that the kernel links the rx queue to (netdev netlink queue-get), 0 for none; nil when the
	// kernel cannot tell. Where it is 0 the socket's word counts: up to Linux 6.12 drivers tell sockets which NAPI they
	// have, and queue-get not.
	QueueNAPI *uint32
	// ZeroCopy is the socket's mode.
	ZeroCopy bool
}

// Status says whether a socket busy-polls.
type Status struct {
	Active bool
	Reason string // in words: what is polled, or why nothing is and what can be done
}

// Assess tells from what the kernel shows whether the socket really busy-polls: its options are on, it knows its NAPI
// and the interrupts of that are deferred.
func Assess(s State, f Facts) Status {
	inactive := func(format string, args ...any) Status { return Status{Reason: fmt.Sprintf(format, args...)} }
	switch {
	case s.Timeout == 0 && !s.Preferred:
		return inactive("busy polling is off on the socket")
	case s.Timeout == 0:
		return inactive("busy polling is off on the socket: SO_BUSY_POLL is 0")
	case !s.Preferred:
		return inactive("SO_PREFER_BUSY_POLL is off on the socket, so interrupts go on beside its polls")
	case s.NAPI == 0 && f.QueueNAPI != nil && *f.QueueNAPI == 0:
		return inactive("the driver links this queue to no NAPI on this kernel (of veth, recent kernels link none); using wakeups")
	case s.NAPI == 0 && f.QueueNAPI != nil && !f.ZeroCopy:
		return inactive("the queue has NAPI %d but the socket does not know it: in copy mode it learns it from its first packet, "+
			"on some kernels after 6.12 never; using wakeups", *f.QueueNAPI)
	case s.NAPI == 0:
		return inactive("the socket knows no NAPI: no packet has come yet, or the driver links the queue to none; using wakeups")
	case f.QueueNAPI != nil && *f.QueueNAPI != 0 && *f.QueueNAPI != s.NAPI:
		return inactive("the socket polls NAPI %d, which is gone: the queue has NAPI %d now (the link was down, or the queue was "+
			"made anew); the socket learns it from the next packet or when it is bound again", s.NAPI, *f.QueueNAPI)
	case f.Deferral == nil:
		return inactive("whether the queue's interrupts are deferred could not be read")
	case f.Deferral.HardIRQs <= 0 || f.Deferral.GROFlushTimeout <= 0:
		return inactive("the queue's interrupts are not deferred (napi_defer_hard_irqs %d, gro_flush_timeout %v; both must be above 0), "+
			"so they do the work before a poll can", f.Deferral.HardIRQs, f.Deferral.GROFlushTimeout)
	}
	return Status{Active: true, Reason: fmt.Sprintf("polling NAPI %d; interrupts deferred %d times, then every %v",
		s.NAPI, f.Deferral.HardIRQs, f.Deferral.GROFlushTimeout)}
}
