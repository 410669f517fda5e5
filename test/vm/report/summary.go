package report

import (
	"fmt"
	"slices"
	"strings"
)

// BenchRow is what all runs of a case came to: medians.
type BenchRow struct {
	Kernel string    `json:"kernel"`
	Driver string    `json:"driver"`
	Date   string    `json:"date"`
	Case   BenchCase `json:"case"`

	NotMeasured string `json:"notMeasured,omitempty"` // why there is no more
	Refusal     string `json:"refusal,omitempty"`     // of a run that failed

	// Per second of the guest's clock.
	Offered    float64 `json:"offeredPerSecond"`
	Received   float64 `json:"receivedPerSecond"`
	Interrupts float64 `json:"interruptsPerSecond"`
	RingFull   float64 `json:"rxRingFullPerSecond"`
	OtherDrops float64 `json:"otherDropsPerSecond"` // by the driver, or by the socket for another reason
	// NotTaken are those offered that the device did not take: its ring and the tap's queue were full.
	NotTaken float64 `json:"notTakenPerSecond"`

	Ratio    float64 `json:"ratio"`    // of Received to that of the interrupts row
	Overload float64 `json:"overload"` // of Offered to what busy polling with the same batch and budget 64 received

	CPU     BenchCPU   `json:"cpu"`
	Latency *BenchHost `json:"latency,omitempty"` // medians, of the host's clock

	Runs        []BenchRun `json:"runs"`
	LatencyRuns []BenchRun `json:"latencyRuns,omitempty"`
}

// Summarize makes a row of each case. base is the name of the case that ratios are to.
func Summarize(b Bench, runs []BenchRun, base string) []BenchRow {
	var rows []BenchRow
	for _, c := range b.Cases {
		row := BenchRow{Case: c}
		for _, r := range runs {
			switch {
			case r.Case != c.Name || r.Capacity:
			case r.Refusal != "":
				row.Refusal = r.Refusal
			case r.Latency:
				row.LatencyRuns = append(row.LatencyRuns, r)
			default:
				row.Runs = append(row.Runs, r)
			}
		}
		row.medians()
		rows = append(rows, row)
	}
	var interrupts, polling float64
	for _, r := range rows {
		if r.Case.Name == base {
			interrupts = r.Received
		}
		if r.Case.Budget == 64 && r.Case.Weight == 0 {
			polling = r.Received
		}
	}
	for i := range rows {
		rows[i].Ratio = ratio(rows[i].Received, interrupts)
		rows[i].Overload = ratio(rows[i].Offered, polling)
	}
	return rows
}

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

func (row *BenchRow) medians() {
	of := func(f func(r BenchRun) float64) float64 { return median(row.Runs, f) }
	rate := func(f func(r BenchRun) uint64) float64 {
		return of(func(r BenchRun) float64 { return ratio(float64(f(r)), r.Seconds) })
	}
	// The driver counts what the socket drops as well.
	other := func(r BenchRun) uint64 { return r.DeviceDrop - min(r.DeviceDrop, r.RingFull) + r.Dropped }
	row.Offered = rate(func(r BenchRun) uint64 { return r.Offered })
	row.Received = rate(func(r BenchRun) uint64 { return r.Received })
	row.Interrupts = rate(func(r BenchRun) uint64 { return r.Interrupts })
	row.RingFull = rate(func(r BenchRun) uint64 { return r.RingFull })
	row.OtherDrops = rate(other)
	row.NotTaken = rate(func(r BenchRun) uint64 {
		return r.Offered - min(r.Offered, r.Received+r.RingFull+other(r))
	})
	row.CPU = BenchCPU{
		User:        of(func(r BenchRun) float64 { return r.CPU.User }),
		System:      of(func(r BenchRun) float64 { return r.CPU.System }),
		SoftIRQ:     of(func(r BenchRun) float64 { return r.CPU.SoftIRQ }),
		IRQ:         of(func(r BenchRun) float64 { return r.CPU.IRQ }),
		Idle:        of(func(r BenchRun) float64 { return r.CPU.Idle }),
		Application: of(func(r BenchRun) float64 { return r.CPU.Application }),
		Ksoftirqd:   of(func(r BenchRun) float64 { return r.CPU.Ksoftirqd }),
		NAPIThread:  of(func(r BenchRun) float64 { return r.CPU.NAPIThread }),
	}
	if len(row.LatencyRuns) == 0 {
		return
	}
	of = func(f func(r BenchRun) float64) float64 { return median(row.LatencyRuns, f) }
	row.Latency = &BenchHost{
		Pings:     int(of(func(r BenchRun) float64 { return float64(r.Host.Pings) })),
		Lost:      int(of(func(r BenchRun) float64 { return float64(r.Host.Lost) })),
		MinUs:     of(func(r BenchRun) float64 { return r.Host.MinUs }),
		AverageUs: of(func(r BenchRun) float64 { return r.Host.AverageUs }),
		P99Us:     of(func(r BenchRun) float64 { return r.Host.P99Us }),
		MaxUs:     of(func(r BenchRun) float64 { return r.Host.MaxUs }),
	}
}

// median of an even number of runs is the lesser of the two in the middle.
func median(runs []BenchRun, f func(r BenchRun) float64) float64 {
	if len(runs) == 0 {
		return 0
	}
	var values []float64
	for _, r := range runs {
		values = append(values, f(r))
	}
	slices.Sort(values)
	return values[(len(values)-1)/2]
}

// Table writes rows as tables in Markdown.
func Table(rows []BenchRow) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\nLinux %s, %s, %s\n\n", rows[0].Kernel, rows[0].Driver, rows[0].Date)
	b.WriteString("| | received | kpps | offered | rx ring full, kpps | not taken, kpps | interrupts/s | user | system | softirq | idle |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, r := range rows {
		if r.NotMeasured != "" {
			fmt.Fprintf(&b, "| %s | not measured | | | | | | | | | |\n", r.Case.Name)
			continue
		}
		fmt.Fprintf(&b, "| %s | %.2f | %.0f | %.1f × | %.0f | %.0f | %.0f | %.0f%% | %.0f%% | %.0f%% | %.0f%% |\n",
			r.Case.Name, r.Ratio, r.Received/1e3, r.Overload, r.RingFull/1e3, r.NotTaken/1e3, r.Interrupts,
			100*r.CPU.User, 100*r.CPU.System, 100*r.CPU.SoftIRQ, 100*r.CPU.Idle)
	}
	b.WriteString("\n| round trip, µs | min | average | p99 | max |\n|---|---|---|---|---|\n")
	for _, r := range rows {
		if l := r.Latency; l != nil {
			fmt.Fprintf(&b, "| %s | %.0f | %.0f | %.0f | %.0f |\n", r.Case.Name, l.MinUs, l.AverageUs, l.P99Us, l.MaxUs)
		}
	}
	return b.String()
}
