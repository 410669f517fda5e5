//go:build vm

package vm

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"

	"github.com/afxdp-project/afxdp/internal/testutil"
	"github.com/afxdp-project/afxdp/test/vm/report"
)

const (
	benchRuns = 5
	benchFile = "../../build/bench-busypoll.json"
	// benchRing holds, like the 2048 descriptors of a core that takes 10 million packets a second, what the guest's takes
	// in about 200 µs: some percent of the time for which the scheduler has the application wait. See docs/performance.md.
	benchRing = 128
	// podWeight is that of the control group of a pod that asks for one CPU.
	podWeight = 39
	// benchCores are what a machine with two CPUs needs: theirs, the NIC emulation's and the sender's.
	benchCores = 4
	// atOnce is how many times as much as one CPU two must do, to run at once.
	atOnce = 1.8
)

const (
	sameCore    = "interrupts on the same core"
	anotherCore = "interrupts on another core"
)

func interrupts() report.BenchCase { return report.BenchCase{Name: sameCore, Ring: benchRing} }

func polling(budget int) report.BenchCase {
	return report.BenchCase{Name: fmt.Sprintf("busy polling, budget %d", budget), Budget: budget, DeferHardIRQs: 2,
		GROFlushTimeoutUs: 200, Ring: benchRing}
}

func threaded() report.BenchCase {
	return report.BenchCase{Name: "threaded NAPI", Threaded: true, Ring: benchRing}
}

// but returns a case that differs.
func but(c report.BenchCase, how string, differ func(c *report.BenchCase)) report.BenchCase {
	c.Name += ", " + how
	differ(&c)
	return c
}

func ring(c report.BenchCase, size int) report.BenchCase {
	return but(c, fmt.Sprintf("ring of %d", size), func(c *report.BenchCase) { c.Ring = size })
}

func latency(c report.BenchCase) report.BenchCase {
	c.Latency = true
	return c
}

func sleeps(c *report.BenchCase) { c.Sleeps = true }
func pod(c *report.BenchCase)    { c.Weight = podWeight }

func benchCases() []report.BenchCase {
	cases := []report.BenchCase{
		latency(interrupts()), but(interrupts(), "sleeping in poll(2)", sleeps),
		polling(16), latency(polling(64)), polling(256), polling(512),
		latency(threaded()),
	}
	for _, c := range []report.BenchCase{
		but(threaded(), "sleeping in poll(2)", sleeps),
		ring(interrupts(), 512), ring(polling(64), 512),
		ring(interrupts(), 2048), ring(polling(64), 2048), ring(polling(512), 2048),
		but(interrupts(), "no more frames than the ring takes", func(c *report.BenchCase) { c.FewFrames = true }),
		but(interrupts(), "in a pod's control group", pod), but(polling(64), "in a pod's control group", pod),
	} {
		c.Aside = true
		cases = append(cases, c)
	}
	return cases
}

func TestBenchBusyPoll(t *testing.T) {
	testutil.NeedKernel(t)
	missing, err := have("qemu")
	switch {
	case err != nil:
		t.Fatal(err)
	case missing != "":
		t.Skip("not run: no QEMU: " + missing)
	}
	k, missing, err := findKernel("newest")
	switch {
	case err != nil:
		t.Fatal(err)
	case missing != "":
		t.Skip("not run: kernel newest: " + missing)
	}
	p, err := build(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	b := report.Bench{Cases: benchCases(), Runs: benchRuns, CPUs: 1}
	if s := os.Getenv("AFXDP_BENCH_RUNS"); s != "" {
		if b.Runs, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	rows := report.Summarize(b, bench(t, k, p, b).runs)
	other := benchAnotherCore(t, k, p, b.Runs)
	rows = append(rows, other)
	if err := writeJSON(benchFile, rows); err != nil {
		t.Fatal(err)
	}
	fmt.Print(report.Table(rows))
	for _, r := range rows {
		if r.NotMeasured != "" {
			fmt.Printf("%s: not measured: %s\n", r.Case.Name, r.NotMeasured)
		} else if want := r.Case.RunsOf(b.Runs); len(r.Runs) < want {
			t.Errorf("%s: %d runs of %d succeeded: %s", r.Case.Name, len(r.Runs), want, r.Refusal)
		}
	}
}

// benchAnotherCore measures, in a machine with two CPUs, what interrupts on the other one come to against the same one.
func benchAnotherCore(t *testing.T, k kernel, p programs, runs int) report.BenchRow {
	t.Helper()
	other := but(interrupts(), "", func(c *report.BenchCase) { c.Name, c.IRQCPU = anotherCore, 1 })
	b := report.Bench{Runs: runs, CPUs: 2}
	if runtime.NumCPU() >= benchCores {
		b.Cases, b.AtOnce = []report.BenchCase{interrupts(), other}, atOnce
	}
	got := bench(t, k, p, b)
	var why string
	switch {
	case got.speedup < atOnce:
		why = fmt.Sprintf("two CPUs of the emulator do %.1f times as much as one, so they do not run at once", got.speedup)
	case len(b.Cases) == 0:
		why = fmt.Sprintf("two CPUs of the emulator do %.1f times as much as one, but they, the NIC's emulation and the sender "+
			"need %d cores; this machine has %d", got.speedup, benchCores, runtime.NumCPU())
	default:
		return report.Summarize(b, got.runs)[1]
	}
	return report.BenchRow{Case: other, NotMeasured: why}
}

// writeJSON writes v in place of a file.
func writeJSON(path string, v any) error {
	data, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return fmt.Errorf("encode the result: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", append(data, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
