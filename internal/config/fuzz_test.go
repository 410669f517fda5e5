package config

import (
	"errors"
	"os"
	"strings"
	"testing"
)

// FuzzParse checks that no input makes Parse panic, and that a refusal says where and why in bounded text.
func FuzzParse(f *testing.F) {
	example, err := os.ReadFile(examplePath)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(example)
	for _, s := range []string{
		"", onePool, onePool + "---\n", onePool + "  queues: *q\n", "&a [*a]\n", "&a {? *a : 1}\n", "pools: &p [*p]\n",
		head + "- &p {name: x, nics: *p}\n", "? {a: b}\n: c\n", "!!map []\n", "a: b: c\n",
		"[[[[[[[[", "{a, b}", "\"", "%TAG ! x\n---\n!a b\n",
		"- ? : ?\n", onePool + "  <<: *x\n", onePool + "  limits: {maxUMEM: -9223372036854775808}\n", "\uFEFF" + onePool,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		cfg, _, err := Parse("c.yaml", data)
		if err == nil {
			if cfg.APIVersion != APIVersion {
				t.Errorf("accepted %+v", cfg)
			}
			assigned, _ := cfg.Assign([]NIC{testNIC})
			if len(assigned) != len(cfg.Pools) {
				t.Errorf("%d pools, %d assigned", len(cfg.Pools), len(assigned))
			}
			return
		}
		var all Errors
		if cfg != nil || !errors.As(err, &all) || len(all) == 0 || len(all) > maxErrors+1 {
			t.Fatalf("refused with %T of %d: %v", err, len(all), err)
		}
		for _, e := range all {
			if !strings.HasPrefix(e.Error(), "c.yaml:") || e.Msg == "" || len(e.Error()) > 2000 {
				t.Errorf("message of %d bytes: %.200s", len(e.Error()), e)
			}
			if e.Field != "" && (e.Line == 0 || e.Column == 0) {
				t.Errorf("no place: %v", e)
			}
		}
	})
}
