package cni

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/afxdp-project/afxdp/internal/kubelet"
)

const (
	defaultAgentSocket = "/run/afxdp/agent.sock"
	defaultTimeout     = 30 * time.Second

	// kubelet gives a sandbox two minutes by default; a plugin that is still waiting then reports to nobody.
	minTimeout = time.Second
	maxTimeout = 2 * time.Minute

	maxSocketPath = 107 // sun_path is 108 bytes with its NUL
	maxDeviceID   = 64
)

// netConf is the part of a network configuration that the plugin reads. A configuration carries keys of others too
// (ipam, dns, capabilities, what a meta-plugin adds), which are left alone.
type netConf struct {
	CNIVersion  string
	Name        string
	AgentSocket string        // the agent's gRPC socket
	KubeletRoot string        // kubelet's --root-dir
	Timeout     time.Duration // of one invocation, all its steps together
	Standalone  bool          // STATUS and GC fail when the agent cannot be reached
	DeviceID    string        // set by a meta-plugin such as Multus; empty without one
	PrevResult  json.RawMessage

	// ValidAttachments is what GC keeps. Nil means that the runtime gave no list, which is not an empty one.
	ValidAttachments []types.GCAttachment
}

const (
	keyValid = "cni.dev/valid-attachments"
	// The name that libraries used before they and the specification agreed on one; libcni sends both.
	keyValidOld = "cni.dev/attachments"
)

var ownKeys = []string{"agentSocket", "kubeletRoot", "timeout", "standalone", "deviceID", "runtimeConfig", "prevResult"}

// parseConf reads a network configuration. Its errors carry CNI code 6 (not JSON) or 7 (a value is wrong).
func parseConf(stdin []byte) (*netConf, error) {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(stdin, &keys); err != nil {
		return nil, failf(types.ErrDecodingFailure, "decode the network configuration: %v", err)
	}
	for key := range keys {
		i := slices.IndexFunc(ownKeys, func(own string) bool { return strings.EqualFold(key, own) })
		if i >= 0 && key != ownKeys[i] {
			return nil, failf(types.ErrInvalidNetworkConfig, "network configuration: %s: write it %s", key, ownKeys[i])
		}
	}
	c := &netConf{PrevResult: given(keys["prevResult"])}
	var timeout, lateDeviceID string
	var runtimeConfig map[string]json.RawMessage
	for _, k := range []struct {
		key  string
		into any
		want string
	}{
		{"cniVersion", &c.CNIVersion, "a string"},
		{"name", &c.Name, "a string"},
		{"agentSocket", &c.AgentSocket, "a string"},
		{"kubeletRoot", &c.KubeletRoot, "a string"},
		{"timeout", &timeout, `a string such as "30s"`},
		{"standalone", &c.Standalone, "true or false"},
		{"deviceID", &c.DeviceID, "a string"},
		{"runtimeConfig", &runtimeConfig, "an object"},
	} {
		if err := decodeKey(keys, k.key, k.into, k.want); err != nil {
			return nil, err
		}
	}
	if err := decodeKey(runtimeConfig, "deviceID", &lateDeviceID, "a string"); err != nil {
		return nil, err
	}
	if err := c.setValidAttachments(keys); err != nil {
		return nil, err
	}
	if err := c.validate(timeout, lateDeviceID); err != nil {
		return nil, err
	}
	return c, nil
}

// given returns nil for a value that is absent or null.
func given(raw json.RawMessage) json.RawMessage {
	if string(raw) == "null" {
		return nil
	}
	return raw
}

func decodeKey(keys map[string]json.RawMessage, key string, into any, want string) error {
	raw := given(keys[key])
	if raw == nil {
		return nil
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return failf(types.ErrInvalidNetworkConfig, "network configuration: %s: want %s, got %s", key, want, shorten(raw))
	}
	return nil
}

func (c *netConf) setValidAttachments(keys map[string]json.RawMessage) error {
	key := keyValid
	raw, ok := keys[key]
	if !ok {
		key = keyValidOld
		if raw, ok = keys[key]; !ok {
			return nil
		}
	}
	if err := json.Unmarshal(raw, &c.ValidAttachments); err != nil {
		return failf(types.ErrInvalidNetworkConfig,
			"network configuration: %s: want a list of objects with containerID and ifname, got %s", key, shorten(raw))
	}
	if c.ValidAttachments == nil {
		c.ValidAttachments = []types.GCAttachment{} // "null" is how Go writes an empty list
	}
	for i, a := range c.ValidAttachments {
		if a.ContainerID == "" || a.IfName == "" {
			return failf(types.ErrInvalidNetworkConfig,
				"network configuration: %s[%d]: containerID and ifname must not be empty", key, i)
		}
	}
	return nil
}

func (c *netConf) validate(timeout, lateDeviceID string) error {
	if c.AgentSocket == "" {
		c.AgentSocket = defaultAgentSocket
	}
	if c.KubeletRoot == "" {
		c.KubeletRoot = kubelet.DefaultRoot
	}
	for key, path := range map[string]string{"agentSocket": c.AgentSocket, "kubeletRoot": c.KubeletRoot} {
		if !filepath.IsAbs(path) || strings.ContainsRune(path, 0) {
			return failf(types.ErrInvalidNetworkConfig, "network configuration: %s: want an absolute path, got %q", key, path)
		}
	}
	sockets := map[string]string{"agentSocket": c.AgentSocket, "kubeletRoot": kubelet.PodResourcesSocket(c.KubeletRoot)}
	for key, path := range sockets {
		if n := len(path); n > maxSocketPath {
			return failf(types.ErrInvalidNetworkConfig,
				"network configuration: %s: the path of socket %s has %d bytes, at most %d are possible",
				key, path, n, maxSocketPath)
		}
	}
	c.Timeout = defaultTimeout
	if timeout != "" {
		d, err := time.ParseDuration(timeout)
		if err != nil || d < minTimeout || d > maxTimeout {
			return failf(types.ErrInvalidNetworkConfig,
				`network configuration: timeout: want a duration from "%s" to "%s" such as "30s", got %q`,
				minTimeout, maxTimeout, timeout)
		}
		c.Timeout = d
	}
	switch {
	case c.DeviceID == "":
		c.DeviceID = lateDeviceID
	case lateDeviceID != "" && lateDeviceID != c.DeviceID:
		return failf(types.ErrInvalidNetworkConfig,
			"network configuration: deviceID is %q and runtimeConfig.deviceID is %q: they must be the same",
			c.DeviceID, lateDeviceID)
	}
	if n := len(c.DeviceID); n > maxDeviceID {
		return failf(types.ErrInvalidNetworkConfig,
			"network configuration: deviceID: %d bytes, at most %d are allowed", n, maxDeviceID)
	}
	return nil
}

// shorten returns raw JSON for an error message.
func shorten(raw json.RawMessage) string {
	const most = 80
	if len(raw) > most {
		return string(raw[:most]) + "..."
	}
	return string(raw)
}
