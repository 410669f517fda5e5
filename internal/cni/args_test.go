package cni

import (
	"strings"
	"testing"
)

func TestNamesOfPods(t *testing.T) {
	for name, want := range map[string]bool{
		"a": true, "web-0": true, "a.b_c": true, "0f343b0931126a20f133d67c2b018a3b": true, "A9": true, strings.Repeat("a", 253): true,
		"": false, "-a": false, "a-": false, ".": false, "a b": false, "a/b": false, "a;b": false, "a\x00": false, "ä": false,
		"a@": false, "[a": false, "a`": false, "a{": false, strings.Repeat("a", 254): false,
	} {
		if isPodName(name) != want {
			t.Errorf("%q: want %v", name, want)
		}
	}
}
