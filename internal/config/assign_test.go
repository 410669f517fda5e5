package config

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func pool(name, queues string, s Selector) Pool {
	p := DefaultPool()
	p.Name, p.NICs = name, s
	var err error
	if p.Queues, err = ParseQueueSet(queues); err != nil {
		panic(err)
	}
	return p
}

func named(names ...string) Selector { return Selector{Names: names} }

// show writes an assignment as "pool: id id" in the order of names, one pool a line.
func show(assigned map[string][]Device) string {
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(assigned)) {
		line := name + ":"
		for _, d := range assigned[name] {
			line += " " + d.ID()
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

func showProblems(problems []Problem) string {
	var lines []string
	for _, p := range problems {
		lines = append(lines, fmt.Sprintf("[%s/%s] %s", p.NIC, p.Queues, p))
	}
	return strings.Join(lines, "\n")
}

const leftToNode = " is left out because it has the default route: to take it all the same, name it exactly in nics"

func TestAssign(t *testing.T) {
	node := []NIC{
		{Name: "eth0", Driver: "ice", MAC: "02:00:00:00:00:01", NUMANode: -1, Queues: 2,
			UplinkReason: "has the default route"},
		{Name: "eth1", Driver: "ice", MAC: "02:00:00:00:00:02", NUMANode: 0, Queues: 4},
		{Name: "eth2", Driver: "veth", MAC: "02:00:00:00:00:03", NUMANode: 1, Queues: 1},
	}
	tests := []struct {
		name               string
		pools              []Pool
		nics               []NIC
		assigned, problems string
	}{
		{"all queues of what matches, in order", []Pool{pool("a", "all", named("eth[12]"))}, node,
			"a: eth1-q0 eth1-q1 eth1-q2 eth1-q3 eth2-q0", ""},
		{"two pools share a NIC by queues", []Pool{pool("a", "0-1", named("eth1")), pool("b", "2-3", named("eth1"))}, node,
			"a: eth1-q0 eth1-q1\nb: eth1-q2 eth1-q3", ""},
		// Field case 7: the node's uplink is refused unless it is named on purpose.
		{"uplink is left to the node", []Pool{pool("a", "0", Selector{Drivers: []string{"ice"}})}, node,
			"a: eth1-q0",
			`[eth0/all] pool "a": eth0` + leftToNode},
		// Field case 9: no name is protected as such, and an explicit choice wins.
		{"uplink is taken when named", []Pool{pool("a", "all", named("eth0"))}, node, "a: eth0-q0 eth0-q1", ""},
		{"uplink is taken by MAC", []Pool{pool("a", "0", Selector{MACs: []string{"02:00:00:00:00:01"}})}, node, "a: eth0-q0", ""},
		{"who names the uplink is in no conflict with who does not",
			[]Pool{pool("a", "all", named("eth0")), pool("b", "0", named("eth*", "eth9"))}, node,
			"a: eth0-q0 eth0-q1\nb: eth1-q0 eth2-q0",
			`[/all] pool "b": no NIC of this node has the name eth9` + "\n" +
				`[eth0/all] pool "b": eth0` + leftToNode},
		{"queue in conflict goes to nobody",
			[]Pool{pool("a", "0-2", named("eth1")), pool("b", "2-3", named("eth*")), pool("c", "0", named("eth2"))}, node[1:],
			"a: eth1-q0 eth1-q1\nb: eth1-q3\nc: eth2-q0",
			`[eth1/2] pool "a": queue 2 of eth1 is selected by "b" too: until that is resolved no pool gets it` + "\n" +
				`[eth1/2] pool "b": queue 2 of eth1 is selected by "a" too: until that is resolved no pool gets it` + "\n" +
				`[eth2/2-3] pool "b": queues 2-3 of eth2 do not exist: it has one, queue 0`},
		{"three in conflict",
			[]Pool{pool("a", "0-3", named("eth1")), pool("b", "1-3", named("eth1*")),
				pool("c", "3", Selector{NUMANodes: []int{0}})},
			node[1:], "a: eth1-q0\nb:\nc:",
			`[eth1/1-2] pool "a": queues 1-2 of eth1 are selected by "b" too: until that is resolved no pool gets them` + "\n" +
				`[eth1/3] pool "a": queue 3 of eth1 is selected by "b", "c" too: until that is resolved no pool gets it` + "\n" +
				`[eth1/1-2] pool "b": queues 1-2 of eth1 are selected by "a" too: until that is resolved no pool gets them` + "\n" +
				`[eth1/3] pool "b": queue 3 of eth1 is selected by "a", "c" too: until that is resolved no pool gets it` + "\n" +
				`[eth1/3] pool "c": queue 3 of eth1 is selected by "a", "b" too: until that is resolved no pool gets it`},
		{"queues beyond the NIC's", []Pool{pool("a", "1-3,8", named("eth1")), pool("b", "0,4", named("eth1"))}, node,
			"a: eth1-q1 eth1-q2 eth1-q3\nb: eth1-q0",
			`[eth1/8] pool "a": queue 8 of eth1 does not exist: it has 4, queues 0-3` + "\n" +
				`[eth1/4] pool "b": queue 4 of eth1 does not exist: it has 4, queues 0-3`},
		{"named NICs that are not there",
			[]Pool{pool("a", "all", Selector{
				Names: []string{"eth2", "eth8"}, MACs: []string{"02:00:00:00:00:03", "02:00:00:00:00:99"}}),
				pool("b", "all", Selector{PCI: []string{"0000:3b:00.0"}})}, node,
			"a: eth2-q0\nb:",
			`[/all] pool "a": no NIC of this node has the name eth8` + "\n" +
				`[/all] pool "a": no NIC of this node has the MAC 02:00:00:00:00:99` + "\n" +
				`[/all] pool "b": no NIC of this node has the PCI address 0000:3b:00.0`},
		{"named NIC that another criterion leaves out",
			[]Pool{pool("a", "all", Selector{Names: []string{"eth1", "eth2"}, Drivers: []string{"ice", "i40e"}})}, node,
			"a: eth1-q0 eth1-q1 eth1-q2 eth1-q3",
			`[eth2/all] pool "a": eth2 is left out because its driver is none of ice, i40e`},
		{"nothing selected", []Pool{pool("a", "all", Selector{Drivers: []string{"mlx5_core"}})}, node,
			"a:", `[/all] pool "a": selects no NIC of this node`},
		{"no queue", []Pool{pool("a", "all", named("eth1"))}, []NIC{{Name: "eth1"}},
			"a:", `[eth1/all] pool "a": eth1 has no receive queue`},
		{"no NIC", []Pool{pool("a", "all", named("eth*"))}, nil, "a:", `[/all] pool "a": selects no NIC of this node`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			assigned, problems := (&Config{Pools: tt.pools}).Assign(tt.nics)
			if got := show(assigned); got != tt.assigned {
				t.Errorf("assigned\n%s\nwant\n%s", got, tt.assigned)
			}
			if got := showProblems(problems); got != tt.problems {
				t.Errorf("problems\n%s\nwant\n%s", got, tt.problems)
			}
		})
	}
}

// For random pools and nodes: no device is in two pools, none is invented, whatever one pool alone would get is either
// assigned or named in a problem of it, and neither the order of the pools nor that of the NICs changes who gets what.
func TestAssignIsSoundAndIgnoresOrder(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	selectors := []Selector{named("eth0"), named("eth1"), named("eth*"), named("eth[12]"), {Drivers: []string{"ice"}},
		{NUMANodes: []int{0}}, {Names: []string{"eth0"}, Drivers: []string{"veth"}}}
	queues := []string{"all", "0", "1-2", "0,3", "2-9"}
	for range 3000 {
		var nics []NIC
		for i := range rnd.IntN(4) {
			nic := NIC{Name: fmt.Sprintf("eth%d", i), NUMANode: rnd.IntN(2), Queues: rnd.IntN(6)}
			nic.Driver = []string{"ice", "veth"}[rnd.IntN(2)]
			if rnd.IntN(4) == 0 {
				nic.UplinkReason = "has the default route"
			}
			nics = append(nics, nic)
		}
		cfg := &Config{}
		for i := range 1 + rnd.IntN(4) {
			set, selector := queues[rnd.IntN(len(queues))], selectors[rnd.IntN(len(selectors))]
			cfg.Pools = append(cfg.Pools, pool(string(rune('a'+i)), set, selector))
		}
		assigned, problems := cfg.Assign(nics)
		owner := map[Device]string{}
		for name, devices := range assigned {
			for _, d := range devices {
				i := slices.IndexFunc(nics, func(n NIC) bool { return n.Name == d.NIC })
				p, _ := cfg.Pool(name)
				if i < 0 || d.Queue >= nics[i].Queues || !p.Queues.Contains(d.Queue) || !p.NICs.Matches(nics[i]) {
					t.Fatalf("pool %s was given %v, which is not its own", name, d)
				}
				if nics[i].UplinkReason != "" && !p.NICs.NamesExplicitly(nics[i]) {
					t.Fatalf("pool %s was given the uplink", name)
				}
				if owner[d] != "" {
					t.Fatalf("%v is in %s and %s", d, owner[d], name)
				}
				owner[d] = name
			}
		}
		for _, p := range cfg.Pools {
			alone, _ := (&Config{Pools: []Pool{p}}).Assign(nics)
			for _, d := range alone[p.Name] {
				named := slices.ContainsFunc(problems, func(q Problem) bool {
					return q.Pool == p.Name && q.NIC == d.NIC && q.Queues.Contains(d.Queue)
				})
				if (owner[d] == p.Name) == named {
					t.Fatalf("pool %s, %v: assigned to %q, problem %v", p.Name, d, owner[d], named)
				}
			}
		}
		want, wantProblems := show(assigned), strings.Count(showProblems(problems), "\n")
		rnd.Shuffle(len(nics), func(i, j int) { nics[i], nics[j] = nics[j], nics[i] })
		if again, p := cfg.Assign(nics); show(again) != want || showProblems(p) != showProblems(problems) {
			t.Fatalf("another order of NICs gave\n%s\nnot\n%s", show(again), want)
		}
		rnd.Shuffle(len(cfg.Pools), func(i, j int) { cfg.Pools[i], cfg.Pools[j] = cfg.Pools[j], cfg.Pools[i] })
		if again, p := cfg.Assign(nics); show(again) != want || strings.Count(showProblems(p), "\n") != wantProblems {
			t.Fatalf("another order of pools gave\n%s\nnot\n%s", show(again), want)
		}
	}
}

func TestPoolsThatMayDifferOnANodeAreAccepted(t *testing.T) {
	for name, pools := range map[string]string{
		"queues apart": "- {name: a, nics: {names: [eth1]}, queues: 0-1}\n" +
			"- {name: b, nics: {names: [eth1]}, queues: 2-3}\n",
		"names apart": "- {name: a, nics: {names: [eth1]}}\n" +
			"- {name: b, nics: {names: [eth2]}}\n",
		"glob and name": "- {name: a, nics: {names: [eth1]}}\n" +
			"- {name: b, nics: {names: ['eth*']}}\n",
		"another criterion": "- {name: a, nics: {names: [eth1]}}\n" +
			"- {name: b, nics: {names: [eth1], drivers: [ice]}}\n",
		"drivers apart": "- {name: a, nics: {names: [eth1], drivers: [ice]}}\n" +
			"- {name: b, nics: {names: [eth1], drivers: [veth]}}\n",
		"two criteria differ": "- {name: a, nics: {names: [eth1], drivers: [ice]}}\n" +
			"- {name: b, nics: {names: [eth1, eth2], drivers: [ice, veth]}}\n",
		"one by name, one by PCI": "- {name: a, nics: {names: [eth1]}}\n" +
			"- {name: b, nics: {pci: ['0000:00:01.0']}}\n",
	} {
		t.Run(name, func(t *testing.T) { mustParse(t, head+pools) })
	}
}
