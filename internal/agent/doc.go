// Package agent is the node agent: it puts together what advertises devices to kubelet, what changes NICs, and what
// serves the CNI plugin and the pods.
package agent
