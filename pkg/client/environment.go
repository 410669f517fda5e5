package client

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// Pools returns the paths that the environment names, by the variable's name without its prefix: AFXDP_FAST is "FAST".
func Pools() map[string]string {
	pools := make(map[string]string)
	for _, kv := range os.Environ() {
		name, value, _ := strings.Cut(kv, "=")
		if rest, ok := strings.CutPrefix(name, "AFXDP_"); ok && strings.HasPrefix(value, "/") {
			pools[rest] = value
		}
	}
	return pools
}

// DefaultPath returns the path of the one allocation that the environment names, and an error when it names none or
// several.
func DefaultPath() (string, error) {
	pools := Pools()
	if len(pools) > 1 {
		return "", fmt.Errorf("%d AFXDP_<POOL> variables are set; choose one", len(pools))
	}
	for _, path := range pools {
		return path, nil
	}
	return "", errors.New("no AFXDP_<POOL> variable is set: the container has not asked for a resource afxdp.io/<pool>")
}
