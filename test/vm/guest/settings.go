package main

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/afxdp-project/afxdp/pkg/netdev"
	"github.com/afxdp-project/afxdp/test/vm/report"
)

// snapshot reads the NAPI settings of a NIC and of all its queues.
func (t *tester) snapshot(n *nic) (*report.Snapshot, error) {
	device, err := t.nics.DeviceSettings(n.index)
	if err != nil {
		return nil, err
	}
	s := &report.Snapshot{
		Device: report.Values{DeferHardIRQs: device.DeferHardIRQs, GROFlushTimeout: device.GROFlushTimeout},
		Queues: make(map[string]report.Values),
	}
	queues, err := t.nics.Queues(n.index)
	if errors.Is(err, netdev.ErrUnsupported) {
		return s, nil
	}
	if err != nil {
		return nil, err
	}
	for _, q := range queues {
		if q.NAPI == 0 {
			continue
		}
		napi, err := t.nics.NAPI(q.NAPI)
		if err != nil {
			return nil, err
		}
		v := report.Values{
			DeferHardIRQs: napi.Settings.DeferHardIRQs, GROFlushTimeout: napi.Settings.GROFlushTimeout,
			IRQSuspendTimeout: napi.Settings.IRQSuspendTimeout, Thread: napi.PID != 0,
		}
		if napi.Settings.Threaded != nil {
			v.Threaded = new(uint32(*napi.Settings.Threaded))
		}
		s.Queues[queueKey(q.Type, q.Index)] = v
	}
	return s, nil
}

func queueKey(t netdev.QueueType, index int) string { return fmt.Sprintf("%s-%d", t, index) }

// same reports whether all settings are.
func same(a, b *report.Snapshot) bool { return reflect.DeepEqual(a, b) }

// compare fills in what the snapshots before and during the leases of queues tell.
func compare(s *report.Settings, leased []int, wants report.Values) {
	own := make(map[string]bool)
	for _, q := range leased {
		own[queueKey(netdev.RX, q)], own[queueKey(netdev.TX, q)] = true, true
	}
	s.OthersUntouched = reflect.DeepEqual(s.Before.Device, s.During.Device)
	if !s.OthersUntouched {
		s.Scope = "device"
	}
	s.AsWanted = s.OthersUntouched || has(s.During.Device, wants)
	for key, during := range s.During.Queues {
		changed := !reflect.DeepEqual(s.Before.Queues[key], during)
		if !own[key] {
			s.OthersUntouched = s.OthersUntouched && !changed
			continue
		}
		s.AsWanted = s.AsWanted && has(during, wants)
		if changed && s.Scope == "" {
			s.Scope = "napi"
		}
	}
}

// has reports whether values that are told are as wanted.
func has(v, wants report.Values) bool {
	equal := func(told, want any) bool {
		t, w := reflect.ValueOf(told), reflect.ValueOf(want)
		return t.IsNil() || w.IsNil() || t.Elem().Equal(w.Elem())
	}
	return equal(v.DeferHardIRQs, wants.DeferHardIRQs) && equal(v.GROFlushTimeout, wants.GROFlushTimeout) &&
		equal(v.Threaded, wants.Threaded)
}
