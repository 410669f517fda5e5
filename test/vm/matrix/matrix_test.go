package matrix

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/afxdp-project/afxdp/test/vm/report"
)

func table(t *testing.T, text string) Matrix {
	t.Helper()
	path := filepath.Join(t.TempDir(), "matrix.json")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func row() report.Row {
	return report.Row{
		Kernel: "newest", Driver: "igb", Mode: "interrupts", Queues: 4,
		NAPI: report.NAPI{Linked: true}, TX: report.TX{Kick: "second socket", Completed: 64},
		Interrupts: &report.Interrupts{FellPercent: 96.5},
	}
}

func TestRowAsExpectedHasNoFault(t *testing.T) {
	m := table(t, `[{"kernel": "newest", "driver": "igb", "mode": "interrupts",
		"is": {"queues": 4, "napi.linked": true, "refusal": null, "busyPoll.active": null},
		"contains": {"tx.kick": "second"}, "atLeast": {"interrupts.fellPercent": 95}, "atMost": {"tx.completed": 64}}]`)
	if faults := m.Check("newest", []report.Row{row()}); faults != nil {
		t.Error(faults)
	}
}

func TestFaultNamesRowAndField(t *testing.T) {
	for want, field := range map[string]string{
		`tx.completed is 64, want 63`:                      `"is": {"tx.completed": 63}`,
		`napi.linked is true, want null`:                   `"is": {"napi.linked": null}`,
		`busyPoll.active is null, want true`:               `"is": {"busyPoll.active": true}`,
		`tx.kick is "second socket", want a text`:          `"contains": {"tx.kick": "poll"}`,
		`refusal is null, want a text`:                     `"contains": {"refusal": "6.4"}`,
		`interrupts.fellPercent is 96.5, want at least 97`: `"atLeast": {"interrupts.fellPercent": 97}`,
		`interrupts.none is null, want at most 1`:          `"atMost": {"interrupts.none": 1}`,
		`tx.completed is 64, want at most 1`:               `"atMost": {"tx.completed": 1}`,
	} {
		m := table(t, `[{"kernel": "newest", "driver": "igb", "mode": "interrupts", `+field+`}]`)
		faults := m.Check("newest", []report.Row{row()})
		if len(faults) != 1 || !strings.HasPrefix(faults[0], "kernel newest, igb, interrupts: "+want) {
			t.Errorf("%s: %q, want one of the row and %q", field, faults, want)
		}
	}
}

func TestMissingAndUnknownRowsAreFaults(t *testing.T) {
	m := table(t, `[{"kernel": "newest", "driver": "igb", "mode": "busy-poll"},
		{"kernel": "6.1", "driver": "igb", "mode": "busy-poll"}]`)
	want := []string{
		"kernel newest, igb, busy-poll: the row is missing",
		"kernel newest, igb, interrupts: the matrix has no such row",
	}
	if faults := m.Check("newest", []report.Row{row()}); !slices.Equal(faults, want) {
		t.Errorf("%q, want %q", faults, want)
	}
}

func TestMisspeltTableIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "matrix.json")
	if err := os.WriteFile(path, []byte(`[{"kernel": "6.1", "expect": {}}]`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(path); err == nil || !strings.Contains(err.Error(), "expect") {
		t.Errorf("%v, want an error that names the field", err)
	}
}
