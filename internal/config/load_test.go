package config

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

const head = "apiVersion: afxdp.io/v1alpha1\nkind: Configuration\npools:\n"

// onePool is followed by further fields of its pool from line 6 on.
const onePool = head + "- name: fast\n  nics: {names: [eth1]}\n"

func mustParse(t *testing.T, text string) *Config {
	t.Helper()
	cfg, warnings, err := Parse("c.yaml", []byte(text))
	if err != nil {
		t.Fatalf("refused:\n%v\n%s", err, text)
	}
	for _, w := range warnings {
		t.Errorf("unexpected warning: %v", w)
	}
	return cfg
}

func TestNameAndNICsAreEnough(t *testing.T) {
	cfg := mustParse(t, onePool)
	want := DefaultPool()
	want.Name = "fast"
	want.NICs.Names = []string{"eth1"}
	if !reflect.DeepEqual(cfg.Pools, []Pool{want}) {
		t.Errorf("got  %+v\nwant %+v", cfg.Pools, want)
	}
	if !cfg.Pools[0].Queues.All() || cfg.Pools[0].BusyPoll.Timeout != 20*time.Microsecond {
		t.Errorf("defaults: %+v", cfg.Pools[0])
	}
}

// A node without pools is one that waits for its first.
func TestNoPoolsMayBeWritten(t *testing.T) {
	cfg := mustParse(t, head[:len(head)-1]+" []\n")
	if assigned, problems := cfg.Assign([]NIC{{Name: "eth1", Queues: 4}}); len(assigned) > 0 || len(problems) > 0 {
		t.Errorf("assigned %v, problems %v", assigned, problems)
	}
}

func TestEveryFieldIsRead(t *testing.T) {
	cfg := mustParse(t, head+`- name: fast-2.x
  nics:
    names: [ens1f0, "ens2*"]
    drivers: [ice, veth]
    pci: [0000:3B:00.0, "0000:3b:01.*"]
    macs: [02-00-00-00-00-1A]
    numaNodes: [0, 1]
  queues: 8,1-3
  zeroCopy: never
  needWakeup: false
  allowGeneric: true
  multiBuffer: true
  countUnclaimed: true
  allowSharedNAPI: true
  busyPoll: {budget: 0, timeout: 1ms, deferHardIRQs: 100, groFlushTimeout: 1.5us, irqSuspendTimeout: 20ms, threaded: on, threadCPUs: 0, irqCPUs: "3,1-2"}
  limits: {maxUMEM: 1Gi, maxFrames: 1000, maxRingSize: 65536, maxConnections: 1}
`)
	want := Pool{
		Name: "fast-2.x",
		NICs: Selector{
			Names:     []string{"ens1f0", "ens2*"},
			Drivers:   []string{"ice", "veth"},
			PCI:       []string{"0000:3b:00.0", "0000:3b:01.*"},
			MACs:      []string{"02:00:00:00:00:1a"},
			NUMANodes: []int{0, 1},
		},
		Queues:          NewQueueSet(1, 2, 3, 8),
		ZeroCopy:        ZeroCopyNever,
		AllowGeneric:    true,
		MultiBuffer:     true,
		CountUnclaimed:  true,
		AllowSharedNAPI: true,
		BusyPoll:        BusyPoll{0, time.Millisecond, 100, 1500 * time.Nanosecond, 20 * time.Millisecond, true, "0", "1-3"},
		Limits:          Limits{1 << 30, 1000, 65536, 1},
	}
	if !reflect.DeepEqual(cfg.Pools, []Pool{want}) {
		t.Errorf("got  %+v\nwant %+v", cfg.Pools[0], want)
	}
	p, ok := cfg.Pool("fast-2.x")
	if !ok || p.Resource() != "afxdp.io/fast-2.x" || p.MountPath() != "/run/afxdp/fast-2.x" ||
		p.EnvName() != "AFXDP_FAST_2_X" {
		t.Errorf("names: %s %s %s", p.Resource(), p.MountPath(), p.EnvName())
	}
	if _, ok := cfg.Pool("slow"); ok {
		t.Error("found a pool that does not exist")
	}
}

func TestAnchorsAndAliasesAreFollowed(t *testing.T) {
	cfg := mustParse(t, head+"- name: a\n  nics: {names: [eth1]}\n  busyPoll: &b {budget: 8}\n"+
		"- name: b\n  nics: {names: [eth2]}\n  busyPoll: *b\n")
	if cfg.Pools[1].BusyPoll.Budget != 8 || cfg.Pools[1].BusyPoll.DeferHardIRQs != DefaultDeferHardIRQs {
		t.Errorf("alias: %+v", cfg.Pools[1].BusyPoll)
	}
}

func TestAllMistakesAreReportedAtOnceInOrder(t *testing.T) {
	_, _, err := Parse("c.yaml", []byte(`apiVersion: v1
kind: Configuration
pools:
- nics: {names: [eth1], driver: [ice]}
  busyPoll:
    budget: 70000
- name: Fast
  nics: {}
  queues: 3-1
`))
	want := `c.yaml:1:13: apiVersion: "v1" is not supported: want afxdp.io/v1alpha1
c.yaml:4:3: pools[0].name: is missing: it is the last part of the resource name afxdp.io/<name>
c.yaml:4:25: pools[0].nics.driver: unknown field: did you mean drivers?
c.yaml:6:13: pools[0].busyPoll.budget: 70000 is out of range: 0 to 65535 (0 turns busy polling off)
c.yaml:7:9: pools[1].name: "Fast" is no pool name: want lower-case letters, digits, '-' and '.', each part between dots starting and ending with a letter or digit
c.yaml:8:9: pools[1].nics: has no criterion: give at least one of names, drivers, pci, macs, numaNodes
c.yaml:9:11: pools[1].queues: range 3-1 runs backwards: write 1-3`
	if err == nil || err.Error() != want {
		t.Fatalf("got\n%v\nwant\n%s", err, want)
	}
	var all Errors
	var first *FieldError
	if !errors.As(err, &all) || len(all) != 7 || !errors.As(err, &first) || first.Field != "apiVersion" {
		t.Errorf("the mistakes cannot be reached one by one: %#v", err)
	}
}

func TestMistakesAreBounded(t *testing.T) {
	_, _, err := Parse("c.yaml", []byte(head+strings.Repeat("- x\n", 5000)))
	var all Errors
	if !errors.As(err, &all) || len(all) != maxErrors+1 {
		t.Fatalf("%d mistakes", len(all))
	}
	last := all[len(all)-1]
	if last.Error() != "c.yaml: more than 100 mistakes: the rest is not shown" {
		t.Errorf("last: %v", last)
	}
}

func TestAliasBombIsRefusedSoon(t *testing.T) {
	text := head + "- name: p0\n  nics: &n\n    names: [" + strings.Repeat("a,", 2000) + "a]\n"
	text += strings.Repeat("- {name: p, nics: *n}\n", 10000)
	start := time.Now()
	_, _, err := Parse("c.yaml", []byte(text))
	if err == nil || !strings.Contains(err.Error(), "more than 100000 values, aliases followed") {
		t.Errorf("got %.300v", err)
	}
	if d := time.Since(start); d > 20*time.Second {
		t.Errorf("took %v", d)
	}
}

func TestWarningsNamePlaceAndField(t *testing.T) {
	// Field case 25: busy polling without deferral has no effect and is warned about.
	tests := []struct{ name, text, want string }{
		{"no deferral", "  busyPoll: {deferHardIRQs: 0}\n",
			"c.yaml:6:29: pools[0].busyPoll.deferHardIRQs: 0 leaves the queue's interrupt on, so busy polling has hardly " +
				"any effect: give a number such as 2"},
		{"no flush timeout", "  busyPoll:\n    groFlushTimeout: 0us\n",
			"c.yaml:7:22: pools[0].busyPoll.groFlushTimeout: 0 leaves the queue's interrupt on, so busy polling has hardly " +
				"any effect: give a time such as 200µs"},
		{"no time to poll", "  busyPoll: {timeout: 0}\n",
			"c.yaml:6:23: pools[0].busyPoll.timeout: 0 turns busy polling off whatever the budget is: " +
				"write budget: 0 to say so"},
		{"busy polling off", "  busyPoll: {budget: 0, deferHardIRQs: 0, groFlushTimeout: 0, timeout: 0}\n", ""},
		{"generic zero-copy", "  zeroCopy: require\n  allowGeneric: true\n",
			"c.yaml:7:17: pools[0].allowGeneric: has no effect beside zeroCopy: require: zero-copy needs native XDP"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, warnings, err := Parse("c.yaml", []byte(onePool+tt.text))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, w := range warnings {
				got = append(got, w.String())
			}
			if strings.Join(got, "\n") != tt.want {
				t.Errorf("got  %s\nwant %s", strings.Join(got, "\n"), tt.want)
			}
		})
	}
}

func TestLoadNamesTheFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "pools.yaml")
	if err := os.WriteFile(path, []byte(onePool), 0o600); err != nil {
		t.Fatal(err)
	}
	if cfg, _, err := Load(path); err != nil || len(cfg.Pools) != 1 {
		t.Errorf("%v, %v", cfg, err)
	}
	if err := os.WriteFile(path, []byte("x: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Load(path); err == nil || !strings.HasPrefix(err.Error(), path+":1:1: x: unknown field") {
		t.Errorf("got %v", err)
	}
	if _, _, err := Load(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	if _, _, err := Load(dir); err == nil {
		t.Error("a directory was read")
	}
}

func TestTooLargeFileIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pools.yaml")
	if err := os.WriteFile(path, []byte(onePool+strings.Repeat("# x\n", MaxSize/4)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Load(path); err == nil || err.Error() != path+": the file is larger than 1Mi" {
		t.Errorf("got %v", err)
	}
}
