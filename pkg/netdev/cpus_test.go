package netdev

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestEqualSetsOfCPUsAreEqualStrings(t *testing.T) {
	for in, want := range map[string]CPUs{"0": "0", "8,0-3": "0-3,8", "1,2,3\n": "1-3", "3,1,1": "1,3", "0-1,1-2": "0-2"} {
		got, err := ParseCPUs(in)
		if err != nil || got != want {
			t.Errorf("ParseCPUs(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
	for _, bad := range []string{"", "a", "3-1", "-1", "1-", "0,,1", "9000"} {
		if got, err := ParseCPUs(bad); err == nil {
			t.Errorf("ParseCPUs(%q) = %q, want an error", bad, got)
		}
	}
}

// The machine's own interrupts are not touched: a directory stands for /proc.
func TestAffinityOfAnInterruptIsReadBack(t *testing.T) {
	proc := t.TempDir()
	dir := filepath.Join(proc, "irq", "7")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "smp_affinity_list")
	if err := os.WriteFile(file, []byte("0-1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	h, err := Config{IRQDir: filepath.Join(proc, "irq")}.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if got, err := h.IRQAffinity(7); err != nil || got != "0-1" {
		t.Errorf("affinity %q, %v; want 0-1", got, err)
	}
	if err := h.SetIRQAffinity(7, "1"); err != nil {
		t.Error(err)
	}
	if err := h.SetIRQAffinity(8, "1"); !errors.Is(err, ErrUnsupported) {
		t.Errorf("an interrupt that is not there: %v, want unsupported", err)
	}
	// A kernel that takes the write and does something else is noticed.
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/null", file); err != nil {
		t.Fatal(err)
	}
	if err := h.SetIRQAffinity(7, "1"); err == nil {
		t.Error("a write that had no effect was taken for a success")
	}
}
