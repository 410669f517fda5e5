package report

import (
	"strings"
	"testing"
)

func TestSummaryIsOfMediansAndRatiosToTheFirstCase(t *testing.T) {
	b := Bench{Cases: []BenchCase{{Name: "interrupts"}, {Name: "polling", Budget: 64}}}
	run := func(name string, offered, received, full, device uint64) BenchRun {
		return BenchRun{Case: name, Seconds: 2, Offered: offered, Received: received, RingFull: full, DeviceDrop: device, Polls: 4, ShortPolls: 1}
	}
	rows := Summarize(b, []BenchRun{
		run("interrupts", 600, 20, 80, 100), run("interrupts", 600, 40, 80, 100), run("interrupts", 600, 9000, 80, 100),
		run("polling", 600, 200, 0, 0), {Case: "polling", Latency: true, Host: BenchHost{AverageUs: 7}},
		{Case: "polling", Refusal: "no NAPI"},
	})
	i, p := rows[0], rows[1]
	if i.Received != 20 || i.Least != 10 || i.Most != 4500 || i.Ratio != 1 || i.Overload != 3 || i.Short != 0.25 {
		t.Errorf("interrupts: %+v", i)
	}
	if i.RingFull != 40 || i.DriverDrop != 10 || i.NotTaken != 230 {
		t.Errorf("drops of interrupts: %+v", i)
	}
	if p.Received != 100 || p.Ratio != 5 || len(p.Runs) != 1 || p.Latency == nil || p.Latency.AverageUs != 7 || p.Refusal != "no NAPI" {
		t.Errorf("polling: %+v", p)
	}
	if table := Table(rows); !strings.Contains(table, "| polling | 5.0 | 0 (0–0) | 3.0 × |") {
		t.Errorf("%s", table)
	}
}
