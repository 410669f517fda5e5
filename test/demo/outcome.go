package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
)

// outcome is the last line.
type outcome struct {
	UID           int      `json:"uid"`  // of the pod's process, real, effective, saved and filesystem uid alike; else -1
	Caps          string   `json:"caps"` // all its capability sets together, in hexadecimal
	Queues        int      `json:"queues"`
	SharedUMEM    bool     `json:"shared_umem"`
	Seconds       float64  `json:"seconds"`  // during which packets flowed
	Sent          uint64   `json:"sent"`     // by the source
	Received      uint64   `json:"received"` // by the pod, as it counts
	Answered      uint64   `json:"answered"` // what came back to the source, checked
	Drops         uint64   `json:"drops"`    // all that the kernel counted on either side, and what was not answered
	PerQueue      []uint64 `json:"per_queue"`
	Reconnects    int      `json:"reconnects"`
	AgentRestarts int      `json:"agent_restarts"` // that the pod resumed after
	Restored      bool     `json:"restored"`       // the NIC is as it was
	Leftovers     []string `json:"leftovers"`
}

// What the demo must show.
const (
	podUID     = 65534
	podQueues  = 2
	minPackets = 150_000
	minRate    = 50_000 // packets a second
	minSeconds = 3
)

func (o *outcome) write(w io.Writer) error {
	o.Seconds = math.Round(o.Seconds*1000) / 1000
	if o.PerQueue == nil {
		o.PerQueue = []uint64{}
	}
	if o.Leftovers == nil {
		o.Leftovers = []string{}
	}
	return json.NewEncoder(w).Encode(o)
}

// failures says what the outcome should have shown and does not.
func (o *outcome) failures() []error {
	var bad []error
	must := func(ok bool, format string, args ...any) {
		if !ok {
			bad = append(bad, fmt.Errorf(format, args...))
		}
	}
	must(o.UID == podUID, "the pod's uid is %d, not %d", o.UID, podUID)
	must(o.Caps == fmt.Sprintf("%016x", 0), "the pod has capabilities %s", o.Caps)
	must(o.Queues == podQueues, "the pod has %d queues, not %d", o.Queues, podQueues)
	must(o.SharedUMEM, "the pod's sockets do not share one UMEM")
	must(o.Seconds >= minSeconds, "packets flowed for %.3f s, not %d", o.Seconds, minSeconds)
	must(o.Sent >= minPackets, "%d packets were sent, not %d", o.Sent, minPackets)
	must(float64(o.Sent) >= minRate*o.Seconds, "%.0f packets a second were sent, not %d", float64(o.Sent)/o.Seconds, minRate)
	must(o.Received == o.Sent, "%d packets were sent and %d received", o.Sent, o.Received)
	must(o.Answered == o.Sent, "%d packets were sent and %d answered", o.Sent, o.Answered)
	must(o.Drops == 0, "%d packets were dropped", o.Drops)
	must(len(o.PerQueue) == o.Queues, "%d queues received packets, of %d", len(o.PerQueue), o.Queues)
	for i, n := range o.PerQueue {
		must(4*n >= o.Received && n > 0, "queue %d of %d received %d packets, less than a quarter of %d", i+1, o.Queues, n, o.Received)
	}
	must(o.Reconnects == 1, "the pod reconnected %d times, not once", o.Reconnects)
	must(o.AgentRestarts == 1, "the pod resumed after %d restarts of the agent, not one", o.AgentRestarts)
	must(o.Restored, "the NIC is not as it was")
	must(len(o.Leftovers) == 0, "left behind: %q", o.Leftovers)
	return bad
}
