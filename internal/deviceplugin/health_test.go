package deviceplugin

import (
	"slices"
	"testing"
	"time"
)

// Field case 34: a flapping link does not flood kubelet.
func TestHealth(t *testing.T) {
	const hold = 10 * time.Second
	up, down := Device{ID: "a", Healthy: true}, Device{ID: "a", Reason: "link down"}
	type step struct {
		at      int      // seconds
		update  []Device // nil: time passes only
		told    string   // "up", "down", or "" for a device that is not listed
		changes []change
		next    int // when to evaluate again, in seconds, 0: never
	}
	lost, back, gone := change{"a", false, "link down"}, change{"a", true, ""}, change{"a", false, "gone"}
	for name, steps := range map[string][]step{
		"new and healthy is told at once": {{at: 0, update: []Device{up}, told: "up"}},
		"down is told at once, up after the hold": {
			{at: 0, update: []Device{up}, told: "up"},
			{at: 1, update: []Device{down}, told: "down", changes: []change{lost}},
			{at: 2, update: []Device{up}, told: "down", next: 12},
			{at: 11, told: "down", next: 12},
			{at: 12, told: "up", changes: []change{back}},
			{at: 99, told: "up"},
		},
		"the hold begins again with each flap, the reason is told once": {
			{at: 0, update: []Device{down}, told: "down", changes: []change{lost}},
			{at: 1, update: []Device{up}, told: "down", next: 11},
			{at: 9, update: []Device{down}, told: "down"},
			{at: 12, told: "down"},
			{at: 13, update: []Device{up}, told: "down", next: 23},
			{at: 14, update: []Device{up}, told: "down", next: 23},
			{at: 23, told: "up", changes: []change{back}},
		},
		"another reason is told": {
			{at: 0, update: []Device{down}, told: "down", changes: []change{lost}},
			{at: 1, update: []Device{{ID: "a", Reason: "quarantined"}}, told: "down",
				changes: []change{{"a", false, "quarantined"}}},
		},
		"no reason": {{at: 0, update: []Device{{ID: "a"}}, told: "down", changes: []change{{"a", false, "no reason given"}}}},
		"gone and soon back is as unhealthy and healthy again": {
			{at: 0, update: []Device{up}, told: "up"},
			{at: 1, update: []Device{}, told: "", changes: []change{gone}, next: 11},
			{at: 2, update: []Device{up}, told: "down", next: 12},
			{at: 12, told: "up", changes: []change{back}},
		},
		"gone for long is new": {
			{at: 0, update: []Device{up}, told: "up"},
			{at: 1, update: []Device{}, told: "", changes: []change{gone}, next: 11},
			{at: 11, told: ""},
			{at: 12, update: []Device{up}, told: "up"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := health{hold: hold, records: make(map[string]*record)}
			zero := time.Unix(1000, 0)
			for _, s := range steps {
				now := zero.Add(time.Duration(s.at) * time.Second)
				if s.update != nil {
					h.update(now, s.update)
				}
				list, changes, next := h.evaluate(now)
				told := ""
				if len(list) > 0 {
					told = map[bool]string{true: "up", false: "down"}[list[0].Healthy]
				}
				if told != s.told || !slices.Equal(changes, s.changes) {
					t.Errorf("at %d s: told %q, changes %v; want %q, %v", s.at, told, changes, s.told, s.changes)
				}
				var want time.Time
				if s.next > 0 {
					want = zero.Add(time.Duration(s.next) * time.Second)
				}
				if !next.Equal(want) {
					t.Errorf("at %d s: next at %v, want %d s", s.at, next.Sub(zero), s.next)
				}
			}
			h.update(zero.Add(time.Hour), nil)
			h.evaluate(zero.Add(2 * time.Hour))
			if len(h.records) != 0 {
				t.Errorf("devices that are long gone are remembered: %v", h.records)
			}
		})
	}
}

// Field case 34: however fast a device flaps, kubelet is told of at most two changes in a hold time.
func TestFlappingIsToldAtMostTwiceInAHoldTime(t *testing.T) {
	const hold = 10 * time.Second
	h := health{hold: hold, records: make(map[string]*record)}
	now := time.Unix(1000, 0)
	told, changes := true, 0
	for i := range 1000 { // 100 s
		now = now.Add(100 * time.Millisecond)
		h.update(now, []Device{{ID: "a", Healthy: i%3 == 0, Reason: "link down"}})
		list, _, _ := h.evaluate(now)
		if list[0].Healthy != told {
			told = list[0].Healthy
			changes++
		}
	}
	if changes != 1 {
		t.Errorf("a device that is never healthy for the hold time was told to change %d times, want once", changes)
	}
}
