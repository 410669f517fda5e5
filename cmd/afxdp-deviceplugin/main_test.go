package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestWrongUseIsToldBeforeAnythingHasChanged(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.yaml")
	config := "apiVersion: afxdp.io/v1alpha1\nkind: Configuration\npools:\n- name: fast\n  nics: {names: [eth1]}\n" +
		"  busyPoll: {budget: 70000}\n  quues: 1\n"
	if err := os.WriteFile(bad, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args []string
		code int
		say  []string
	}{
		"help":             {[]string{"--help"}, 0, []string{"Usage:", "--config", "Exit codes"}},
		"version":          {[]string{"--version"}, 0, []string{"afxdp-deviceplugin "}},
		"unknown flag":     {[]string{"--confg", "x"}, 2, []string{"unknown flag: --confg"}},
		"install help":     {[]string{"install", "--help"}, 0, []string{"Usage:", "--cni-bin-dir", "--bpffs"}},
		"install argument": {[]string{"install", "now"}, 2, []string{`unexpected argument "now"`}},
		"install nothing": {
			[]string{"install", "--cni-bin-dir", dir, "--cni-plugin", bad + "x", "--bpffs", ""}, 1, []string{bad + "x", "no such file"},
		},
		"uninstall help": {[]string{"uninstall", "--help"}, 0, []string{"Usage:", "--selector", "Exit codes"}},
		"no namespace":   {[]string{"uninstall", "--selector", "a=b"}, 2, []string{"--namespace is missing"}},
		"no selector":    {[]string{"uninstall", "--namespace", "a"}, 2, []string{"--selector is missing"}},
		"no time":        {[]string{"uninstall", "--namespace", "a", "--selector", "a=b", "--timeout", "0s"}, 2, []string{"--timeout"}},
		"no cluster": {
			[]string{"uninstall", "--namespace", "a", "--selector", "a=b"}, 1, []string{"no credentials for the API server"},
		},
		"no kubeconfig": {
			[]string{"uninstall", "--namespace", "a", "--selector", "a=b", "--kubeconfig", bad + "x"}, 1, []string{"read kubeconfig"},
		},
		"argument":         {[]string{"start"}, 2, []string{`unexpected argument "start"`}},
		"no CNI plugins":   {[]string{"--cni-conf-dir", dir}, 2, []string{"--cni-conf-dir needs --cni-bin-dir"}},
		"log format":       {[]string{"--log-format", "xml"}, 2, []string{"neither text nor json"}},
		"log level":        {[]string{"--log-level", "loud"}, 2, []string{"--log-level"}},
		"no configuration": {[]string{"--config", filepath.Join(dir, "none.yaml")}, 2, []string{"none.yaml"}},
		"all mistakes":     {[]string{"--config", bad}, 2, []string{"budget: 70000 is out of range: 0 to 65535", "unknown field: did you mean queues?"}},
		"example": {
			[]string{"--config", "../../deployments/config.example.yaml", "--check"}, 0, []string{"errors: 0"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			if code := run(c.args, &out, &out); code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			for _, s := range c.say {
				if !strings.Contains(out.String(), s) {
					t.Errorf("output lacks %q:\n%s", s, out.String())
				}
			}
		})
	}
}

func TestInstallSaysWhatItDid(t *testing.T) {
	dir := t.TempDir()
	for _, want := range []string{"installed", "is up to date"} {
		var out strings.Builder
		if code := run([]string{"install", "--cni-bin-dir", dir, "--cni-plugin", "/proc/self/exe", "--bpffs", ""}, &out, &out); code != 0 {
			t.Fatalf("exit code %d: %s", code, &out)
		}
		if got := out.String(); got != filepath.Join(dir, "afxdp-cni")+": "+want+"\n" {
			t.Errorf("output %q, want that it %s", got, want)
		}
	}
}
