// Package ledger is what the test program in pods tells and the tests read: events, a JSON object a line.
package ledger

// What an Event tells.
const (
	Open     = "open"     // packets can come
	Progress = "progress" // the counts so far
	End      = "end"      // the last line; Error is empty if all went well
)

// Event is one line.
type Event struct {
	Event    string   `json:"event"`
	Error    string   `json:"error,omitempty"`
	Pool     string   `json:"pool,omitempty"`
	Identity Identity `json:"identity"`
	Resumes  uint64   `json:"resumes"` // connections to the agent that were lost and taken up again
	Queues   []Queue  `json:"queues"`
}

// Identity is as whom the program runs.
type Identity struct {
	UID           int    `json:"uid"`
	Capabilities  string `json:"capabilities"` // effective, hexadecimal
	UserNamespace bool   `json:"userNamespace"`
}

// Queue is one device.
type Queue struct {
	Device   string `json:"device"`   // such as eth1-q2
	Obstacle string `json:"obstacle"` // why busy polling cannot work; empty where it can
	ZeroCopy bool   `json:"zeroCopy"`

	Sent     uint64 `json:"sent"`     // questions, or answers
	Received uint64 `json:"received"` // answers, or questions
	// Tags are the questions received, by their sender's tag.
	Tags map[string]uint64 `json:"tags,omitempty"`
	// Wrong are packets of some test program that should not have come: another's, twice, out of order.
	Wrong uint64 `json:"wrong"`
	Other uint64 `json:"other"` // packets that are no test program's
	Drops uint64 `json:"drops"` // all losses that the kernel counts for the socket
}
