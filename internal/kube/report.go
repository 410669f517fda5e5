package kube

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// Report is what an agent says of the uninstallation of its node. Its lists are sentences for a human.
type Report struct {
	PodUID string   `json:"podUID"` // of the agent
	OK     bool     `json:"ok"`
	Done   []string `json:"done,omitempty"`
	Left   []string `json:"left,omitempty"`   // what stays on the node, and why
	Failed []string `json:"failed,omitempty"` // what went wrong
}

// A node's annotations have room for 256 KiB together, of which a report takes at most a small part.
const (
	maxSentences = 40  // of one list
	maxSentence  = 400 // bytes
)

// encode returns the report's JSON. Lists and sentences that are too long are cut.
func (r Report) encode() string {
	r.Done, r.Left, r.Failed = bound(r.Done), bound(r.Left), bound(r.Failed)
	text, err := json.Marshal(r)
	if err != nil {
		panic(err) // strings and a bool
	}
	return string(text)
}

func bound(list []string) []string {
	var out []string
	for i, s := range list {
		if i == maxSentences {
			return append(out, fmt.Sprintf("and %d more, which the agent's log has", len(list)-i))
		}
		if len(s) > maxSentence {
			s = strings.ToValidUTF8(s[:maxSentence], "") + "..."
		}
		out = append(out, s)
	}
	return out
}

// print writes the report for a human.
func (r Report) print(w io.Writer, node string) {
	outcome := "uninstalled"
	if !r.OK {
		outcome = "NOT fully uninstalled"
	}
	_, _ = fmt.Fprintf(w, "node %s: %s\n", node, outcome)
	for _, part := range []struct {
		word string
		list []string
	}{{"done", r.Done}, {"left", r.Left}, {"failed", r.Failed}} {
		for _, s := range part.list {
			_, _ = fmt.Fprintf(w, "node %s:   %s: %s\n", node, part.word, s)
		}
	}
}
