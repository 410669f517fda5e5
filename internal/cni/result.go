package cni

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/afxdp-project/afxdp/internal/agentapi"
)

// result is an ADD's result as raw JSON, so that what other plugins put into it goes through as they wrote it, also
// what the CNI library's types do not know.
type result struct {
	fields     map[string]json.RawMessage
	interfaces []listed
	raw        json.RawMessage // what was given, as long as nothing has been changed
}

// listed is an entry of a result's interfaces. An interface with a sandbox is in a pod.
type listed struct {
	raw           json.RawMessage
	name, sandbox string
}

// UnmarshalJSON implements [json.Unmarshaler].
func (l *listed) UnmarshalJSON(data []byte) error {
	var has struct{ Name, Sandbox string }
	if err := json.Unmarshal(data, &has); err != nil {
		return err
	}
	*l = listed{bytes.Clone(data), has.Name, has.Sandbox}
	return nil
}

// MarshalJSON implements [json.Marshaler].
func (l listed) MarshalJSON() ([]byte, error) { return l.raw, nil }

// nic is what the plugin lists. mtu, socketPath and pciID exist from CNI 1.1.0 on.
type nic struct {
	Name       string `json:"name"`
	MAC        string `json:"mac,omitempty"`
	MTU        uint32 `json:"mtu,omitempty"`
	SocketPath string `json:"socketPath,omitempty"`
	PCIID      string `json:"pciID,omitempty"`
}

// parseResult reads the configuration's prevResult in the configuration's version; without one it is an empty result.
func parseResult(c *netConf) (*result, error) {
	r := &result{fields: map[string]json.RawMessage{}, raw: c.PrevResult}
	if c.PrevResult == nil {
		return r, r.set("cniVersion", c.CNIVersion)
	}
	var has string
	err := json.Unmarshal(c.PrevResult, &r.fields)
	if err == nil && r.fields["cniVersion"] != nil {
		err = json.Unmarshal(r.fields["cniVersion"], &has)
	}
	switch {
	case err != nil:
		return nil, failf(types.ErrDecodingFailure, "decode prevResult: %v", err)
	case has == "": // of the configuration's version, as plugins before 1.0.0 leave it out
		r.raw = nil
		err = r.set("cniVersion", c.CNIVersion)
	case has != c.CNIVersion:
		r.raw = nil
		err = r.convert(has, c.CNIVersion, c.PrevResult)
	}
	if err != nil {
		return nil, err
	}
	if raw := given(r.fields["interfaces"]); raw != nil {
		if err := json.Unmarshal(raw, &r.interfaces); err != nil {
			return nil, failf(types.ErrDecodingFailure, "decode prevResult: interfaces: %v", err)
		}
	}
	return r, nil
}

func (r *result) convert(from, to string, raw json.RawMessage) error {
	fail := func(err error) error {
		return failf(types.ErrIncompatibleCNIVersion, "convert prevResult from version %q to %q: %v", from, to, err)
	}
	given, err := create.Create(from, raw)
	if err != nil {
		return fail(err)
	}
	converted, err := given.GetAsVersion(to)
	if err != nil {
		return fail(err)
	}
	data, err := json.Marshal(converted)
	if err != nil {
		return fail(err)
	}
	clear(r.fields)
	if err := json.Unmarshal(data, &r.fields); err != nil {
		return fail(err)
	}
	return nil
}

// find returns the index of the node's interface of that name, or -1. One of a pod is another.
func (r *result) find(name string) int {
	return slices.IndexFunc(r.interfaces, func(l listed) bool { return l.name == name && l.sandbox == "" })
}

// add appends the NICs, each of which appears once: where one of that name is listed already (by an earlier ADD, or by
// a plugin that works on the same NIC) it gets what the entry lacks, and keeps its index, to which IPs refer.
func (r *result) add(nics []*agentapi.NIC, cniVersion string) error {
	rich, err := version.GreaterThanOrEqualTo(cniVersion, "1.1.0")
	if err != nil {
		return failf(types.ErrDecodingFailure, "decode cniVersion: %v", err)
	}
	for _, n := range nics {
		entry := nic{Name: n.GetName(), MAC: n.GetMac()}
		if rich {
			entry.MTU, entry.SocketPath, entry.PCIID = n.GetMtu(), n.GetSocketPath(), n.GetPciId()
		}
		data, err := json.Marshal(entry)
		if err != nil {
			return failf(types.ErrInternal, "encode interface %s: %v", entry.Name, err)
		}
		i := r.find(entry.Name)
		if i < 0 {
			r.interfaces = append(r.interfaces, listed{raw: data, name: entry.Name})
			continue
		}
		if r.interfaces[i].raw, err = overlay(data, r.interfaces[i].raw); err != nil {
			return failf(types.ErrInternal, "merge interface %s: %v", entry.Name, err)
		}
	}
	r.raw = nil
	return r.set("interfaces", r.interfaces)
}

// missing returns the names of those NICs that the result does not list.
func (r *result) missing(nics []*agentapi.NIC) []string {
	var names []string
	for _, n := range nics {
		if r.find(n.GetName()) < 0 && !slices.Contains(names, n.GetName()) {
			names = append(names, n.GetName())
		}
	}
	return names
}

// overlay returns the object base with the keys of the object top put over it.
func overlay(base, top json.RawMessage) (json.RawMessage, error) {
	keys := map[string]json.RawMessage{}
	for _, raw := range []json.RawMessage{base, top} {
		if err := json.Unmarshal(raw, &keys); err != nil {
			return nil, err
		}
	}
	return json.Marshal(keys)
}

func (r *result) set(key string, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return failf(types.ErrInternal, "encode %s: %v", key, err)
	}
	r.fields[key] = data
	return nil
}

// print writes the result, in one write.
func (r *result) print(w io.Writer) error {
	data := []byte(r.raw)
	if data == nil {
		var err error
		if data, err = json.Marshal(r.fields); err != nil {
			return fmt.Errorf("encode the result: %w", err)
		}
	}
	if _, err := w.Write(data); err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	return nil
}
