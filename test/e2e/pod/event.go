package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/afxdp-project/afxdp/test/e2e/ledger"
)

// identity says as whom this process runs, as the kernel has it.
func identity() (ledger.Identity, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return ledger.Identity{}, err
	}
	id := ledger.Identity{UID: os.Getuid()}
	for line := range strings.Lines(string(status)) {
		if v, ok := strings.CutPrefix(line, "CapEff:"); ok {
			id.Capabilities = strings.TrimSpace(v)
		}
	}
	uids, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return ledger.Identity{}, err
	}
	var inside, outside, length uint64
	if _, err := fmt.Sscan(string(uids), &inside, &outside, &length); err != nil {
		return ledger.Identity{}, fmt.Errorf("read uid_map: %w", err)
	}
	id.UserNamespace = outside != 0
	return id, nil
}

// tell prints an event, a line.
func tell(e ledger.Event) error { return json.NewEncoder(os.Stdout).Encode(e) }
