//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// node is a worker of the cluster.
type node struct {
	name string
	// container reports that the node is a container of the same name, as kind's nodes are, so that tests can do to it
	// what an administrator may do.
	container bool
}

// run runs a command on the node.
func (n *node) run(ctx context.Context, stdin io.Reader, args ...string) (string, error) {
	if !n.container {
		return "", fmt.Errorf("node %s is no container", n.name)
	}
	flags := []string{"exec", n.name}
	if stdin != nil {
		flags = []string{"exec", "-i", n.name}
	}
	return command(ctx, stdin, "docker", append(flags, args...)...)
}

// do runs a command on the node that has to succeed.
func (n *node) do(tb testing.TB, args ...string) string {
	tb.Helper()
	ctx, cancel := background(time.Minute)
	defer cancel()
	out, err := n.run(ctx, nil, args...)
	if err != nil {
		tb.Fatal(err)
	}
	return out
}

// sh runs a shell script on the node that has to succeed.
func (n *node) sh(tb testing.TB, script string) string {
	tb.Helper()
	return n.do(tb, "sh", "-ec", script)
}

// pid returns the process that the node's namespaces belong to, as this machine numbers it.
func (n *node) pid(ctx context.Context) (int, error) {
	out, err := command(ctx, nil, "docker", "inspect", "--format", "{{.State.Pid}}", n.name)
	if err != nil {
		return 0, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(out))
	if err == nil && pid == 0 {
		err = fmt.Errorf("container %s does not run", n.name)
	}
	return pid, err
}

// wire gives two nodes a NIC of one name with several queues each. What is sent on a queue of one arrives at the same
// queue of the other. An old one is removed.
func wire(ctx context.Context, a, b *node, nic string, queues int) error {
	pids := make([]string, 2)
	for i, n := range []*node{a, b} {
		pid, err := n.pid(ctx)
		if err != nil {
			return err
		}
		pids[i] = strconv.Itoa(pid)
	}
	if err := unwire(ctx, a, b, nic); err != nil {
		return err
	}
	q := strconv.Itoa(queues)
	_, err := command(ctx, nil, "ip", "link", "add", nic, "netns", pids[0], "numrxqueues", q, "numtxqueues", q,
		"type", "veth", "peer", "name", nic, "netns", pids[1], "numrxqueues", q, "numtxqueues", q)
	if err != nil {
		return fmt.Errorf("wire %s and %s (it needs root): %w", a.name, b.name, err)
	}
	for _, n := range []*node{a, b} {
		// No traffic but the tests' own, and sysfs as other nodes than those in containers have it.
		script := "ip link set dev " + nic + " addrgenmode none && ip link set dev " + nic + " up && mount -o remount,rw /sys"
		if _, err := n.run(ctx, nil, "sh", "-ec", script); err != nil {
			return err
		}
	}
	return nil
}

// unwire removes the NIC that wire made.
func unwire(ctx context.Context, a, b *node, nic string) error {
	for _, n := range []*node{a, b} {
		if _, err := n.run(ctx, nil, "sh", "-c", "! ip link show dev "+nic+" >/dev/null 2>&1 || ip link del dev "+nic); err != nil {
			return err
		}
	}
	return nil
}

// snapshot is what an installation could leave on a node: what is where, by a name for reading.
type snapshot map[string]string

const (
	// conflistContents is the entry of a snapshot that has the CNI configuration that a container runtime takes, whole.
	conflistContents = "first CNI configuration"
	// firstConflist prints its path.
	firstConflist = "ls /etc/cni/net.d/*.conflist | sort | head -n 1"
)

// snapshot takes one. Of the NIC it has what an administrator sees and sets. A bpffs and
// an empty /run/afxdp may stay: see docs/uninstall.md.
func (n *node) snapshot(tb testing.TB, nic string) snapshot {
	tb.Helper()
	s := snapshot{}
	lines := func(name, script string) {
		s[name] = strings.TrimSpace(n.sh(tb, script))
	}
	lines("CNI configuration", "cd /etc/cni/net.d && find . -type f -exec sha256sum {} + | sort -k2")
	lines("CNI plugins", "cd /opt/cni/bin && find . -type f -exec sha256sum {} + | sort -k2")
	s[conflistContents] = n.sh(tb, "cat $("+firstConflist+")")
	lines("run directory", "find /run/afxdp -mindepth 1 2>/dev/null | sort || true")
	// A bpffs has two files of its own.
	lines("pins", "find /sys/fs/bpf -mindepth 1 ! -name maps.debug ! -name progs.debug 2>/dev/null | sort || true")
	lines("kubelet's plugin directory", "find /var/lib/kubelet/device-plugins /var/lib/kubelet/plugins_registry ! -name kubelet_internal_checkpoint | sort")
	// Without what is another when the NIC was made anew.
	lines("NIC", "ip -d link show dev "+nic+" | sed 's/^[0-9]*: //; s/@if[0-9]*:/:/; s/link-netnsid [0-9]*//; s/link.ether [^ ]*/link/'")
	lines("NIC's features", "ethtool -k "+nic+" || true")
	lines("NIC's channels", "ethtool -l "+nic+" || true")
	for _, knob := range []string{"napi_defer_hard_irqs", "gro_flush_timeout", "threaded"} {
		lines("NIC's "+knob, "cat /sys/class/net/"+nic+"/"+knob)
	}
	return s
}

// compare tells what differs, a line each.
func (s snapshot) compare(now snapshot) []string {
	var differences []string
	for _, name := range slices.Sorted(maps.Keys(s)) {
		if now[name] != s[name] {
			differences = append(differences, fmt.Sprintf("%s: was\n%s\nis\n%s", name, s[name], now[name]))
		}
	}
	return differences
}
