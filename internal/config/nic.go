package config

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

// Matches reports whether the selector chooses a NIC. Nothing is chosen without a criterion.
func (s Selector) Matches(nic NIC) bool { panic("not yet") }

// NamesExplicitly reports whether the selector chooses a NIC by naming it: by its exact name (without any glob
// character), its exact PCI address or its MAC. Only such a pool may take the node's uplink.
func (s Selector) NamesExplicitly(nic NIC) bool { panic("not yet") }
