package lease

import (
	"errors"
	"fmt"
	"time"

	"github.com/afxdp-project/afxdp/pkg/netdev"
)

var errNoNAPI = errors.New("the queue has no NAPI")

func (m *Manager) napiOf(link netdev.Link, scope knobScope) (uint32, error) {
	ids, err := m.napis(link, scope.Queue)
	if err != nil {
		return 0, err
	}
	if ids[scope.Type] == 0 {
		return 0, fmt.Errorf("%s queue %d: %w", link.Name, scope.Queue, errNoNAPI)
	}
	return ids[scope.Type], nil
}

// readKnob reads a setting from the kernel.
func (m *Manager) readKnob(link netdev.Link, name knobName, scope knobScope) (uint64, error) {
	if scope == scopeDevice {
		s, err := m.config.NICs.DeviceSettings(link.Index)
		if err != nil {
			return 0, fmt.Errorf("read %s of %s: %w", name, link.Name, err)
		}
		if name == knobDefer {
			return uint64(*s.DeferHardIRQs), nil
		}
		return uint64(*s.GROFlushTimeout), nil
	}
	id, err := m.napiOf(link, scope)
	if err != nil {
		return 0, err
	}
	napi, err := m.config.NICs.NAPI(id)
	s := napi.Settings
	switch {
	case errors.Is(err, netdev.ErrNoNAPI):
		return 0, fmt.Errorf("%s queue %d: %w", link.Name, scope.Queue, errNoNAPI)
	case err != nil:
		return 0, fmt.Errorf("read %s of %s queue %d: %w", name, link.Name, scope.Queue, err)
	case name == knobDefer && s.DeferHardIRQs != nil:
		return uint64(*s.DeferHardIRQs), nil
	case name == knobFlush && s.GROFlushTimeout != nil:
		return uint64(*s.GROFlushTimeout), nil
	}
	return 0, fmt.Errorf("read %s of %s queue %d: %w", name, link.Name, scope.Queue, netdev.ErrUnsupported)
}

// writeKnob sets a setting and reads it back: a write that is cut or ignored must not go unnoticed.
func (m *Manager) writeKnob(link netdev.Link, name knobName, scope knobScope, value uint64) error {
	count, timeout := uint32(value), time.Duration(value)
	var err error
	switch {
	case scope == scopeDevice && name == knobDefer:
		err = m.config.NICs.SetDeviceSettings(link.Index, netdev.DeviceSettings{DeferHardIRQs: &count})
	case scope == scopeDevice:
		err = m.config.NICs.SetDeviceSettings(link.Index, netdev.DeviceSettings{GROFlushTimeout: &timeout})
	default:
		var id uint32
		if id, err = m.napiOf(link, scope); err != nil {
			break
		}
		change := netdev.NAPISettings{GROFlushTimeout: &timeout}
		if name == knobDefer {
			change = netdev.NAPISettings{DeferHardIRQs: &count}
		}
		err = m.config.NICs.SetNAPI(id, change)
	}
	if err != nil {
		return fmt.Errorf("set %s of %s to %d: %w", name, link.Name, value, err)
	}
	now, err := m.readKnob(link, name, scope)
	if err != nil {
		return err
	}
	if now != value {
		return fmt.Errorf("set %s of %s to %d: the kernel shows %d afterwards", name, link.Name, value, now)
	}
	return nil
}
