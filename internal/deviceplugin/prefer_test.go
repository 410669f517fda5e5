package deviceplugin

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// inventory makes devices from words like "a/1:0-3,6", NIC a on NUMA node 1 with queues 0 to 3 and 6; the ids are "a0".
func inventory(t *testing.T, words string) map[string]Device {
	t.Helper()
	out := make(map[string]Device)
	for _, word := range strings.Fields(words) {
		nic, rest, _ := strings.Cut(word, "/")
		nodeText, queues, _ := strings.Cut(rest, ":")
		node := 0
		if _, err := fmt.Sscan(nodeText, &node); err != nil {
			t.Fatal(err)
		}
		for _, part := range strings.Split(queues, ",") {
			var from, to int
			if n, _ := fmt.Sscanf(part, "%d-%d", &from, &to); n == 1 {
				to = from
			}
			for q := from; q <= to; q++ {
				id := fmt.Sprintf("%s%d", nic, q)
				out[id] = Device{ID: id, NIC: nic, NUMANode: node, Queue: q, Healthy: true}
			}
		}
	}
	return out
}

func finder(devices map[string]Device) func(string) (Device, bool) {
	return func(id string) (Device, bool) { d, ok := devices[id]; return d, ok }
}

func ids(devices map[string]Device) []string {
	var out []string
	for id := range devices { // in no order, as kubelet's
		out = append(out, id)
	}
	return out
}

func TestPreferredDevices(t *testing.T) {
	for name, tc := range map[string]struct {
		devices string
		must    string
		n       int
		want    string
	}{
		"one NIC":                          {"a/0:0-3 b/0:0-3", "", 4, "a0 a1 a2 a3"},
		"the tightest NIC that holds all":  {"a/0:0-7 b/0:0-2 c/0:0", "", 2, "b0 b1"},
		"a single one from the smallest":   {"a/0:0-7 b/0:5", "", 1, "b5"},
		"neighbouring queues":              {"a/0:0,2,5-7,9", "", 3, "a5 a6 a7"},
		"the lowest of equal runs":         {"a/0:1,2,5,6", "", 2, "a1 a2"},
		"next to what must be":             {"a/0:0-1,5-7", "a6", 2, "a5 a6"},
		"on both sides of what must be":    {"a/0:0-1,5,6,7", "a6", 3, "a5 a6 a7"},
		"the NIC of what must be":          {"a/0:0-7 b/0:0-1", "a3", 3, "a1 a2 a3"},
		"the fitting NIC of what must be":  {"a/0:0-1 b/0:0-3", "a0 b0", 4, "a0 b0 b1 b2"},
		"more than that NIC, same node":    {"a/1:0-1 b/0:0-1 c/1:0-3", "a0", 3, "a0 a1 c0"},
		"no NIC holds all, one node does":  {"a/0:0-3 b/1:0-2 c/1:0-2", "", 5, "b0 b1 b2 c0 c1"},
		"no node holds all":                {"a/0:0-1 b/1:0-2", "", 4, "a0 b0 b1 b2"},
		"without nodes a NIC is by itself": {"a/-1:0-1 b/-1:0-1 c/0:0-1 d/0:0", "", 3, "c0 c1 d0"},
		"all":                              {"a/0:0-1 b/-1:0", "", 3, "a0 a1 b0"},
		"none":                             {"a/0:0-1", "", 0, ""},
		"only what must be":                {"a/0:0-1 b/0:0", "b0 a1", 2, "a1 b0"},
	} {
		t.Run(name, func(t *testing.T) {
			devices := inventory(t, tc.devices)
			got, err := prefer(finder(devices), ids(devices), strings.Fields(tc.must), tc.n)
			if err != nil || strings.Join(got, " ") != tc.want {
				t.Errorf("got %v, %v; want %s", got, err, tc.want)
			}
		})
	}
}

func TestPreferenceThatCannotBe(t *testing.T) {
	devices := inventory(t, "a/0:0-3")
	for name, tc := range map[string]struct {
		available, must string
		n               int
	}{
		"more than available":       {"a0 a1", "", 3},
		"the same one twice":        {"a0 a0", "", 2},
		"must is not available":     {"a0 a1", "a2", 2},
		"must twice":                {"a0 a1", "a0 a0", 2},
		"more must than asked for":  {"a0 a1", "a0 a1", 1},
		"a negative number of them": {"a0 a1", "", -1},
	} {
		if got, err := prefer(finder(devices), strings.Fields(tc.available), strings.Fields(tc.must), tc.n); err == nil {
			t.Errorf("%s: got %v", name, got)
		}
	}
}

func TestPreferredDevicesOfAnyInventory(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		devices := make(map[string]Device)
		var available []string
		for nic := range 1 + rng.IntN(4) {
			name, node := string(rune('a'+nic)), rng.IntN(3)-1
			for q := range 6 {
				if rng.IntN(2) == 0 {
					continue
				}
				id := fmt.Sprintf("%s%d", name, q)
				available = append(available, id)
				if rng.IntN(10) > 0 { // else one that the pool does not know
					devices[id] = Device{ID: id, NIC: name, NUMANode: node, Queue: q}
				}
			}
		}
		n := rng.IntN(len(available) + 1)
		rng.Shuffle(len(available), func(i, j int) { available[i], available[j] = available[j], available[i] })
		must := slices.Clone(available[:rng.IntN(n+1)])
		find := finder(devices)
		got, err := prefer(find, available, must, n)
		what := fmt.Sprintf("%d of %v with %v: got %v, %v", n, available, must, got, err)
		if err != nil || len(got) != n {
			t.Fatal(what)
		}
		for i, id := range got {
			if !slices.Contains(available, id) || slices.Contains(got[:i], id) {
				t.Fatalf("%s: %s is not available or twice there", what, id)
			}
		}
		for _, id := range must {
			if !slices.Contains(got, id) {
				t.Fatalf("%s: lacks %s", what, id)
			}
		}
		rng.Shuffle(len(available), func(i, j int) { available[i], available[j] = available[j], available[i] })
		if again, _ := prefer(find, available, must, n); !slices.Equal(again, got) {
			t.Fatalf("%s: in another order %v", what, again)
		}
		checkOneNIC(t, what, find, available, got, n, len(must) == 0)
	}
}

// checkOneNIC verifies that all are of one NIC where one has enough, and of one with the fewest free devices.
func checkOneNIC(
	t *testing.T, what string, find func(string) (Device, bool), available, got []string, n int, free bool,
) {
	t.Helper()
	if !free || n == 0 {
		return
	}
	nicOf := func(id string) string {
		if d, ok := find(id); ok {
			return d.NIC
		}
		return id
	}
	count := make(map[string]int)
	for _, id := range available {
		count[nicOf(id)]++
	}
	fewest := 0
	for _, c := range count {
		if c >= n && (fewest == 0 || c < fewest) {
			fewest = c
		}
	}
	if fewest == 0 {
		return
	}
	for _, id := range got {
		if nicOf(id) != nicOf(got[0]) || count[nicOf(id)] != fewest {
			t.Fatalf("%s: not from the tightest NIC", what)
		}
	}
}
