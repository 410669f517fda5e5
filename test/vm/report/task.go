package report

// TaskFile is where the guest finds its Task, in JSON.
const TaskFile = "/task.json"

// PortFile is the serial port for messages. The other one is the kernel's console.
const PortFile = "/dev/ttyS1"

// AgentFile is where the guest finds the node agent, if it has one.
const AgentFile = "/bin/afxdp-deviceplugin"

// Task is what the host wants of the guest.
type Task struct {
	Kernel string `json:"kernel"` // class
	NICs   []NIC  `json:"nics"`
	Queues int    `json:"queues"`
	// Once are modes that the first NIC goes through, instead of all NICs through the others.
	Once []string `json:"once,omitempty"`
	// Agent wants the node agent started, which must refuse.
	Agent bool `json:"agent"`
	// Bench wants measurements of the first NIC, and nothing else.
	Bench *Bench `json:"bench,omitempty"`
}

// NIC is one that the guest tests.
type NIC struct {
	Name   string `json:"name"`   // the key of the rows' driver
	Driver string `json:"driver"` // virtio_net, igb or veth
	MAC    string `json:"mac"`    // of one that the machine has
	Copy   bool   `json:"copy"`   // in copy mode, whatever the driver can
}

// Modes of a row.
const (
	ModeInterrupts = "interrupts"
	ModeBusyPoll   = "busy-poll"
	// ModeNoKick is busy polling without the second socket that starts transmission.
	ModeNoKick   = "busy-poll, no kick socket"
	ModeThreaded = "threaded NAPI"
	// ModePinned is a kernel thread on a CPU of choice; it takes a machine with two.
	ModePinned = "threaded NAPI, pinned"
	// ModeHandoff is busy polling by way of the agent's socket and the client library.
	ModeHandoff = "handoff"
	// ModeAgent is the node agent's start.
	ModeAgent = "agent"
)
