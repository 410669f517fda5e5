package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/afxdp-project/afxdp/pkg/xsk"
)

// report is the summary of a run, and the object that --json prints.
type report struct {
	Mode            string        `json:"mode"`
	Pool            string        `json:"pool"`
	DurationSeconds float64       `json:"duration_seconds"`
	End             string        `json:"end"` // duration, packets, signal or error; running: a summary so far
	Error           string        `json:"error,omitempty"`
	Resumes         uint64        `json:"resumes"` // lost connections to the agent that were taken up again
	Threads         int           `json:"threads"`
	Queues          []queueReport `json:"queues"`
	Total           totals        `json:"total"`
}

type totals struct {
	RXPackets uint64  `json:"rx_packets"`
	RXBytes   uint64  `json:"rx_bytes"`
	RXMpps    float64 `json:"rx_mpps"`
	TXPackets uint64  `json:"tx_packets"` // handed to the kernel
	TXBytes   uint64  `json:"tx_bytes"`
	TXMpps    float64 `json:"tx_mpps"`
	Lost      uint64  `json:"lost"` // received by the NIC but not by this program
}

type queueReport struct {
	Netdev      string         `json:"netdev"`
	Queue       int            `json:"queue"`
	NUMANode    int            `json:"numa_node"` // -1: unknown
	ZeroCopy    bool           `json:"zero_copy"`
	MultiBuffer bool           `json:"multi_buffer"`
	BusyPoll    busyPollReport `json:"busy_poll"`
	totals
	Completed    uint64 `json:"tx_completed"`     // descriptors that the kernel gave back
	NotCompleted int    `json:"tx_not_completed"` // those that it did not
	RXCalls      uint64 `json:"rx_system_calls"`
	TXCalls      uint64 `json:"tx_system_calls"`
	Sleeps       uint64 `json:"sleeps"`
	Drops        *drops `json:"drops"` // null when the kernel did not tell
}

type busyPollReport struct {
	Active bool   `json:"active"`
	Reason string `json:"reason"`
	Budget int    `json:"budget"` // packets; 0: off
}

// drops are the kernel's counters of the socket since it was made.
type drops struct {
	RXDropped       uint64 `json:"rx_dropped"`
	RXRingFull      uint64 `json:"rx_ring_full"`
	RXFillRingEmpty uint64 `json:"rx_fill_ring_empty"`
	RXInvalid       uint64 `json:"rx_invalid"`
	TXInvalid       uint64 `json:"tx_invalid"`
}

func (r *run) report() *report { return r.summary(r.elapsed, r.end) }

// summary is the report of what has happened in a time.
func (r *run) summary(elapsed time.Duration, end string) *report {
	seconds := elapsed.Seconds()
	s := &report{
		Mode: string(r.options.mode), DurationSeconds: seconds, End: end, Threads: len(r.threads), Queues: []queueReport{},
		Pool: r.lease.Pool(), Resumes: r.lease.Resumes(),
	}
	if r.err != nil {
		s.Error = r.err.Error()
	}
	for _, p := range r.ports {
		c := p.queue.Counters()
		q := queueReport{
			Netdev: p.device.Netdev, Queue: p.device.Queue, NUMANode: p.device.NUMANode,
			ZeroCopy: p.mode.ZeroCopy, MultiBuffer: p.mode.MultiBuffer,
			BusyPoll: busyPollReport{Active: p.status.Active, Reason: p.status.Reason},
			totals: totals{
				RXPackets: c.RXPackets, RXBytes: c.RXBytes, RXMpps: mpps(c.RXPackets, seconds),
				TXPackets: c.TXPackets, TXBytes: c.TXBytes, TXMpps: mpps(c.TXPackets, seconds),
			},
			Completed: c.Completed, NotCompleted: p.left, RXCalls: c.RXCalls, TXCalls: c.TXCalls, Sleeps: c.Sleeps,
		}
		if p.mode.BusyPoll {
			q.BusyPoll.Budget = p.mode.BusyPollBudget
		}
		if st, err := p.queue.Socket.Statistics(); err == nil {
			q.Drops, q.Lost = newDrops(st), st.Lost()
		}
		s.Queues = append(s.Queues, q)
		s.Total.add(q.totals)
	}
	return s
}

func newDrops(s xsk.Statistics) *drops {
	return &drops{
		RXDropped: s.RXDropped, RXRingFull: s.RXRingFull, RXFillRingEmpty: s.FillRingEmpty, RXInvalid: s.RXInvalid,
		TXInvalid: s.TXInvalid,
	}
}

func (t *totals) add(o totals) {
	t.RXPackets, t.RXBytes, t.RXMpps = t.RXPackets+o.RXPackets, t.RXBytes+o.RXBytes, t.RXMpps+o.RXMpps
	t.TXPackets, t.TXBytes, t.TXMpps = t.TXPackets+o.TXPackets, t.TXBytes+o.TXBytes, t.TXMpps+o.TXMpps
	t.Lost += o.Lost
}

func (s *report) writeJSON(w io.Writer) error { return json.NewEncoder(w).Encode(s) }

func (s *report) writeTable(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(cells ...any) {
		for _, c := range cells {
			_, _ = fmt.Fprint(t, c, "\t")
		}
		_, _ = fmt.Fprintln(t)
	}
	rate := func(f float64) string { return strconv.FormatFloat(f, 'f', 3, 64) }
	row("device", "rx packets", "rx Mpps", "tx packets", "tx Mpps", "lost", "mode", "busy polling")
	for _, q := range s.Queues {
		mode, polling := "copy", "inactive"
		if q.ZeroCopy {
			mode = "zero-copy"
		}
		if q.BusyPoll.Active {
			polling = "active"
		}
		row(fmt.Sprintf("%s-q%d", q.Netdev, q.Queue), q.RXPackets, rate(q.RXMpps), q.TXPackets, rate(q.TXMpps), q.Lost, mode, polling)
	}
	row("total", s.Total.RXPackets, rate(s.Total.RXMpps), s.Total.TXPackets, rate(s.Total.TXMpps), s.Total.Lost, "", "")
	if err := t.Flush(); err != nil {
		return err
	}
	duration := time.Duration(s.DurationSeconds * float64(time.Second)).Round(time.Millisecond)
	_, err := fmt.Fprintf(w, "\n%s on pool %s for %v, ended by %s; resumed %d times after a lost connection to the agent\n",
		s.Mode, s.Pool, duration, s.End, s.Resumes)
	for _, q := range s.Queues {
		if err == nil {
			err = q.writeNotes(w)
		}
	}
	return err
}

// writeNotes says what the table has no room for: why busy polling is what it is, and what was lost and why.
func (q *queueReport) writeNotes(w io.Writer) error {
	name := fmt.Sprintf("%s-q%d", q.Netdev, q.Queue)
	_, err := fmt.Fprintf(w, "%s: busy polling: %s\n", name, q.BusyPoll.Reason)
	switch {
	case err != nil:
		return err
	case q.Drops == nil:
		_, err = fmt.Fprintf(w, "%s: lost: unknown, the kernel did not tell\n", name)
	case *q.Drops != (drops{}):
		d := q.Drops
		_, err = fmt.Fprintf(w, "%s: rx_ring_full %d, rx_dropped %d, rx_fill_ring_empty %d, rx_invalid %d, tx_invalid %d\n",
			name, d.RXRingFull, d.RXDropped, d.RXFillRingEmpty, d.RXInvalid, d.TXInvalid)
	}
	if err == nil && q.NotCompleted > 0 {
		_, err = fmt.Fprintf(w, "%s: %d packets were queued but not sent\n", name, q.NotCompleted)
	}
	return err
}
