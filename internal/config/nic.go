package config

import (
	"path"
	"slices"
	"strconv"
	"strings"
)

// NIC is what selection looks at in a network device of the node.
type NIC struct {
	Name     string
	Driver   string // as ethtool -i shows it, for example "ice" or "veth"
	PCI      string // address with domain, for example "0000:3b:00.0"; empty for a NIC that is no PCI device
	MAC      string // the permanent address where the NIC has one, else the current one
	NUMANode int    // -1 when not known
	Queues   int    // how many rx queues it has now
	// UplinkReason says why the node needs the NIC ("has the default route", "has the node's address"). Empty: it does
	// not. A NIC with a reason goes only to a pool that names it: see [Selector.NamesExplicitly].
	UplinkReason string
}

// Selector chooses NICs. All criteria that are given must hold; within a list any entry may. At least one is given.
type Selector struct {
	// Names are interface names or shell globs in the syntax of [path.Match]. Alternative names are not looked at.
	Names []string `yaml:"names"`
	// Drivers are names of kernel drivers, exact.
	Drivers []string `yaml:"drivers"`
	// PCI are addresses with domain, lower case, or globs of them.
	PCI []string `yaml:"pci"`
	// MACs are 6-byte Ethernet addresses, lower case with colons.
	MACs []string `yaml:"macs"`
	// NUMANodes are NUMA nodes, 0 to [MaxNUMANode]. A NIC whose node is not known (-1) matches none.
	NUMANodes []int `yaml:"numaNodes"`
}

// criterion is one list of a selector, under its name in the file.
type criterion struct {
	name, noun string
	values     []string
}

// criteria returns the lists of the selector, the empty ones too, always in the same order.
func (s Selector) criteria() []criterion {
	nodes := make([]string, len(s.NUMANodes))
	for i, n := range s.NUMANodes {
		nodes[i] = strconv.Itoa(n)
	}
	return []criterion{
		{"names", "name", s.Names},
		{"drivers", "driver", s.Drivers},
		{"pci", "PCI address", s.PCI},
		{"macs", "MAC", s.MACs},
		{"numaNodes", "NUMA node", nodes},
	}
}

// accepts reports whether the criterion holds for a NIC. An empty one always does.
func (c criterion) accepts(nic NIC) bool {
	return len(c.values) == 0 || slices.ContainsFunc(c.values, func(v string) bool { return c.hit(v, nic) })
}

// hit reports whether one value of the criterion stands for a NIC.
func (c criterion) hit(value string, nic NIC) bool {
	switch c.name {
	case "names":
		ok, err := path.Match(value, nic.Name)
		return err == nil && ok
	case "drivers":
		return value == nic.Driver
	case "pci":
		ok, err := path.Match(strings.ToLower(value), strings.ToLower(nic.PCI))
		return err == nil && ok && nic.PCI != ""
	case "macs":
		return strings.EqualFold(value, nic.MAC)
	default:
		return value == strconv.Itoa(nic.NUMANode)
	}
}

// exact returns the values that can stand for one NIC only.
func (c criterion) exact() []string {
	switch c.name {
	case "names", "pci":
		return slices.DeleteFunc(slices.Clone(c.values), isGlob)
	case "macs":
		return c.values
	}
	return nil
}

func isGlob(s string) bool { return strings.ContainsAny(s, `*?[\`) }

// Matches reports whether the selector chooses a NIC. Nothing is chosen without a criterion.
func (s Selector) Matches(nic NIC) bool {
	given := false
	for _, c := range s.criteria() {
		if !c.accepts(nic) {
			return false
		}
		given = given || len(c.values) > 0
	}
	return given
}

// NamesExplicitly reports whether the selector chooses a NIC by naming it: by its exact name (without any glob
// character), its exact PCI address or its MAC. Only such a pool may take the node's uplink.
func (s Selector) NamesExplicitly(nic NIC) bool {
	return s.Matches(nic) && slices.ContainsFunc(s.criteria(), func(c criterion) bool {
		return slices.ContainsFunc(c.exact(), func(v string) bool { return c.hit(v, nic) })
	})
}
