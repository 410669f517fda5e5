package lease

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/afxdp-project/afxdp/pkg/netdev"
)

// knob is a setting that was changed: the NAPI of one queue, or the whole device where the kernel or driver has no
// settings by NAPI. NAPI ids are not kept, since they change: the queue is.
type knob struct {
	Name  knobName  `json:"name"`
	Scope knobScope `json:"scope"`
	// Original is the value before the first change. It is written before that, and once.
	Original uint64 `json:"original"`
	// Ours are the values that we may have set, the last one last. A setting with any other value was changed by someone
	// else since, and is left alone when the knob is put back.
	Ours []uint64 `json:"ours"`
	// Holders are the devices that want the knob, with the value each wants. The largest is set.
	Holders map[string]uint64 `json:"holders"`
}

type knobName string

const (
	knobDefer knobName = "napi_defer_hard_irqs" // count
	knobFlush knobName = "gro_flush_timeout"    // ns
)

// knobScope is scopeDevice, or a queue whose NAPI is set.
type knobScope struct {
	Type  netdev.QueueType `json:"type,omitempty"`
	Queue int              `json:"queue"`
}

var scopeDevice = knobScope{Type: "", Queue: -1}

// Tuning is how the interrupts of a device are deferred, as read back.
type Tuning struct {
	NAPIKnown      bool   // the kernel tells which NAPI a queue has
	RXNAPI, TXNAPI uint32 // the NAPIs of the queue; 0: none. They change when the link goes down and up
	// Deferral reports whether the settings are as the pool wants them.
	Deferral        bool
	DeferHardIRQs   uint32
	GROFlushTimeout time.Duration
}

func wanted(s Settings) map[knobName]uint64 {
	if s.BusyPollBudget == 0 {
		return nil
	}
	return map[knobName]uint64{knobDefer: uint64(s.DeferHardIRQs), knobFlush: uint64(s.GROFlushTimeout)}
}

// tune sets the knobs that the lease's settings ask for.
func (m *Manager) tune(n *nic, l *lease) error {
	want := wanted(l.doc.Settings)
	if want == nil {
		return nil
	}
	// Looked up only now: the attach or the trial bind may have made the NAPIs anew.
	link, err := m.find(n)
	if err != nil {
		return err
	}
	scopes, err := m.scopes(link, l.doc.Queue)
	if err != nil {
		return err
	}
	for _, scope := range scopes {
		for _, name := range []knobName{knobDefer, knobFlush} {
			if err := m.hold(n, link, name, scope, l.doc.Device, want[name]); err != nil {
				return err
			}
		}
	}
	return nil
}

// scopes returns where a queue is tuned: its rx NAPI and, where it has its own, its tx NAPI, or the device.
func (m *Manager) scopes(link netdev.Link, queue int) ([]knobScope, error) {
	napis, err := m.napis(link, queue)
	if err != nil {
		return nil, err
	}
	var scopes []knobScope
	seen := make(map[uint32]bool)
	for _, t := range []netdev.QueueType{netdev.RX, netdev.TX} {
		id := napis[t]
		if id == 0 || seen[id] {
			continue
		}
		seen[id] = true
		settable, err := m.settable(id)
		if err != nil {
			return nil, err
		}
		if !settable {
			return []knobScope{scopeDevice}, nil
		}
		scopes = append(scopes, knobScope{t, queue})
	}
	if napis[netdev.RX] == 0 {
		return []knobScope{scopeDevice}, nil
	}
	return scopes, nil
}

// napis returns the NAPI ids of a queue, by type; an id is missing where the driver links none, and the map is nil where
// the kernel cannot tell.
func (m *Manager) napis(link netdev.Link, queue int) (map[netdev.QueueType]uint32, error) {
	queues, err := m.config.NICs.Queues(link.Index)
	if errors.Is(err, netdev.ErrUnsupported) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find NAPIs of %s: %w", link.Name, err)
	}
	ids := make(map[netdev.QueueType]uint32)
	for _, q := range queues {
		if q.Index == queue && q.NAPI != 0 {
			ids[q.Type] = q.NAPI
		}
	}
	return ids, nil
}

// settable tries whether a NAPI's settings can be set, by setting one to the value that it has.
func (m *Manager) settable(id uint32) (bool, error) {
	napi, err := m.config.NICs.NAPI(id)
	if errors.Is(err, netdev.ErrUnsupported) || err == nil && napi.Settings.DeferHardIRQs == nil {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	err = m.config.NICs.SetNAPI(id, netdev.NAPISettings{DeferHardIRQs: napi.Settings.DeferHardIRQs})
	if errors.Is(err, netdev.ErrUnsupported) {
		return false, nil
	}
	return err == nil, err
}

// hold has a device hold a knob at a value.
func (m *Manager) hold(n *nic, link netdev.Link, name knobName, scope knobScope, device string, value uint64) error {
	i := slices.IndexFunc(n.doc.Knobs, func(k knob) bool { return k.Name == name && k.Scope == scope })
	if i < 0 {
		original, err := m.readKnob(link, name, scope)
		if err != nil {
			return err
		}
		n.doc.Knobs = append(n.doc.Knobs, knob{Name: name, Scope: scope, Original: original, Holders: make(map[string]uint64)})
		i = len(n.doc.Knobs) - 1
	}
	k := &n.doc.Knobs[i]
	k.Holders[device] = value
	return m.set(n, link, k)
}

// set sets a knob to the largest value that its holders want.
func (m *Manager) set(n *nic, link netdev.Link, k *knob) error {
	value := slices.Max(slices.Collect(maps.Values(k.Holders)))
	k.Ours = append(slices.DeleteFunc(k.Ours, func(v uint64) bool { return v == value }), value)
	if err := m.writeNIC(n); err != nil {
		return err
	}
	m.config.Fault("set " + string(k.Name))
	if err := m.writeKnob(link, k.Name, k.Scope, value); err != nil {
		return err
	}
	if len(k.Ours) > 1 {
		k.Ours = k.Ours[len(k.Ours)-1:]
		return m.writeNIC(n)
	}
	return nil
}

// untune lets a device go of all knobs that it holds, the last one first. Those that nobody holds then are put back.
func (m *Manager) untune(n *nic, link netdev.Link, device string) error {
	var errs []error
	for i := len(n.doc.Knobs) - 1; i >= 0; i-- {
		k := &n.doc.Knobs[i]
		if _, holds := k.Holders[device]; !holds {
			continue
		}
		if len(k.Holders) > 1 {
			delete(k.Holders, device)
			errs = append(errs, m.set(n, link, k))
			continue
		}
		if err := m.restore(link, k); err != nil {
			errs = append(errs, err)
			continue
		}
		n.doc.Knobs = slices.Delete(n.doc.Knobs, i, i+1)
		errs = append(errs, m.writeNIC(n))
	}
	return errors.Join(errs...)
}

// restore sets a knob to its original value if its value is still one of ours.
func (m *Manager) restore(link netdev.Link, k *knob) error {
	m.config.Fault("restore " + string(k.Name))
	now, err := m.readKnob(link, k.Name, k.Scope)
	if errors.Is(err, errNoNAPI) {
		return nil // the queue is gone, and its settings with it
	}
	if err != nil {
		return err
	}
	if now == k.Original || !slices.Contains(k.Ours, now) {
		return nil
	}
	return m.writeKnob(link, k.Name, k.Scope, k.Original)
}

// Retune sets the knobs of all active leases again where they are not as the leases want them: a link that flaps and a
// driver that resets make NAPIs anew, with other settings.
func (m *Manager) Retune() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var errs []error
	for _, n := range m.nics {
		link, err := m.find(n)
		if errors.Is(err, netdev.ErrNoDevice) {
			continue
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for i := range n.doc.Knobs {
			k := &n.doc.Knobs[i]
			now, err := m.readKnob(link, k.Name, k.Scope)
			if errors.Is(err, errNoNAPI) {
				continue
			}
			if err != nil {
				errs = append(errs, err)
			} else if now != k.Ours[len(k.Ours)-1] {
				errs = append(errs, m.set(n, link, k))
			}
		}
	}
	return errors.Join(errs...)
}

// tuning reads back how the interrupts of a lease's queue are deferred.
func (m *Manager) tuning(n *nic, link netdev.Link, l *lease) (Tuning, error) {
	napis, err := m.napis(link, l.doc.Queue)
	if err != nil {
		return Tuning{}, err
	}
	t := Tuning{NAPIKnown: napis != nil, RXNAPI: napis[netdev.RX], TXNAPI: napis[netdev.TX], Deferral: true}
	for i := range n.doc.Knobs {
		k := &n.doc.Knobs[i]
		want, holds := k.Holders[l.doc.Device]
		if !holds {
			continue
		}
		now, err := m.readKnob(link, k.Name, k.Scope)
		if err != nil {
			return Tuning{}, err
		}
		t.Deferral = t.Deferral && now >= want && now > 0
		switch k.Name {
		case knobDefer:
			t.DeferHardIRQs = uint32(now)
		case knobFlush:
			t.GROFlushTimeout = time.Duration(now)
		}
	}
	t.Deferral = t.Deferral && t.DeferHardIRQs > 0 && t.GROFlushTimeout > 0
	return t, nil
}
