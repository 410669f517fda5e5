package config

import (
	"fmt"
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
	for n, j := range sound {
		for _, i := range sound[:n] {
			what, ok := overlap(cfg.Pools[i], cfg.Pools[j])
			if !ok {
				continue
			}
			f := poolField(j) + ".nics"
			r.report(r.at(f), f, "selects what pool %q (line %d) selects: %s",
				cfg.Pools[i].Name, r.at(poolField(i)+".nics").line, what)
		}
	}
}

// overlap reports whether two pools certainly select the same queues: one criterion has an entry in common and all
// others are the same, so that a NIC that this entry lets into one pool is let into the other.
func overlap(a, b Pool) (what string, ok bool) {
	queues, ok := a.Queues.Intersect(b.Queues)
	if !ok {
		return "", false
	}
	listsA, listsB := a.NICs.criteria(), b.NICs.criteria()
	different := -1
	for k := range listsA {
		if sameEntries(listsA[k].values, listsB[k].values) {
			continue
		}
		if different >= 0 {
			return "", false
		}
		different = k
	}
	if different >= 0 {
		common := commonEntries(listsA[different].values, listsB[different].values)
		if len(common) == 0 {
			return "", false
		}
		return fmt.Sprintf("%s %s, %s", listsA[different].noun, strings.Join(common, ", "), describeQueues(queues)), true
	}
	return "the same NICs, " + describeQueues(queues), true
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

func sameEntries(a, b []string) bool {
	return len(a) == len(b) && len(commonEntries(a, b)) == len(a)
}

func commonEntries(a, b []string) []string {
	in := make(map[string]bool, len(b))
	for _, v := range b {
		in[v] = true
	}
	return slices.DeleteFunc(slices.Clone(a), func(v string) bool { return !in[v] })
}
