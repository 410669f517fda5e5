// Package client is the pod's side of the handoff: it connects to the node agent, registers a UMEM, gets a bound AF_XDP
// socket for each device of an allocation and maps its rings. No capability is needed.
//
// [Connect], then [Client.OpenAll] for the usual case: all devices on one shared UMEM. A [Client] keeps its connection
// for as long as the devices are used. When the agent is restarted, packets keep flowing and the client connects again
// and resumes by itself. When the lease ends, [Client.Done] is closed.
package client
