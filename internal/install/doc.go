// Package install puts on a node what the node agent needs there: the CNI plugin in the container runtime's directory
// and a BPF filesystem.
package install
