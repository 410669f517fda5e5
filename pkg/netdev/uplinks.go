package netdev

import (
	"fmt"
	"slices"
)

// Uplinks returns the NICs that carry the node's own traffic, by interface index, each with the reason in words: those
// of the default routes (main table, IPv4 and IPv6, each next hop) and those with an address of global scope; then
// what these are made of: the ports of a bond, bridge, team or switch, the device under a VLAN or macvlan. Loopback is
// never among them.
func (h *Handle) Uplinks() (map[int]string, error) {
	links, err := h.rawLinks()
	if err != nil {
		return nil, fmt.Errorf("find uplinks: %w", err)
	}
	hops, err := h.defaultHops()
	if err != nil {
		return nil, fmt.Errorf("find uplinks: %w", err)
	}
	addresses, err := h.globalAddresses()
	if err != nil {
		return nil, fmt.Errorf("find uplinks: %w", err)
	}
	return uplinks(links, hops, addresses), nil
}

func uplinks(links []rawLink, hops []hop, addresses []address) map[int]string {
	reasons := map[int]string{}
	byIndex := map[int]*rawLink{}
	for i := range links {
		byIndex[links[i].Index] = &links[i]
	}
	var queue []int
	// What a NIC has counts for more than what it is part of, and the first reason stays.
	add := func(index int, reason string) {
		l := byIndex[index]
		if l == nil || l.Loopback || reasons[index] != "" {
			return
		}
		reasons[index] = reason
		queue = append(queue, index)
	}
	for _, n := range hops {
		if n.gateway.IsValid() {
			add(n.index, "default route via "+n.gateway.String())
		} else {
			add(n.index, "default route")
		}
	}
	for _, a := range addresses {
		add(a.index, "address "+a.prefix.String())
	}
	owners := len(queue)
	for i := 0; i < len(queue); i++ {
		upper := byIndex[queue[i]]
		which := fmt.Sprintf("%s, which is a %s", upper.Name, reasons[upper.Index])
		if i < owners {
			which = fmt.Sprintf("%s, which has the %s", upper.Name, reasons[upper.Index])
		}
		for j := range links {
			if links[j].master == upper.Index {
				add(links[j].Index, "port of "+which)
			}
		}
		if upper.stacked() {
			add(upper.lower, "lower device of "+which)
		}
		// Open vSwitch: the address is on an internal port, and the NIC another port of the same datapath.
		if upper.Kind == "openvswitch" && upper.master != 0 {
			add(upper.master, "switch of "+which)
		}
	}
	return reasons
}

// stacked reports whether the device sends through the one that its link message names, in this network namespace. For
// a pair it names the other end.
func (l *rawLink) stacked() bool {
	pair := slices.Contains([]string{"veth", "netkit", "vxcan"}, l.Kind)
	return l.lower != 0 && l.lower != l.Index && !l.lowerElsewhere && !pair
}
