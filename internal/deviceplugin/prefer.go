package deviceplugin

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// prefer picks n of the available devices, those of must among them. The rest is taken NIC by NIC:
//
//  1. The next NIC is one that has a picked device already; else one on the NUMA node of a picked device; else any.
//  2. Among those, if some have enough free devices for all that is missing, it is the one with the fewest, so that
//     NICs with many free queues stay whole for pods that need many; else the one with the most.
//  3. Where nothing narrows the choice (any NIC, none has enough), only the NICs of one NUMA node are looked at:
//     of the nodes with enough free devices the one with the fewest, else the one with the most. NICs without a
//     node are each a node of their own.
//  4. On the NIC it is the run of free queues that lies in the narrowest range, together with the devices picked there
//     already; of equal ones the lowest.
//
// Ties go to the first NIC by name and to the lowest node. A device that the pool does not know counts as the only one
// of a NIC. The result is sorted by NIC and queue and depends on nothing but the arguments.
func prefer(find func(id string) (Device, bool), available, must []string, n int) ([]string, error) {
	resolve := func(id string) Device {
		if d, ok := find(id); ok {
			return d
		}
		return Device{ID: id, NIC: id, NUMANode: -1}
	}
	free := make(map[string]Device, len(available))
	for _, id := range available {
		free[id] = resolve(id)
	}
	if n < 0 || n > len(free) {
		return nil, fmt.Errorf("%d devices asked for, %d are available", n, len(free))
	}
	var picked []Device
	for _, id := range must {
		if _, ok := free[id]; !ok {
			return nil, fmt.Errorf("device %q must be included but is not available, or is listed twice", id)
		}
		picked = append(picked, free[id])
		delete(free, id)
	}
	if len(picked) > n {
		return nil, fmt.Errorf("%d devices must be included, %d are asked for", len(picked), n)
	}
	nics := make(map[string][]Device)
	for _, d := range slices.SortedFunc(maps.Values(free), compareDevices) {
		nics[d.NIC] = append(nics[d.NIC], d)
	}
	for missing := n - len(picked); missing > 0; missing = n - len(picked) {
		nic := nextNIC(nics, picked, missing)
		picked = append(picked, narrowest(nics[nic], picked, missing)...)
		delete(nics, nic)
	}
	slices.SortFunc(picked, compareDevices)
	ids := make([]string, len(picked))
	for i, d := range picked {
		ids[i] = d.ID
	}
	return ids, nil
}

// group is a set of NICs with free devices: a single one, or those of a NUMA node.
type group struct {
	name string
	node int
	free int
}

// fitting orders groups by how well they can give n devices, the best first.
func fitting(n int) func(a, b group) int {
	return func(a, b group) int {
		switch {
		case a.free >= n && b.free >= n:
			return cmp.Or(cmp.Compare(a.free, b.free), cmp.Compare(a.node, b.node), cmp.Compare(a.name, b.name))
		case a.free >= n:
			return -1
		case b.free >= n:
			return 1
		}
		return cmp.Or(cmp.Compare(b.free, a.free), cmp.Compare(a.node, b.node), cmp.Compare(a.name, b.name))
	}
}

func nextNIC(nics map[string][]Device, picked []Device, n int) string {
	var all []group
	for name, devices := range nics {
		all = append(all, group{name: name, node: devices[0].NUMANode, free: len(devices)})
	}
	best := func(keep func(g group) bool) (group, bool) {
		kept := slices.DeleteFunc(slices.Clone(all), func(g group) bool { return !keep(g) })
		for i := range kept {
			kept[i].node = 0 // a tie goes to the name
		}
		if len(kept) == 0 {
			return group{}, false
		}
		return slices.MinFunc(kept, fitting(n)), true
	}
	sharing := func(same func(g group, d Device) bool) func(g group) bool {
		return func(g group) bool {
			return slices.ContainsFunc(picked, func(d Device) bool { return same(g, d) })
		}
	}
	if g, ok := best(sharing(func(g group, d Device) bool { return g.name == d.NIC })); ok {
		return g.name
	}
	if g, ok := best(sharing(func(g group, d Device) bool { return g.node >= 0 && g.node == d.NUMANode })); ok {
		return g.name
	}
	anyNIC, _ := best(func(group) bool { return true })
	if anyNIC.free >= n {
		return anyNIC.name
	}
	nodes := make(map[group]int) // free devices by node, or by NIC where it has none
	nodeOf := func(g group) group {
		if g.node >= 0 {
			return group{node: g.node}
		}
		return group{name: g.name, node: -1}
	}
	for _, g := range all {
		nodes[nodeOf(g)] += g.free
	}
	var totals []group
	for node, free := range nodes {
		node.free = free
		totals = append(totals, node)
	}
	node := slices.MinFunc(totals, fitting(n))
	node.free = 0
	g, _ := best(func(g group) bool { return nodeOf(g) == node })
	return g.name
}

// narrowest returns at most n of the free devices of one NIC, which are sorted by queue.
func narrowest(free, picked []Device, n int) []Device {
	if len(free) <= n {
		return free
	}
	low, high, anchored := 0, 0, false
	for _, d := range picked {
		if d.NIC == free[0].NIC {
			if !anchored {
				low, high, anchored = d.Queue, d.Queue, true
			}
			low, high = min(low, d.Queue), max(high, d.Queue)
		}
	}
	best, bestRange := 0, -1
	for i := range len(free) - n + 1 {
		from, to := free[i].Queue, free[i+n-1].Queue
		if anchored {
			from, to = min(from, low), max(to, high)
		}
		if bestRange < 0 || to-from < bestRange {
			best, bestRange = i, to-from
		}
	}
	return free[best : best+n]
}
