package config

import "fmt"

// Device is one queue of one NIC.
type Device struct {
	NIC   string
	Queue int
}

// ID returns what kubelet calls the device, for example "eth1-q2".
func (d Device) ID() string { return fmt.Sprintf("%s-q%d", d.NIC, d.Queue) }

// Problem is something in the configuration that does not fit the node. It costs the pool the queues that it names and
// nothing else.
type Problem struct {
	Pool   string
	NIC    string   // empty when it concerns no NIC that is there
	Queues QueueSet // of NIC; all when the whole NIC is concerned
	Msg    string   // names pool, NIC and queues
}

// String returns the message.
func (p Problem) String() string { return p.Msg }

// Assign shares out the queues of the node's NICs.
func (c *Config) Assign(nics []NIC) (map[string][]Device, []Problem) {
	panic("not yet")
}
