package config

import (
	"slices"
	"strings"
)

// collisions reports pools that would share a resource name or an environment variable.
func (r *reader) collisions(cfg *Config) {
	byName, byEnv := map[string]int{}, map[string]int{}
	for i, p := range cfg.Pools {
		f := poolField(i) + ".name"
		if _, given := r.places[f]; !given || r.hasErrors(f) {
			continue
		}
		line := func(i int) int { return r.at(poolField(i) + ".name").line }
		if first, ok := byName[p.Name]; ok {
			r.report(r.at(f), f, "%q is already the name of the pool in line %d", p.Name, line(first))
			continue
		}
		byName[p.Name] = i
		if first, ok := byEnv[p.EnvName()]; ok {
			r.report(r.at(f), f, "%q would share the environment variable %s with pool %q (line %d)",
				p.Name, p.EnvName(), cfg.Pools[first].Name, line(first))
			continue
		}
		byEnv[p.EnvName()] = i
	}
}

// overlaps reports pairs of pools that select the same queues on every node that has the NIC. Those that depend on the
// node are found by Assign.
func (r *reader) overlaps(cfg *Config) {
	var sound []int
	for i := range cfg.Pools {
		f := poolField(i)
		if !r.hasErrors(f+".nics") && !r.hasErrors(f+".queues") && !r.hasErrors(f+".name") {
			sound = append(sound, i)
		}
	}
	sorted := make([][]criterion, len(cfg.Pools))
	for _, i := range sound {
		sorted[i] = cfg.Pools[i].NICs.criteria()
		for k, c := range sorted[i] {
			sorted[i][k].values = slices.Sorted(slices.Values(c.values))
		}
	}
	for n, j := range sound {
		for _, i := range sound[:n] {
			queues, ok := cfg.Pools[i].Queues.Intersect(cfg.Pools[j].Queues)
			if !ok {
				continue
			}
			what, ok := overlap(sorted[i], sorted[j])
			if !ok {
				continue
			}
			f := poolField(j) + ".nics"
			r.report(r.at(f), f, "selects what pool %q (line %d) selects: %s, %s",
				cfg.Pools[i].Name, r.at(poolField(i)+".nics").line, what, describeQueues(queues))
		}
	}
}

// overlap reports whether two pools, by their sorted criteria, certainly select the same NIC if the node has it, and
// what that is: one criterion has an entry in common and all others are the same, so that a NIC that this entry lets
// into one pool is let into the other.
func overlap(a, b []criterion) (what string, ok bool) {
	different := -1
	for k := range a {
		if slices.Equal(a[k].values, b[k].values) {
			continue
		}
		if different >= 0 {
			return "", false
		}
		different = k
	}
	if different < 0 {
		return "the same NICs", true
	}
	common := commonEntries(a[different].values, b[different].values)
	return a[different].noun + " " + strings.Join(common, ", "), len(common) > 0
}

func describeQueues(q QueueSet) string {
	if q.All() {
		return "all queues"
	}
	if last, _ := q.Max(); q.Equal(NewQueueSet(last)) {
		return "queue " + q.String()
	}
	return "queues " + q.String()
}

// commonEntries returns what two sorted lists have in common.
func commonEntries(a, b []string) (common []string) {
	for len(a) > 0 && len(b) > 0 {
		switch c := strings.Compare(a[0], b[0]); {
		case c < 0:
			a = a[1:]
		case c > 0:
			b = b[1:]
		default:
			common = append(common, a[0])
			a, b = a[1:], b[1:]
		}
	}
	return common
}
