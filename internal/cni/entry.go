package cni

import (
	"github.com/afxdp-project/afxdp/internal/kubelet"
)

// Type is the plugin's name in a configuration, and that of its binary.
const Type = "afxdp-cni"

// Entry is the plugin's element in the configuration list of the node's network, where it is called after the plugins
// before it.
type Entry struct {
	Type        string `json:"type"`
	AgentSocket string `json:"agentSocket,omitempty"`
	KubeletRoot string `json:"kubeletRoot,omitempty"`
}

// NewEntry returns the entry for an agent's socket and kubelet's root directory, which it names only where they are not
// what the plugin uses anyway.
func NewEntry(agentSocket, kubeletRoot string) Entry {
	e := Entry{Type: Type}
	if agentSocket != defaultAgentSocket {
		e.AgentSocket = agentSocket
	}
	if kubeletRoot != kubelet.DefaultRoot {
		e.KubeletRoot = kubeletRoot
	}
	return e
}

// Versions returns the versions of the CNI specification that the plugin speaks.
func Versions() []string { return supported.SupportedVersions() }
