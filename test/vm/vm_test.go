//go:build vm

package vm

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"

	"github.com/afxdp-project/afxdp/internal/testutil"
	"github.com/afxdp-project/afxdp/test/vm/matrix"
	"github.com/afxdp-project/afxdp/test/vm/report"
)

func TestMain(m *testing.M) { os.Exit(testutil.Main(m)) }

// parallel is how many machines run at once: each keeps a core busy.
const parallel = 2

// resultFile has the rows of all kernels.
const resultFile = "../../build/test-vm.json"

func TestKernelsAndDriversAreAsTheMatrixSays(t *testing.T) {
	testutil.NeedKernel(t)
	missing, err := have("qemu")
	switch {
	case err != nil:
		t.Fatal(err)
	case missing != "":
		t.Skip("not run: no QEMU: " + missing)
	}
	p, err := build(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	want, err := matrix.Read("testdata/matrix.json")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	rows := []report.Row{}
	var faults []string
	t.Run("kernel", func(t *testing.T) {
		slots := make(chan struct{}, parallel)
		for i, class := range classes {
			t.Run(class, func(t *testing.T) {
				k, missing, err := findKernel(class)
				switch {
				case err != nil:
					t.Fatal(err)
				case missing != "":
					t.Skipf("not run: kernel %s: %s", class, missing)
				}
				t.Parallel()
				slots <- struct{}{}
				defer func() { <-slots }()
				got := boot(t, k, i, 1, taskOf(k), p)
				if class == "newest" {
					// A thread can be pinned only where there is another CPU.
					task := report.Task{
						Kernel: class, Queues: queues, NICs: []report.NIC{cards[0].NIC},
						Once: []string{report.ModePinned, report.ModeHandoff},
					}
					got = append(got, boot(t, k, len(classes), 2, task, p)...)
				}
				t.Logf("Linux %s\n%s", k.version, summary(got))
				found := want.Check(class, got)
				if found != nil {
					t.Fail()
				}
				mu.Lock()
				defer mu.Unlock()
				rows, faults = append(rows, got...), append(faults, found...)
			})
		}
	})
	// After all tables, where they are not overlooked.
	for _, fault := range faults {
		t.Error(fault)
	}
	if err := writeRows(resultFile, rows); err != nil {
		t.Fatal(err)
	}
}

// boot runs a machine with a kernel and so many CPUs, and returns what its guest found.
func boot(t *testing.T, k kernel, number, cpus int, task report.Task, p programs) []report.Row {
	t.Helper()
	dir := t.TempDir()
	image := filepath.Join(dir, "initramfs")
	if err := writeInitramfsFor(task, image, k, p); err != nil {
		t.Fatal(err)
	}
	m, err := newMachine(k, number, cpus, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer m.close()
	rows, err := m.run(t.Context(), image)
	if err != nil {
		t.Errorf("Linux %s: %v", k.version, err)
	}
	return rows
}

// writeRows writes the rows, in the order of the matrix, as a JSON array.
func writeRows(path string, rows []report.Row) error {
	sortRows(rows)
	data, err := json.MarshalIndent(rows, "", " ")
	if err != nil {
		return fmt.Errorf("encode the result: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	temp := path + ".new"
	if err := os.WriteFile(temp, append(data, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(temp, path)
}

// sortRows puts rows in the order of kernels, drivers and modes.
func sortRows(rows []report.Row) {
	drivers := []string{report.ModeAgent}
	for _, c := range cards {
		drivers = append(drivers, c.Name)
	}
	modes := []string{report.ModeInterrupts, report.ModeBusyPoll, report.ModeNoKick, report.ModeThreaded, report.ModePinned, report.ModeHandoff}
	key := func(r report.Row) [3]int {
		return [3]int{slices.Index(classes, r.Kernel), slices.Index(drivers, r.Driver), slices.Index(modes, r.Mode)}
	}
	slices.SortStableFunc(rows, func(a, b report.Row) int {
		ka, kb := key(a), key(b)
		return slices.Compare(ka[:], kb[:])
	})
}

// summary tells the rows in few words.
func summary(rows []report.Row) string {
	sortRows(rows)
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "driver\tmode\tbound\treceived\tcompleted\tinterrupts\tbusy polling")
	for _, r := range rows {
		if r.Refusal != "" {
			_, _ = fmt.Fprintf(w, "%s\t%s\trefused: %.100s\n", r.Driver, r.Mode, r.Refusal)
			continue
		}
		interrupts, busy := "-", "-"
		if i := r.Interrupts; i != nil {
			interrupts = fmt.Sprintf("%d -> %d", i.Before, i.After)
		}
		if p := r.BusyPoll; p != nil {
			busy = map[bool]string{true: "active", false: "inactive"}[p.Active]
		}
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d of %d\t%s\t%s\n", r.Driver, r.Mode, r.Bound, r.RX.Received, r.TX.Completed,
			r.TX.Sent, interrupts, busy)
	}
	_ = w.Flush()
	return b.String()
}
