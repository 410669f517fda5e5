package report

import (
	"fmt"
	"slices"
	"strings"
)

// BenchRow is what all runs of a case came to: medians.
type BenchRow struct {
	Case BenchCase `json:"case"`

	NotMeasured string `json:"notMeasured,omitempty"` // why there is no more
	Refusal     string `json:"refusal,omitempty"`     // of a run that failed

	// Per second of the guest's clock.
	Offered    float64 `json:"offeredPerSecond"`
	Received   float64 `json:"receivedPerSecond"`
	Least      float64 `json:"leastReceivedPerSecond"`
	Most       float64 `json:"mostReceivedPerSecond"`
	Interrupts float64 `json:"interruptsPerSecond"`
	RingFull   float64 `json:"rxRingFullPerSecond"`
	Dropped    float64 `json:"rxDroppedPerSecond"`
	FillEmpty  float64 `json:"fillRingEmptyPerSecond"`
	DriverDrop float64 `json:"driverDroppedPerSecond"` // without those of the socket
	// NotTaken are those offered that the device did not take: its ring and the tap's queue were full.
	NotTaken float64 `json:"notTakenPerSecond"`
	Slices   float64 `json:"applicationSlicesPerSecond"`

	Ratio    float64 `json:"ratio"`    // of Received to that of the first case
	Overload float64 `json:"overload"` // of Offered to the most that a case received
	// Short is the share of NAPI polls that found less than they might have taken: that the load was not held.
	Short float64 `json:"shortPolls"`

	CPU     BenchCPU   `json:"cpu"`
	Latency *BenchHost `json:"latency,omitempty"` // medians, of the host's clock

	Runs        []BenchRun `json:"runs"`
	LatencyRuns []BenchRun `json:"latencyRuns,omitempty"`
}

// Summarize makes a row of each case. Ratios are to the first.
func Summarize(b Bench, runs []BenchRun) []BenchRow {
	var rows []BenchRow
	for _, c := range b.Cases {
		row := BenchRow{Case: c}
		for _, r := range runs {
			switch {
			case r.Case != c.Name:
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
	most := 0.0
	for _, r := range rows {
		most = max(most, r.Received)
	}
	for i := range rows {
		rows[i].Ratio = ratio(rows[i].Received, rows[0].Received)
		rows[i].Overload = ratio(rows[i].Offered, most)
	}
	return rows
}

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// driverDrop counts what the driver dropped. Its counter has what the socket dropped as well.
func (r *BenchRun) driverDrop() uint64 { return r.DeviceDrop - min(r.DeviceDrop, r.RingFull+r.Dropped) }

func (row *BenchRow) medians() {
	of := func(f func(r BenchRun) float64) float64 { return median(row.Runs, f) }
	rate := func(f func(r BenchRun) uint64) float64 {
		return of(func(r BenchRun) float64 { return ratio(float64(f(r)), r.Seconds) })
	}
	row.Offered = rate(func(r BenchRun) uint64 { return r.Offered })
	row.Received = rate(func(r BenchRun) uint64 { return r.Received })
	for i, r := range row.Runs {
		got := ratio(float64(r.Received), r.Seconds)
		if row.Most = max(row.Most, got); i == 0 || got < row.Least {
			row.Least = got
		}
	}
	row.Interrupts = rate(func(r BenchRun) uint64 { return r.Interrupts })
	row.RingFull = rate(func(r BenchRun) uint64 { return r.RingFull })
	row.Dropped = rate(func(r BenchRun) uint64 { return r.Dropped })
	row.FillEmpty = rate(func(r BenchRun) uint64 { return r.FillEmpty })
	row.DriverDrop = rate(func(r BenchRun) uint64 { return r.driverDrop() })
	row.NotTaken = rate(func(r BenchRun) uint64 {
		return r.Offered - min(r.Offered, r.Received+r.RingFull+r.Dropped+r.driverDrop())
	})
	row.Slices = rate(func(r BenchRun) uint64 { return r.Slices })
	row.Short = of(func(r BenchRun) float64 { return ratio(float64(r.ShortPolls), float64(r.Polls)) })
	row.CPU = BenchCPU{
		SoftIRQ:     of(func(r BenchRun) float64 { return r.CPU.SoftIRQ }),
		Application: of(func(r BenchRun) float64 { return r.CPU.Application }),
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
	for _, r := range rows {
		if len(r.Runs) > 0 {
			fmt.Fprintf(&b, "\nLinux %s, %s, %s\n", r.Runs[0].Kernel, r.Runs[0].Driver, r.Runs[0].Date)
			break
		}
	}
	b.WriteString("\n| | ratio | kpps received (least–most) | offered | rx ring full, kpps | interrupts/s | softirq | application |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|\n")
	for _, r := range rows {
		if r.NotMeasured != "" {
			fmt.Fprintf(&b, "| %s | not measured | | | | | | |\n", r.Case.Name)
			continue
		}
		softirq := fmt.Sprintf("%.0f %%", 100*r.CPU.SoftIRQ)
		if r.Case.Threaded {
			softirq = fmt.Sprintf("%.0f %% (its thread)", 100*r.CPU.NAPIThread)
		}
		fmt.Fprintf(&b, "| %s | %.1f | %.0f (%.0f–%.0f) | %.1f × | %.0f | %.0f | %s | %.0f %% |\n", r.Case.Name, r.Ratio,
			r.Received/1e3, r.Least/1e3, r.Most/1e3, r.Overload, r.RingFull/1e3, r.Interrupts, softirq, 100*r.CPU.Application)
	}
	b.WriteString("\n| drops a second by counter | rx_ring_full | rx_dropped | driver | not taken by the NIC | fill_ring_empty | " +
		"polls that found the NIC's ring empty |\n|---|---|---|---|---|---|---|\n")
	for _, r := range rows {
		if r.NotMeasured == "" {
			fmt.Fprintf(&b, "| %s | %.0f | %.0f | %.0f | %.0f | %.0f | %.1f %% |\n", r.Case.Name, r.RingFull, r.Dropped, r.DriverDrop,
				r.NotTaken, r.FillEmpty, 100*r.Short)
		}
	}
	b.WriteString("\n| round trip, µs | min | average | p99 | max |\n|---|---|---|---|---|\n")
	for _, r := range rows {
		if l := r.Latency; l != nil {
			fmt.Fprintf(&b, "| %s | %.0f | %.0f | %.0f | %.0f |\n", r.Case.Name, l.MinUs, l.AverageUs, l.P99Us, l.MaxUs)
		}
	}
	return b.String()
}
