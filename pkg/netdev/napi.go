package netdev

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Attributes of the netdev family's NAPI objects.
const (
	netdevNAPIIndex         = 1
	netdevNAPIID            = 2
	netdevNAPIIRQ           = 3
	netdevNAPIPID           = 4
	netdevNAPIDeferHardIRQs = 5
	netdevNAPIGROFlush      = 6
	netdevNAPIIRQSuspend    = 7
	netdevNAPIThreaded      = 8
)

// NAPI is the kernel's polling context of one or more queues.
type NAPI struct {
	ID    uint32
	Index int // of the NIC
	IRQ   int // interrupt number; -1 where the driver names none
	PID   int // of the NAPI's thread; 0 without one
	// Settings holds the values in force. A nil one means that the kernel does not return it and that it can be set
	// for the whole NIC only, if at all.
	Settings NAPISettings
}

// NAPISettings are the settings of one NAPI. In [Handle.SetNAPI] a nil pointer leaves the value as it is.
type NAPISettings struct {
	// DeferHardIRQs is how many polls may find nothing before the interrupt is enabled again (Linux 6.13; at most
	// 2^31-1).
	DeferHardIRQs *uint32
	// GROFlushTimeout is when the watchdog polls while interrupts are deferred (Linux 6.13; nanoseconds).
	GROFlushTimeout *time.Duration
	// IRQSuspendTimeout is the longest that a busy-polling application may keep interrupts off altogether (Linux 6.13;
	// nanoseconds).
	IRQSuspendTimeout *time.Duration
	// Threaded says whether a kernel thread of its own polls the NAPI (Linux 6.17).
	Threaded *ThreadedMode
}

// ThreadedMode is where a NAPI is polled.
type ThreadedMode uint32

const (
	ThreadedOff      ThreadedMode = 0 // in softirq
	ThreadedOn       ThreadedMode = 1 // in a kernel thread
	ThreadedBusyPoll ThreadedMode = 2 // in a kernel thread that never sleeps, on kernels that have it
)

// NAPI reads one NAPI. [ErrNoNAPI] when the id is not (or no longer) one, [ErrUnsupported] before Linux 6.8.
func (h *Handle) NAPI(id uint32) (NAPI, error) {
	ae := netlink.NewAttributeEncoder()
	ae.Uint32(netdevNAPIID, id)
	n := NAPI{IRQ: -1}
	if err := h.generic.requestOne(h.netdev, netdevCmdNAPIGet, ae, n.attribute); err != nil {
		return NAPI{}, fmt.Errorf("read NAPI %d: %w", id, noNAPI(err))
	}
	return n, nil
}

// NAPIs lists the NAPIs of a NIC. It is empty while the NIC is down, and for a driver whose NAPIs have no ids.
// [ErrUnsupported] before Linux 6.8.
func (h *Handle) NAPIs(index int) ([]NAPI, error) {
	if err := checkIndex(index); err != nil {
		return nil, fmt.Errorf("list NAPIs: %w", err)
	}
	ae := netlink.NewAttributeEncoder()
	ae.Uint32(netdevNAPIIndex, uint32(index))
	bodies, err := h.generic.request(h.netdev, netdevCmdNAPIGet, netlink.Dump, ae)
	if err != nil {
		return nil, fmt.Errorf("list NAPIs of link %d: %w", index, err)
	}
	napis := make([]NAPI, 0, len(bodies))
	for _, b := range bodies {
		n := NAPI{IRQ: -1}
		if err := attributes(b, n.attribute); err != nil {
			return nil, fmt.Errorf("list NAPIs of link %d: %w", index, err)
		}
		napis = append(napis, n)
	}
	return napis, nil
}

// SetNAPI changes the settings of one NAPI, that is of the queues that it serves and of no others. A setting that the
// kernel does not return for this NAPI is [ErrUnsupported], and then nothing is changed. It does not read back: the
// caller compares with [Handle.NAPI]. Needs CAP_NET_ADMIN.
func (h *Handle) SetNAPI(id uint32, s NAPISettings) error {
	ae, err := s.encode(id)
	if err != nil {
		return fmt.Errorf("set NAPI %d: %w", id, err)
	}
	// The kernel answers EINVAL to an attribute that it does not know, as to a bad value. What it returns, it knows.
	now, err := h.NAPI(id)
	if err != nil {
		return fmt.Errorf("set NAPI %d: %w", id, err)
	}
	for _, k := range []struct {
		name      string
		want, has bool
	}{
		{"defer-hard-irqs", s.DeferHardIRQs != nil, now.Settings.DeferHardIRQs != nil},
		{"gro-flush-timeout", s.GROFlushTimeout != nil, now.Settings.GROFlushTimeout != nil},
		{"irq-suspend-timeout", s.IRQSuspendTimeout != nil, now.Settings.IRQSuspendTimeout != nil},
		{"threaded", s.Threaded != nil, now.Settings.Threaded != nil},
	} {
		if k.want && !k.has {
			return fmt.Errorf("set %s of NAPI %d: %w: only the NIC as a whole may have it", k.name, id, ErrUnsupported)
		}
	}
	if _, err := h.generic.request(h.netdev, netdevCmdNAPISet, netlink.Acknowledge, ae); err != nil {
		return fmt.Errorf("set NAPI %d: %w", id, noNAPI(err))
	}
	return nil
}

func (s NAPISettings) encode(id uint32) (*netlink.AttributeEncoder, error) {
	ae := netlink.NewAttributeEncoder()
	ae.Uint32(netdevNAPIID, id)
	if s.DeferHardIRQs != nil {
		if *s.DeferHardIRQs > math.MaxInt32 {
			return nil, fmt.Errorf("defer-hard-irqs is %d, at most %d is allowed", *s.DeferHardIRQs, math.MaxInt32)
		}
		ae.Uint32(netdevNAPIDeferHardIRQs, *s.DeferHardIRQs)
	}
	for _, t := range []struct {
		name string
		typ  uint16
		d    *time.Duration
	}{
		{"gro-flush-timeout", netdevNAPIGROFlush, s.GROFlushTimeout},
		{"irq-suspend-timeout", netdevNAPIIRQSuspend, s.IRQSuspendTimeout},
	} {
		if t.d == nil {
			continue
		}
		if *t.d < 0 {
			return nil, fmt.Errorf("%s is %v, it cannot be negative", t.name, *t.d)
		}
		ae.Uint64(t.typ, uint64(*t.d))
	}
	if s.Threaded != nil {
		ae.Uint32(netdevNAPIThreaded, uint32(*s.Threaded))
	}
	return ae, nil
}

func (n *NAPI) attribute(ad *netlink.AttributeDecoder) {
	duration := func() *time.Duration {
		d := time.Duration(min(uintAttribute(ad), math.MaxInt64))
		return &d
	}
	switch ad.Type() {
	case netdevNAPIID:
		n.ID = ad.Uint32()
	case netdevNAPIIndex:
		n.Index = int(ad.Uint32())
	case netdevNAPIIRQ:
		n.IRQ = int(ad.Uint32())
	case netdevNAPIPID:
		n.PID = int(ad.Uint32())
	case netdevNAPIDeferHardIRQs:
		n.Settings.DeferHardIRQs = new(ad.Uint32())
	case netdevNAPIGROFlush:
		n.Settings.GROFlushTimeout = duration()
	case netdevNAPIIRQSuspend:
		n.Settings.IRQSuspendTimeout = duration()
	case netdevNAPIThreaded:
		n.Settings.Threaded = new(ThreadedMode(uintAttribute(ad)))
	}
}

func noNAPI(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("%w: %w", ErrNoNAPI, err)
	}
	return err
}
