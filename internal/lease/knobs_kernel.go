package lease

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/afxdp-project/afxdp/pkg/netdev"
)

var errNoNAPI = errors.New("the queue has no NAPI")

// queues returns a NIC's queues, receive queues first; nil where the kernel cannot tell.
func (m *Manager) queues(link netdev.Link) ([]netdev.Queue, error) {
	queues, err := m.config.napis.Queues(link.Index)
	if errors.Is(err, netdev.ErrUnsupported) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find NAPIs of %s: %w", link.Name, err)
	}
	return queues, nil
}

// napiOf returns the id of a queue's NAPI; 0 where the driver links none or the kernel does not tell.
func napiOf(queues []netdev.Queue, scope knobScope) uint32 {
	for _, q := range queues {
		if q.Type == scope.Type && q.Index == scope.Queue {
			return q.NAPI
		}
	}
	return 0
}

// hasQueue reports whether a NIC has the queue of a scope still.
func (m *Manager) hasQueue(link netdev.Link, scope knobScope) (bool, error) {
	queues, err := m.queues(link)
	return slices.ContainsFunc(queues, func(q netdev.Queue) bool { return q.Type == scope.Type && q.Index == scope.Queue }), err
}

// scopes returns where a queue is tuned: its rx NAPI and, where it has its own, its tx NAPI, or the device; nowhere where
// nothing could be busy-polled, since deferral would only delay packets there.
func (m *Manager) scopes(link netdev.Link, queue int) ([]knobScope, error) {
	queues, err := m.queues(link)
	if err != nil {
		return nil, err
	}
	var scopes []knobScope
	for _, t := range []netdev.QueueType{netdev.RX, netdev.TX} {
		id := napiOf(queues, knobScope{t, queue})
		if id == 0 {
			if t == netdev.RX {
				break
			}
			continue
		}
		settable, err := m.settable(id)
		if err != nil {
			return nil, err
		}
		if !settable {
			return []knobScope{scopeDevice}, nil
		}
		first := queues[slices.IndexFunc(queues, func(q netdev.Queue) bool { return q.NAPI == id })]
		if scope := (knobScope{first.Type, first.Index}); !slices.Contains(scopes, scope) {
			scopes = append(scopes, scope)
		}
	}
	if scopes != nil {
		return scopes, nil
	}
	unpollable, err := m.unpollable(link, queues)
	if unpollable || err != nil {
		return nil, err
	}
	return []knobScope{scopeDevice}, nil
}

// unpollable reports whether sockets on queues that are linked to no NAPI are known to poll nothing. It is so since Linux
// 6.13, which came with settings by NAPI too: a socket is told its NAPI by that link. Before, drivers told sockets their
// NAPIs and the kernel nothing of it, and whether a socket has one is seen only when it has received a packet. That cannot
// be decided either while the NIC has no NAPI at all.
func (m *Manager) unpollable(link netdev.Link, queues []netdev.Queue) (bool, error) {
	if queues == nil {
		return false, nil
	}
	napis, err := m.config.napis.NAPIs(link.Index)
	if errors.Is(err, netdev.ErrUnsupported) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("list NAPIs of %s: %w", link.Name, err)
	}
	return len(napis) > 0 && napis[0].Settings.DeferHardIRQs != nil, nil
}

// settable reports whether the kernel has settings for one NAPI: what it returns, it lets be set.
func (m *Manager) settable(id uint32) (bool, error) {
	napi, err := m.config.napis.NAPI(id)
	if errors.Is(err, netdev.ErrUnsupported) {
		return false, nil
	}
	return napi.Settings.DeferHardIRQs != nil && napi.Settings.GROFlushTimeout != nil, err
}

// readKnob reads a setting from the kernel, with the number of the NAPI, or of its thread, that has it, or 0.
func (m *Manager) readKnob(link netdev.Link, name knobName, scope knobScope) (value setting, of int, err error) {
	if scope == scopeDevice {
		s, err := m.config.NICs.DeviceSettings(link.Index)
		if err != nil {
			return "", 0, fmt.Errorf("read %s of %s: %w", name, link.Name, err)
		}
		value, ok := get(name, netdev.NAPISettings{DeferHardIRQs: s.DeferHardIRQs, GROFlushTimeout: s.GROFlushTimeout})
		if !ok {
			return "", 0, fmt.Errorf("read %s of %s: %w for the whole device", name, link.Name, netdev.ErrUnsupported)
		}
		return value, 0, nil
	}
	queues, err := m.queues(link)
	if err != nil {
		return "", 0, err
	}
	id := napiOf(queues, scope)
	if id == 0 {
		return "", 0, fmt.Errorf("read %s of %s queue %d: %w", name, link.Name, scope.Queue, errNoNAPI)
	}
	found, err := m.config.napis.NAPI(id)
	value, ok := get(name, found.Settings)
	of = int(id)
	var cpus netdev.CPUs
	switch {
	case err != nil:
	case name == knobIRQ && found.IRQ >= 0:
		cpus, err = m.config.napis.IRQAffinity(found.IRQ)
		value, ok = setting(cpus), err == nil
	case name == knobThread:
		cpus, err = m.config.napis.ThreadAffinity(found)
		value, ok, of = setting(cpus), err == nil, found.PID
	}
	switch {
	case errors.Is(err, netdev.ErrNoNAPI):
		err = fmt.Errorf("%w: %w", errNoNAPI, err)
	case err == nil && ok:
		return value, of, nil
	case err == nil:
		err = netdev.ErrUnsupported
	}
	return "", 0, fmt.Errorf("read %s of %s queue %d: %w", name, link.Name, scope.Queue, err)
}

// writeKnob sets a setting and reads it back: a write that is cut or ignored must not go unnoticed.
func (m *Manager) writeKnob(link netdev.Link, name knobName, scope knobScope, value setting) error {
	if err := m.writeUnchecked(link, name, scope, value); err != nil {
		return fmt.Errorf("set %s of %s to %s: %w", name, link.Name, value, err)
	}
	now, _, err := m.readKnob(link, name, scope)
	if err != nil {
		return err
	}
	if now != value {
		return fmt.Errorf("set %s of %s to %s: the kernel shows %s afterwards", name, link.Name, value, now)
	}
	return nil
}

func (m *Manager) writeUnchecked(link netdev.Link, name knobName, scope knobScope, value setting) error {
	s := change(name, value.number())
	if scope == scopeDevice {
		return m.config.NICs.SetDeviceSettings(link.Index, netdev.DeviceSettings{
			DeferHardIRQs: s.DeferHardIRQs, GROFlushTimeout: s.GROFlushTimeout,
		})
	}
	queues, err := m.queues(link)
	if err != nil {
		return err
	}
	id := napiOf(queues, scope)
	if id == 0 {
		return errNoNAPI
	}
	if name == knobIRQ || name == knobThread {
		found, err := m.config.napis.NAPI(id)
		switch {
		case err != nil:
			return err
		case name == knobThread:
			return m.config.napis.SetThreadAffinity(found, netdev.CPUs(value))
		}
		return m.config.napis.SetIRQAffinity(found.IRQ, netdev.CPUs(value))
	}
	return m.config.napis.SetNAPI(id, s)
}

// get returns the value of a knob among settings, if it is there.
func get(name knobName, s netdev.NAPISettings) (value setting, ok bool) {
	var timeout *time.Duration
	switch name {
	case knobDefer:
		if s.DeferHardIRQs != nil {
			return number(*s.DeferHardIRQs), true
		}
	case knobThreaded:
		if s.Threaded != nil {
			return number(*s.Threaded), true
		}
	case knobFlush:
		timeout = s.GROFlushTimeout
	case knobSuspend:
		timeout = s.IRQSuspendTimeout
	}
	if timeout != nil {
		return number(*timeout), true
	}
	return "", false
}

// change returns settings that change one knob.
func change(name knobName, value uint64) (s netdev.NAPISettings) {
	switch name {
	case knobDefer:
		s.DeferHardIRQs = new(uint32(value))
	case knobThreaded:
		s.Threaded = new(netdev.ThreadedMode(value))
	case knobFlush:
		s.GROFlushTimeout = new(time.Duration(value))
	case knobSuspend:
		s.IRQSuspendTimeout = new(time.Duration(value))
	}
	return s
}
