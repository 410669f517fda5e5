package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// world is what can be seen of a host, a node or a NIC: names of things with their values.
type world map[string]string

// changes says in which points after differs from w.
func (w world) changes(after world) []string {
	var diff []string
	for _, k := range slices.Sorted(maps.Keys(after)) {
		if was, had := w[k]; !had {
			diff = append(diff, fmt.Sprintf("%s: %s, was not there before", k, after[k]))
		} else if was != after[k] {
			diff = append(diff, fmt.Sprintf("%s: %s, was %s", k, after[k], was))
		}
	}
	for _, k := range slices.Sorted(maps.Keys(w)) {
		if _, has := after[k]; !has {
			diff = append(diff, fmt.Sprintf("%s: gone, was %s", k, w[k]))
		}
	}
	return diff
}

// runVariable marks the processes of one run in their environment.
const runVariable = "DEMO_RUN"

var runText = "afxdp-" + rand.Text()

func runID() string { return runText }

// lookAtHost sees what the demo could leave on the host and no one else makes: processes of this run, and below the
// places that it has for itself on the node, mounts, files and network devices.
func lookAtHost() (world, error) {
	w := make(world)
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(mounts)) {
		m := parseMount(line)
		if strings.Contains(m.point, "afxdp") || slices.Contains(nodeMounts(), m.point) || strings.HasPrefix(m.point, nodeDir) {
			// A count, since the same may be mounted several times at one place.
			w["mount "+m.point] += "+"
		}
	}
	for _, dir := range []string{"/run", "/sys/fs/bpf"} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			if strings.Contains(e.Name(), "afxdp") || filepath.Join(dir, e.Name()) == nodeDir {
				w["file "+filepath.Join(dir, e.Name())] = "there"
			}
		}
	}
	devices, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	for _, d := range devices {
		if d.Name == nearNIC || d.Name == farNIC {
			w["network device "+d.Name] = "there"
		}
	}
	return w, marked(w)
}

// marked adds the processes of this run other than this one.
func marked(w world) error {
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return err
	}
	for _, dir := range processes {
		environment, err := os.ReadFile(filepath.Join(dir, "environ"))
		if err != nil {
			continue // gone
		}
		if strings.Contains(string(environment), runVariable+"="+runID()) {
			name, _ := os.ReadFile(filepath.Join(dir, "comm"))
			w["process "+filepath.Base(dir)] = strings.TrimSpace(string(name))
		}
	}
	return nil
}

// lookAtNode sees what there is in the node's namespaces: everything in them is the demo's, so all is listed.
func lookAtNode() (world, error) {
	w := make(world)
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(mounts)) {
		m := parseMount(line)
		w["mount "+m.point] += m.kind + " "
		if strings.HasPrefix(m.root, "net:[") {
			w["network namespace "+m.root] = "in use"
		}
	}
	for _, dir := range []string{"/sys/fs/bpf", filepath.Join(runDir, "state")} {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			name := filepath.Base(path)
			// The agent keeps its lock, and the allocation as long as kubelet has it.
			if name != "state" && name != "lock" && !strings.HasPrefix(name, "allocation-") {
				w["file "+path] = "there"
			}
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	devices, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	for _, d := range devices {
		w["network device "+d.Name] = d.Flags.String()
	}
	return w, lookAtProcesses(w)
}

// lookAtProcesses adds the processes, and the network namespaces that they are in or have open.
func lookAtProcesses(w world) error {
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return err
	}
	for _, dir := range processes {
		name, err := os.ReadFile(filepath.Join(dir, "comm"))
		if err != nil {
			continue // gone
		}
		w["process "+filepath.Base(dir)] = strings.TrimSpace(string(name))
		spaces, _ := filepath.Glob(filepath.Join(dir, "task/*/ns/net"))
		fds, _ := filepath.Glob(filepath.Join(dir, "fd/*"))
		for _, path := range slices.Concat(spaces, fds) {
			if target, err := os.Readlink(path); err == nil && strings.HasPrefix(target, "net:[") {
				w["network namespace "+target] = "in use"
			}
		}
	}
	return nil
}

// mount is a line of mountinfo: what is mounted, where, of which kind.
type mount struct{ root, point, kind string }

func parseMount(line string) mount {
	f := strings.Fields(line)
	m := mount{}
	if len(f) > 4 {
		m.root, m.point = f[3], f[4]
	}
	if i := slices.Index(f, "-"); i >= 0 && i+1 < len(f) {
		m.kind = f[i+1]
	}
	return m
}
