package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Device is one queue of one NIC.
type Device struct {
	NIC   string
	Queue int
}

// ID returns what kubelet calls the device, for example "eth1-q2".
func (d Device) ID() string { return fmt.Sprintf("%s-q%d", d.NIC, d.Queue) }

// Problem is something in the configuration that does not fit the node. It costs the pool the queues that it names and
// nothing else.
type Problem struct {
	Pool   string
	NIC    string   // empty when it concerns no NIC that is there
	Queues QueueSet // of NIC; all when the whole NIC is concerned
	Msg    string   // names NIC and queues, not the pool
}

// String returns pool and message.
func (p Problem) String() string { return fmt.Sprintf("pool %q: %s", p.Pool, p.Msg) }

// Assign shares out the queues of the node's NICs, whose names differ. Each pool has an entry in the map, with its
// devices ordered by NIC and queue. The problems are ordered by pool as in the file, then by NIC. The order of nics
// changes nothing, and that of the pools not who gets what.
//
// No problem takes anything from a pool that it does not concern:
//
//   - A NIC that the node needs (its uplink) is left out of a pool that does not name it. So it can conflict only
//     between pools that do.
//   - Queues that the NIC does not have are left out; the pool gets the others.
//   - A queue that several pools select goes to none of them. Any rule of precedence would move queues from one
//     resource to another when a NIC is plugged or a criterion edited, under pods that run; without one the mistake
//     shows at once and costs only the queues in question.
//   - A NIC that a pool names (by name, PCI address or MAC) and that is not there, or that another criterion of the
//     pool leaves out, is only reported, as is a pool that selects nothing: one configuration serves nodes that differ.
func (c *Config) Assign(nics []NIC) (map[string][]Device, []Problem) {
	nics = slices.Clone(nics)
	slices.SortFunc(nics, func(a, b NIC) int { return cmp.Compare(a.Name, b.Name) })

	problems := make([][]Problem, len(c.Pools))
	wanted := make([][]Device, len(c.Pools))
	wantedBy := map[Device][]int{} // indexes of pools, ascending
	for i, p := range c.Pools {
		wanted[i], problems[i] = p.want(nics)
		for _, d := range wanted[i] {
			wantedBy[d] = append(wantedBy[d], i)
		}
	}

	assigned := make(map[string][]Device, len(c.Pools))
	var all []Problem
	for i, p := range c.Pools {
		devices := []Device{}
		for _, d := range wanted[i] {
			if len(wantedBy[d]) == 1 {
				devices = append(devices, d)
			}
		}
		assigned[p.Name] = devices
		problems[i] = append(problems[i], c.conflicts(i, wanted[i], wantedBy)...)
		slices.SortStableFunc(problems[i], func(a, b Problem) int { return cmp.Compare(a.NIC, b.NIC) })
		all = append(all, problems[i]...)
	}
	return assigned, all
}

// want returns the queues that a pool selects, whatever other pools do.
func (p Pool) want(nics []NIC) (devices []Device, problems []Problem) {
	report := func(nic string, queues QueueSet, format string, args ...any) {
		problems = append(problems, Problem{p.Name, nic, queues, fmt.Sprintf(format, args...)})
	}
	for _, nic := range nics {
		switch {
		case !p.NICs.Matches(nic):
			continue
		case nic.UplinkReason != "" && !p.NICs.NamesExplicitly(nic):
			report(nic.Name, QueueSet{}, "%s is left out because it %s: to take it all the same, name it exactly in nics",
				nic.Name, nic.UplinkReason)
			continue
		case nic.Queues <= 0:
			report(nic.Name, QueueSet{}, "%s has no receive queue", nic.Name)
			continue
		}
		have, beyond, ok := p.Queues.Within(nic.Queues)
		if !ok {
			report(nic.Name, beyond, "%s %s not exist: it has %s", describeQueuesOf(beyond, nic.Name),
				plural(beyond, "does", "do"), count(nic.Queues))
		}
		for _, q := range have {
			devices = append(devices, Device{nic.Name, q})
		}
	}
	p.missing(nics, report)
	if len(devices) == 0 && len(problems) == 0 {
		report("", QueueSet{}, "selects no NIC of this node")
	}
	return devices, problems
}

// missing reports the NICs that a pool names and does not get.
func (p Pool) missing(nics []NIC, report func(nic string, queues QueueSet, format string, args ...any)) {
	criteria := p.NICs.criteria()
	for _, c := range criteria {
		for _, v := range c.exact() {
			i := slices.IndexFunc(nics, func(nic NIC) bool { return c.hit(v, nic) })
			if i < 0 {
				report("", QueueSet{}, "no NIC of this node has the %s %s", c.noun, v)
				continue
			}
			for _, other := range criteria {
				if !other.accepts(nics[i]) {
					report(nics[i].Name, QueueSet{}, "%s is left out because its %s is none of %s", nics[i].Name, other.noun,
						strings.Join(other.values, ", "))
				}
			}
		}
	}
}

// conflicts reports the queues that pool i selects and others too, one problem for each NIC and set of pools.
func (c *Config) conflicts(i int, wanted []Device, wantedBy map[Device][]int) []Problem {
	type group struct{ nic, others string }
	queues := map[group][]int{}
	var order []group
	for _, d := range wanted {
		var others []string
		for _, j := range wantedBy[d] {
			if j != i {
				others = append(others, fmt.Sprintf("%q", c.Pools[j].Name))
			}
		}
		if len(others) == 0 {
			continue
		}
		g := group{d.NIC, strings.Join(others, ", ")}
		if queues[g] == nil {
			order = append(order, g)
		}
		queues[g] = append(queues[g], d.Queue)
	}
	problems := make([]Problem, len(order))
	for k, g := range order {
		set := NewQueueSet(queues[g]...)
		problems[k] = Problem{c.Pools[i].Name, g.nic, set, fmt.Sprintf("%s %s selected by %s too: until that is resolved "+
			"no pool gets %s", describeQueuesOf(set, g.nic), plural(set, "is", "are"), g.others, plural(set, "it", "them"))}
	}
	return problems
}

func describeQueuesOf(q QueueSet, nic string) string { return describeQueues(q) + " of " + nic }

func plural(q QueueSet, one, many string) string {
	if strings.HasPrefix(describeQueues(q), "queue ") {
		return one
	}
	return many
}

func count(queues int) string {
	if queues == 1 {
		return "one, queue 0"
	}
	return fmt.Sprintf("%d, queues 0-%d", queues, queues-1)
}
