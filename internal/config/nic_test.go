package config

import "testing"

var testNIC = NIC{
	Name: "ens1f0", Driver: "ice", PCI: "0000:3b:00.0", MAC: "02:00:00:00:00:10", NUMANode: 1, Queues: 4,
}

func TestSelectorMatchesAndNames(t *testing.T) {
	unknown := NIC{Name: "veth0", Driver: "veth", MAC: "02:00:00:00:00:11", NUMANode: -1, Queues: 1}
	tests := []struct {
		name           string
		s              Selector
		nic            NIC
		matches, names bool
	}{
		{"nothing given", Selector{}, testNIC, false, false},
		{"exact name", Selector{Names: []string{"ens1f0"}}, testNIC, true, true},
		{"another name", Selector{Names: []string{"ens1f1"}}, testNIC, false, false},
		{"a name is no prefix", Selector{Names: []string{"ens1f"}}, testNIC, false, false},
		{"star", Selector{Names: []string{"ens*"}}, testNIC, true, false},
		{"question mark", Selector{Names: []string{"ens1f?"}}, testNIC, true, false},
		{"class", Selector{Names: []string{"ens[0-9]f0"}}, testNIC, true, false},
		{"escape", Selector{Names: []string{`ens1f\0`}}, testNIC, true, false},
		{"glob and exact name", Selector{Names: []string{"*", "ens1f0"}}, testNIC, true, true},
		{"glob and the exact name of another", Selector{Names: []string{"*", "ens1f1"}}, testNIC, true, false},
		{"driver", Selector{Drivers: []string{"veth", "ice"}}, testNIC, true, false},
		{"another driver", Selector{Drivers: []string{"i40e"}}, testNIC, false, false},
		{"exact PCI address", Selector{PCI: []string{"0000:3b:00.0"}}, testNIC, true, true},
		{"PCI address in upper case", Selector{PCI: []string{"0000:3B:00.0"}}, testNIC, true, true},
		{"PCI glob", Selector{PCI: []string{"0000:3b:00.*"}}, testNIC, true, false},
		{"any PCI device, but it is none", Selector{PCI: []string{"*"}}, unknown, false, false},
		{"MAC", Selector{MACs: []string{"02:00:00:00:00:10"}}, testNIC, true, true},
		{"another MAC", Selector{MACs: []string{"02:00:00:00:00:11"}}, testNIC, false, false},
		{"NUMA node", Selector{NUMANodes: []int{0, 1}}, testNIC, true, false},
		{"another NUMA node", Selector{NUMANodes: []int{0}}, testNIC, false, false},
		{"NUMA node not known", Selector{NUMANodes: []int{0}}, unknown, false, false},
		{"all criteria hold", Selector{Names: []string{"ens*"}, Drivers: []string{"ice"}, NUMANodes: []int{1}},
			testNIC, true, false},
		{"one does not", Selector{Names: []string{"ens1f0"}, Drivers: []string{"i40e"}}, testNIC, false, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.s.Matches(tt.nic); got != tt.matches {
				t.Errorf("Matches = %v", got)
			}
			if got := tt.s.NamesExplicitly(tt.nic); got != tt.names {
				t.Errorf("NamesExplicitly = %v", got)
			}
		})
	}
}
