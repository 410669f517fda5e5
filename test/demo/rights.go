package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// rights are what a process may do, all its threads taken together.
type rights struct {
	uid        int    // real, effective, saved and filesystem uid; -1 if they differ
	caps       uint64 // inheritable, permitted, effective, bounding and ambient set together
	noNewPrivs bool
	groups     string // supplementary ones
}

// rightsOf reads the rights of a process from the kernel.
func rightsOf(pid int) (rights, error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("process %d is gone", pid)
	}
	if err != nil {
		return rights{}, fmt.Errorf("read rights: %w", err)
	}
	var all rights
	first := true
	for _, f := range files {
		status, err := os.ReadFile(f)
		if os.IsNotExist(err) {
			continue // a thread that has ended
		}
		if err != nil {
			return rights{}, fmt.Errorf("read rights: %w", err)
		}
		r, err := parseRights(string(status))
		if err != nil {
			return rights{}, fmt.Errorf("read rights from %s: %w", f, err)
		}
		if first {
			all, first = r, false
		}
		all.add(r)
	}
	return all, nil
}

func (r *rights) add(other rights) {
	if r.uid != other.uid {
		r.uid = -1
	}
	r.caps |= other.caps
	r.noNewPrivs = r.noNewPrivs && other.noNewPrivs
	if r.groups == "" {
		r.groups = other.groups
	}
}

// lockLimitOf returns the hard limit of a process for locked memory, in bytes or "unlimited". It reads a file, since
// prlimit on another user's process needs a capability that root may lack.
func lockLimitOf(pid int) (string, error) {
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
	if err != nil {
		return "", fmt.Errorf("read limits: %w", err)
	}
	for line := range strings.Lines(string(limits)) {
		if values, ok := strings.CutPrefix(line, "Max locked memory"); ok {
			if f := strings.Fields(values); len(f) == 3 {
				return f[1], nil
			}
		}
	}
	return "", fmt.Errorf("read limits of process %d: they name none of locked memory", pid)
}

// parseRights reads the text of /proc/<pid>/status.
func parseRights(status string) (rights, error) {
	lines := make(map[string]string)
	for line := range strings.Lines(status) {
		name, value, _ := strings.Cut(line, ":")
		lines[name] = strings.TrimSpace(value)
	}
	r := rights{groups: lines["Groups"], noNewPrivs: lines["NoNewPrivs"] == "1"}
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		caps, err := strconv.ParseUint(lines[set], 16, 64)
		if err != nil {
			return r, fmt.Errorf("%s: %w", set, err)
		}
		r.caps |= caps
	}
	uids := strings.Fields(lines["Uid"])
	if len(uids) != 4 {
		return r, fmt.Errorf("%q are not four uids", lines["Uid"])
	}
	var err error
	if r.uid, err = strconv.Atoi(uids[0]); err != nil {
		return r, fmt.Errorf("first uid: %w", err)
	}
	for _, u := range uids[1:] {
		if u != uids[0] {
			r.uid = -1
		}
	}
	return r, nil
}
