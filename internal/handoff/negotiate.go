package handoff

import (
	"fmt"
	"strings"
	"time"

	"github.com/afxdp-project/afxdp/internal/lease"
	"github.com/afxdp-project/afxdp/internal/wire"
	"github.com/afxdp-project/afxdp/pkg/busypoll"
	"github.com/afxdp-project/afxdp/pkg/xsk"
)

// negotiate sets the busy-poll options and describes the socket as it is.
func (s *session) negotiate(m *wire.Open, g lease.Grant, socket *xsk.Socket) (*wire.Opened, lease.Socket, error) {
	cookie, err := socket.Cookie()
	if err != nil {
		return nil, lease.Socket{}, err
	}
	zeroCopy, err := socket.IsZeroCopy()
	if err != nil {
		return nil, lease.Socket{}, err
	}
	o := &wire.Opened{Socket: wire.Socket{
		Device: m.Device, Fill: m.Fill, Completion: m.Completion, RX: m.RX, TX: m.TX, Cookie: cookie, Epoch: g.Epoch,
		QueueNAPI:     g.Tuning.RXNAPI,
		DeferHardIRQs: g.Tuning.DeferHardIRQs, GROFlushTimeout: uint64(g.Tuning.GROFlushTimeout),
	}}
	o.Flags = tuningFlags(g.Tuning)
	for flag, set := range map[wire.SocketFlags]bool{
		wire.SocketZeroCopy: zeroCopy, wire.SocketNeedWakeup: g.Settings.NeedWakeup,
		wire.SocketMultiBuffer: g.Settings.MultiBuffer,
	} {
		if set {
			o.Flags |= flag
		}
	}
	o.Text = s.setBusyPoll(o, m, g, socket)
	if unmet := g.Tuning.Unmet(); unmet != "" {
		o.Text = strings.TrimPrefix(o.Text+"; ", "; ") + unmet
	}
	return o, lease.Socket{Cookie: cookie, Group: s.group, ZeroCopy: zeroCopy, Frames: s.frames}, nil
}

func tuningFlags(t lease.Tuning) (flags wire.SocketFlags) {
	for flag, set := range map[wire.SocketFlags]bool{
		wire.SocketDeferral: t.Deferral, wire.SocketNAPIKnown: t.NAPIKnown,
		// virtio-net's tx NAPIs have no id: also then the rx queue's does not send.
		wire.SocketSeparateNAPI: t.RXNAPI != 0 && t.TXNAPI != t.RXNAPI,
	} {
		if set {
			flags |= flag
		}
	}
	return flags
}

// LookTime is how long a look at a queue's tuning serves, and so how old what TUNED says may be: each look takes the
// Manager's lock and the kernel's, and a client may ask as often as it likes.
const LookTime = 50 * time.Millisecond

// look is a look at a queue's tuning.
type look struct {
	epoch uint64 // of the lease
	at    time.Time
	found lease.Tuning
}

// tuning says how the queue of a device that this connection has open stands now.
func (s *session) tuning(m *wire.Tuning) (wire.Message, error) {
	device, err := s.device(m.Device)
	if err != nil {
		return nil, err
	}
	epoch, ok := s.open[device]
	if !ok {
		return nil, wire.Errorf(wire.CodeState, "TUNING: this connection does not have device %s open", device)
	}
	last := s.looks[device]
	if last.epoch != epoch || time.Since(last.at) > LookTime {
		t, err := s.leases.Tuning(device, s.cookie)
		if err != nil {
			return nil, err
		}
		last = look{epoch, time.Now(), t}
		s.looks[device] = last
	}
	t := last.found
	return &wire.Tuned{
		Device: m.Device, Flags: tuningFlags(t), QueueNAPI: t.RXNAPI, DeferHardIRQs: t.DeferHardIRQs,
		GROFlushTimeout: uint64(t.GROFlushTimeout),
	}, nil
}

// setBusyPoll sets the socket's options for busy polling and returns why it cannot work, if so.
func (s *session) setBusyPoll(o *wire.Opened, m *wire.Open, g lease.Grant, socket *xsk.Socket) string {
	switch {
	case g.Settings.BusyPollBudget == 0:
		return fmt.Sprintf("busy polling is off in pool %s", g.Settings.Pool)
	case m.Flags&wire.OpenNoBusyPoll != 0:
		return "the client asked for no busy polling"
	}
	// What a poll takes beyond a ring's size is dropped.
	budget := g.Settings.BusyPollBudget
	if m.RX > 0 {
		budget = min(budget, int(m.RX))
	}
	options := busypoll.Options{Budget: budget, Timeout: g.Settings.BusyPollTimeout}
	if err := busypoll.Enable(socket.FD(), options); err != nil {
		return err.Error()
	}
	o.Flags |= wire.SocketBusyPoll
	o.BusyPollBudget, o.BusyPollTimeout = uint32(options.Budget), uint32(options.Timeout.Microseconds())
	state, err := busypoll.Read(socket.FD())
	if err != nil {
		return err.Error()
	}
	o.NAPI = state.NAPI
	facts := busypoll.Facts{ZeroCopy: o.Flags&wire.SocketZeroCopy != 0}
	if g.Tuning.NAPIKnown {
		facts.QueueNAPI = &g.Tuning.RXNAPI
	}
	if g.Tuning.Deferral {
		facts.Deferral = &busypoll.Deferral{HardIRQs: int(g.Tuning.DeferHardIRQs), GROFlushTimeout: g.Tuning.GROFlushTimeout}
	}
	if status := busypoll.Assess(state, facts); !status.Active {
		return status.Reason
	}
	return ""
}
