package deviceplugin

import (
	"cmp"
	"slices"
	"time"
)

// health decides what kubelet is told of a pool's devices. Bad news is told at once; that a device is healthy again is
// told once it has been healthy for the hold time. A device that was gone for less than that comes back as one that
// was unhealthy. One that was never seen before is told as it is.
type health struct {
	hold    time.Duration
	records map[string]*record // by device id
}

type record struct {
	device    Device
	present   bool
	since     time.Time // healthy since, or gone since
	recovers  bool      // was unhealthy or gone, and has not yet been healthy for the hold time
	announced bool      // what kubelet is told
	reason    string    // why not healthy, as last reported
}

// change is what the log is told, once for each.
type change struct {
	device  string
	healthy bool
	reason  string // empty for a device that is healthy again
}

// update takes the full list of devices.
func (h *health) update(now time.Time, devices []Device) {
	present := make(map[string]bool, len(devices))
	for _, d := range devices {
		present[d.ID] = true
		r := h.records[d.ID]
		if r == nil {
			r = &record{present: true, since: now, announced: true}
			h.records[d.ID] = r
		} else if !r.present || (d.Healthy && !r.device.Healthy) {
			r.since = now
		}
		r.device, r.present = d, true
		if !d.Healthy {
			r.recovers = true
		}
	}
	for id, r := range h.records {
		if r.present && !present[id] {
			r.present, r.recovers, r.since = false, true, now
		}
	}
}

// evaluate returns the devices with the health that kubelet is to be told, sorted by NIC and queue, what changed since
// the last time, and when to evaluate again though nothing is updated (zero: never).
func (h *health) evaluate(now time.Time) (list []Device, changes []change, next time.Time) {
	for id, r := range h.records {
		held := now.Sub(r.since) < h.hold
		if held && r.recovers && (r.device.Healthy || !r.present) {
			if due := r.since.Add(h.hold); next.IsZero() || due.Before(next) {
				next = due
			}
		}
		if !r.present {
			if r.announced {
				r.announced, r.reason = false, "gone"
				changes = append(changes, change{id, false, r.reason})
			}
			if !held {
				delete(h.records, id)
			}
			continue
		}
		switch {
		case !r.device.Healthy:
			reason := cmp.Or(r.device.Reason, "no reason given")
			if r.announced || r.reason != reason {
				changes = append(changes, change{id, false, reason})
			}
			r.announced, r.reason = false, reason
		case !r.recovers || !held:
			if !r.announced {
				changes = append(changes, change{device: id, healthy: true})
			}
			r.announced, r.recovers, r.reason = true, false, ""
		}
		d := r.device
		d.Healthy = r.announced
		list = append(list, d)
	}
	slices.SortFunc(list, compareDevices)
	slices.SortFunc(changes, func(a, b change) int { return cmp.Compare(a.device, b.device) })
	return list, changes, next
}

// find returns a device as last reported, without hold.
func (h *health) find(id string) (Device, bool) {
	r := h.records[id]
	if r == nil || !r.present {
		return Device{}, false
	}
	return r.device, true
}

func compareDevices(a, b Device) int {
	return cmp.Or(cmp.Compare(a.NIC, b.NIC), cmp.Compare(a.Queue, b.Queue), cmp.Compare(a.ID, b.ID))
}
