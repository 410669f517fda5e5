// Package report is what the guest tells the host: messages, one a line, on a serial port.
package report

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// Prefix starts each line that is a message.
const Prefix = "afxdp-vm: "

// Message is one of the guest's.
type Message struct {
	// Send asks for traffic into a NIC, until Quiet.
	Send *Send `json:"send,omitempty"`
	// Quiet asks to stop it.
	Quiet bool `json:"quiet,omitempty"`
	// Row is a result. Tag is that of the frames that it sent to the other end of NIC, which the host counts.
	Row *Row   `json:"row,omitempty"`
	Tag byte   `json:"tag,omitempty"`
	NIC string `json:"nic,omitempty"`
	// Flood and Ping ask for other traffic, until Quiet; Bench is a result.
	Flood bool      `json:"flood,omitempty"`
	Ping  bool      `json:"ping,omitempty"`
	Bench *BenchRun `json:"bench,omitempty"`
	// Speedup is how many times as much as one the guest's CPUs do.
	Speedup float64 `json:"speedup,omitempty"`
	// Failed ends the run: why the guest could not go on.
	Failed string `json:"failed,omitempty"`
	// Done ends the run: all rows were sent.
	Done bool `json:"done,omitempty"`
}

// Send says where traffic is to go.
type Send struct {
	NIC string `json:"nic"` // a key of the host's NICs
	MAC string `json:"mac"`
}

// Row is what was found out about one kernel, driver and mode.
type Row struct {
	Kernel  string `json:"kernel"`  // class
	Release string `json:"release"` // of the kernel
	Driver  string `json:"driver"`
	Mode    string `json:"mode"`

	// Refusal is why there is no more: the mode, or everything, was refused.
	Refusal string `json:"refusal,omitempty"`

	NativeXDP    bool   `json:"nativeXDP"`
	ZeroCopyBind string `json:"zeroCopyBind,omitempty"` // "ok", or the errno's name
	ZeroCopyText string `json:"zeroCopyText,omitempty"` // the error in words
	CopyBind     string `json:"copyBind,omitempty"`
	Bound        string `json:"bound,omitempty"` // "zero-copy" or "copy"

	Queues       int   `json:"queues"`
	LeasedQueues []int `json:"leasedQueues,omitempty"`
	Queue        int   `json:"queue"` // the leased one that NAPI, settings in force and interrupts are of

	NAPI       NAPI        `json:"napi"`
	Settings   Settings    `json:"settings"`
	BusyPoll   *BusyPoll   `json:"busyPoll,omitempty"`
	RX         RX          `json:"rx"`
	TX         TX          `json:"tx"`
	Interrupts *Interrupts `json:"interrupts,omitempty"` // nil: the driver has none
	Loop       Loop        `json:"loop"`
	Pin        *Pin        `json:"pin,omitempty"`     // of the mode that pins
	Handoff    *Handoff    `json:"handoff,omitempty"` // of the mode that goes through the agent's socket
}

// Pin is on which CPUs the thread of the leased queue's NAPI may run.
type Pin struct {
	Unpinned  string `json:"unpinned"`  // by default
	Before    string `json:"before"`    // as the operator has it
	During    string `json:"during"`    // the lease
	Other     string `json:"other"`     // meanwhile, the thread of another queue, which the operator has pinned too
	AfterFlap string `json:"afterFlap"` // after the link was down and up, during the lease
	After     string `json:"after"`     // the lease
	Unmet     string `json:"unmet"`     // what the lease says that it does not have
}

// Handoff is what the client says of its queue later.
type Handoff struct {
	TurnedOff     BusyPoll `json:"turnedOff"` // when the pod has turned the socket's options off
	Down          BusyPoll `json:"down"`      // while the NIC is down
	UpAgain       BusyPoll `json:"upAgain"`
	ReceivedAgain uint64   `json:"receivedAgain"` // packets, after that
}

// NAPI is how queue and socket are linked to NAPIs, under load.
type NAPI struct {
	Told     bool   `json:"told"`     // the kernel has queue-get
	RX       uint32 `json:"rx"`       // id for the rx queue; 0: none
	TX       uint32 `json:"tx"`       // id for the tx queue; 0: none, or one that cannot be busy-polled and has no id
	Socket   uint32 `json:"socket"`   // SO_INCOMING_NAPI_ID
	Linked   bool   `json:"linked"`   // the rx queue has one
	TXLinked bool   `json:"txLinked"` // the tx queue has one with an id
	Separate bool   `json:"separate"` // that of the rx queue does not serve the tx queue
	Known    bool   `json:"known"`    // the socket knows one
}

// Settings are the NAPI settings of a NIC before the lease, during it and after its end.
type Settings struct {
	Scope  string    `json:"scope,omitempty"` // what the lease changed: "napi", "device", or nothing
	Before *Snapshot `json:"before,omitempty"`
	During *Snapshot `json:"during,omitempty"`
	After  *Snapshot `json:"after,omitempty"`
	// AsWanted says that the leased queue's were those of the pool.
	AsWanted bool `json:"asWanted"`
	// OthersUntouched says that those of all other queues, and of the device, were as before.
	OthersUntouched bool `json:"othersUntouched"`
	// Restored says that all were as before after the lease, and XDP was off.
	Restored bool `json:"restored"`
}

// Snapshot is a NIC's settings at a moment.
type Snapshot struct {
	Device Values            `json:"device"`
	Queues map[string]Values `json:"queues,omitempty"` // by "rx-0"; those that have a NAPI whose settings are told
}

// Values are settings. A nil one is not told.
type Values struct {
	DeferHardIRQs     *uint32        `json:"deferHardIRQs,omitempty"`
	GROFlushTimeout   *time.Duration `json:"groFlushTimeout,omitempty"` // ns
	IRQSuspendTimeout *time.Duration `json:"irqSuspendTimeout,omitempty"`
	Threaded          *uint32        `json:"threaded,omitempty"`
	Thread            bool           `json:"thread,omitempty"` // the NAPI has a kernel thread
}

// BusyPoll is how busy polling went.
type BusyPoll struct {
	Accepted bool   `json:"accepted"` // the socket took the options
	Active   bool   `json:"active"`
	Reason   string `json:"reason"`
}

// RX is what came in.
type RX struct {
	PerQueue   []uint64 `json:"perQueue"` // on a leased queue by its socket, on others what went to the stack
	EveryQueue bool     `json:"everyQueue"`
	Received   uint64   `json:"received"` // by the sockets, as long as interrupts were counted
	// FirstMs is how long after traffic had started each leased queue had received some.
	FirstMs float64 `json:"firstMs"`
	// NeededPoll says that none would come before each socket had made one system call with busy polling on: its fill
	// ring was empty at the bind, and the driver neither looks again nor asks for a wakeup.
	NeededPoll bool `json:"neededPoll"`
}

// TX is what was sent: bursts of as many frames as Sent.
type TX struct {
	Kick string `json:"kick"` // what starts transmission: "socket", "second socket", or "none"
	Sent int    `json:"sent"`
	// Completed is the least that came back of any burst, within two seconds.
	Completed int `json:"completed"`
	// AfterPoll is what came back of a burst that had stalled, after one poll(2) on its socket.
	AfterPoll *int `json:"afterPoll,omitempty"`
	// Fastest, Median and Slowest are how long a whole burst took by the guest's clock, in ms; absent when one did not come
	// back whole.
	Fastest *float64 `json:"fastestMs,omitempty"`
	Median  *float64 `json:"medianMs,omitempty"`
	Slowest *float64 `json:"slowestMs,omitempty"`
	// Within100ms says that half of the bursts did it in that time. Of the others it proves nothing that one takes longer:
	// two machines share two cores with whatever else runs there, and one that is not run for a while does not know it.
	Within100ms bool `json:"within100ms"`
	// Frames and Arrived are how many frames were sent in all, and how many of them the other end saw.
	Frames  int `json:"frames"`
	Arrived int `json:"arrived"`
	// Lost says that Arrived is less.
	Lost bool `json:"lost"`
}

// Time notes how long each burst took that came back whole, in ms. The slice is sorted.
func (t *TX) Time(took []float64) {
	if len(took) == 0 {
		return
	}
	slices.Sort(took)
	t.Fastest, t.Median, t.Slowest = &took[0], &took[len(took)/2], &took[len(took)-1]
	t.Within100ms = *t.Median <= 100
}

// Count notes how many frames the other end saw.
func (t *TX) Count(arrived int) { t.Arrived, t.Lost = arrived, arrived < t.Frames }

// Interrupts are those of the leased queue's rx vector, under the same load, in equal times.
type Interrupts struct {
	Vector string `json:"vector"`
	Before uint64 `json:"before"` // in the row of mode interrupts of the same boot
	After  uint64 `json:"after"`  // in this row
	// FellPercent is by how much they fell.
	FellPercent float64 `json:"fellPercent"`
}

// Loop is what the loop did while interrupts were counted.
type Loop struct {
	RXCalls        uint64  `json:"rxCalls"`
	Sleeps         uint64  `json:"sleeps"`
	CallsPerPacket float64 `json:"rxCallsPerPacket"`
	// Received are the descriptors that came in, Polled those of them that came by the loop's own polls.
	Received      uint64  `json:"received"`
	Polled        uint64  `json:"polled"`
	PolledPercent float64 `json:"polledPercent"`
}

// Write writes a message.
func Write(w io.Writer, m Message) error {
	line, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode message: %w", err)
	}
	_, err = w.Write([]byte("\n" + Prefix + string(line) + "\n"))
	return err
}

// maxLine bounds a message.
const maxLine = 1 << 20

// Read calls f with each message, until f returns an error, which it returns, or r ends.
func Read(r io.Reader, f func(Message) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		text, is := strings.CutPrefix(strings.TrimSpace(lines.Text()), Prefix)
		if !is {
			continue
		}
		var m Message
		if err := json.Unmarshal([]byte(text), &m); err != nil {
			return fmt.Errorf("decode message %q: %w", text, err)
		}
		if err := f(m); err != nil {
			return err
		}
	}
	return lines.Err()
}
