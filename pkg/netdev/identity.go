package netdev

// Identity is what makes a NIC the same one later, in the life of one network namespace. It is comparable and is meant
// to be stored; use [Same] to compare it with a NIC, since a name may change.
type Identity struct {
	Name  string `json:"name"`
	Index int    `json:"index"`
	// PCI is the address of the NIC's PCI function, "" for none.
	PCI string `json:"pci,omitempty"`
	// PermMAC is the NIC's permanent address, "" for none.
	PermMAC string `json:"permMAC,omitempty"`
	// MAC is the present address of a NIC that has neither PCI nor PermMAC (veth); else "".
	MAC string `json:"mac,omitempty"`
}

// Identity returns what to keep of a link in order to know it again.
func (l Link) Identity() Identity {
	id := Identity{Name: l.Name, Index: l.Index, PCI: l.PCI, PermMAC: l.PermMAC.String()}
	if id.PCI == "" && id.PermMAC == "" {
		id.MAC = l.MAC.String()
	}
	return id
}

// Same reports whether a link is the NIC that an identity was taken of, in the same network namespace.
//
// The interface index must be the same: a NIC that goes away and comes back gets another, and starts clean. But an
// index can be chosen when a device is made or moved in, so the device must be the same too: PCI address and permanent
// address must agree where both sides have them, and one of the two must be there. The name may differ, and so may the
// present address. A software device such as a veth has neither; it is known by its present address, which is random
// for each new one. If somebody changes the address of a veth, it therefore counts as made anew.
func Same(l Link, id Identity) bool {
	if l.Index != id.Index {
		return false
	}
	now := l.Identity()
	known := false
	for _, p := range [][2]string{{now.PCI, id.PCI}, {now.PermMAC, id.PermMAC}, {now.MAC, id.MAC}} {
		if p[0] == "" || p[1] == "" {
			continue
		}
		if p[0] != p[1] {
			return false
		}
		known = true
	}
	return known
}
