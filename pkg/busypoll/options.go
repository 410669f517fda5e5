package busypoll

import (
	"errors"
	"fmt"
	"math"
	"time"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/pkg/xsk"
)

const (
	// DefaultBudget is how many packets one poll processes.
	DefaultBudget = 64
	// DefaultTimeout is the busy-poll time.
	DefaultTimeout = 20 * time.Microsecond
	// MaxBudget is the largest budget that the kernel takes.
	MaxBudget = math.MaxUint16
)

// Options turn busy polling on for a socket.
type Options struct {
	// Budget is how many packets one poll processes at most, 0 to MaxBudget (SO_BUSY_POLL_BUDGET). 0, the zero value,
	// turns busy polling off; the kernel would take it for its own default of 8.
	Budget int
	// Timeout is the busy-poll time, in whole microseconds from 1 on (SO_BUSY_POLL). An AF_XDP socket polls once a
	// system call whatever it is. It is not looked at when Budget is 0.
	Timeout time.Duration
}

// Validate checks o against the kernel's rules.
func (o Options) Validate() error {
	if o.Budget < 0 || o.Budget > MaxBudget {
		return fmt.Errorf("busy-poll budget: %d is out of range: 0 to %d; 0 turns busy polling off", o.Budget, MaxBudget)
	}
	if o.Budget == 0 {
		return nil
	}
	if o.Timeout < time.Microsecond || o.Timeout%time.Microsecond != 0 || o.Timeout/time.Microsecond > math.MaxInt32 {
		return fmt.Errorf("busy-poll time: %v is no whole number of microseconds from 1 to %d; a budget of 0 turns busy polling off",
			o.Timeout, math.MaxInt32)
	}
	return nil
}

// ErrUnsupported is what errors.Is finds when the kernel has no busy polling of this kind. It is that of package xsk.
var ErrUnsupported = xsk.ErrUnsupported

// Error is a refused socket option. errors.Is sees the errno in it, and ErrUnsupported where that is what it means.
type Error struct {
	Option      string // such as SO_BUSY_POLL
	Value       int
	Err         error // the kernel's answer
	NotRestored error // options set before it that could not be put back; nil when all were
}

func (e *Error) Error() string {
	s := fmt.Sprintf("set %s to %d: %v", e.Option, e.Value, e.Err)
	switch {
	case errors.Is(e.Err, unix.EPERM):
		s += " (turning busy polling on needs CAP_NET_ADMIN in the socket's network namespace)"
	case e.unsupported():
		s += " (the kernel is older than 5.11, or CONFIG_NET_RX_BUSY_POLL is off)"
	}
	if e.NotRestored != nil {
		s += fmt.Sprintf("; options set before it could not be put back: %v", e.NotRestored)
	}
	return s
}

// Unwrap returns the kernel's answer, ErrUnsupported where that is what it means, and what could not be put back.
func (e *Error) Unwrap() []error {
	errs := []error{e.Err}
	if e.unsupported() {
		errs = append(errs, ErrUnsupported)
	}
	if e.NotRestored != nil {
		errs = append(errs, e.NotRestored)
	}
	return errs
}

func (e *Error) unsupported() bool {
	return errors.Is(e.Err, unix.ENOPROTOOPT) || errors.Is(e.Err, unix.EOPNOTSUPP)
}

type option struct {
	number int
	name   string
}

// In the order in which they are set.
var (
	preferBusyPoll = option{unix.SO_PREFER_BUSY_POLL, "SO_PREFER_BUSY_POLL"}
	busyPoll       = option{unix.SO_BUSY_POLL, "SO_BUSY_POLL"}
	busyPollBudget = option{unix.SO_BUSY_POLL_BUDGET, "SO_BUSY_POLL_BUDGET"}
)

// sockopts gets and sets options of one socket.
type sockopts interface {
	get(o option) (int, error)
	set(o option, value int) error
}

type socket int

func (fd socket) get(o option) (int, error) {
	return unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, o.number)
}

func (fd socket) set(o option, value int) error {
	return unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, o.number, value)
}

// Enable sets SO_PREFER_BUSY_POLL, SO_BUSY_POLL and SO_BUSY_POLL_BUDGET of the socket fd, in this order, or does what
// Disable does when o.Budget is 0. Nothing is changed when o is not valid. When the kernel refuses one, those before it
// are put back to what they were and the error, an *Error, says which and why; the socket works on without busy polling.
//
// Raising them needs CAP_NET_ADMIN.
func Enable(fd int, o Options) error { return enable(socket(fd), o) }

func enable(s sockopts, o Options) error {
	if err := o.Validate(); err != nil {
		return err
	}
	if o.Budget == 0 {
		return disable(s)
	}
	type setting struct {
		option
		value, before int
		readable      bool
	}
	settings := []setting{
		{option: preferBusyPoll, value: 1},
		{option: busyPoll, value: int(o.Timeout / time.Microsecond)},
		{option: busyPollBudget, value: o.Budget},
	}
	for i := range settings {
		c := &settings[i]
		before, err := s.get(c.option)
		c.before, c.readable = before, err == nil
		if err = s.set(c.option, c.value); err == nil {
			continue
		}
		e := &Error{Option: c.name, Value: c.value, Err: err}
		var errs []error
		for j := i - 1; j >= 0; j-- {
			c := settings[j]
			if !c.readable {
				c.before = 0 // off
			}
			if err := s.set(c.option, c.before); err != nil {
				errs = append(errs, fmt.Errorf("%s to %d: %w", c.name, c.before, err))
			}
		}
		e.NotRestored = errors.Join(errs...)
		return e
	}
	return nil
}

// Disable turns busy polling off for the socket fd. It needs no capability, and succeeds on kernels that have none.
func Disable(fd int) error { return disable(socket(fd)) }

func disable(s sockopts) error {
	var errs []error
	for _, o := range []option{busyPollBudget, busyPoll, preferBusyPoll} {
		if err := s.set(o, 0); err != nil && !errors.Is(err, unix.ENOPROTOOPT) {
			errs = append(errs, &Error{Option: o.name, Err: err})
		}
	}
	return errors.Join(errs...)
}
