//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func uninstalledWithLease(t *testing.T, c *cluster) {
	c.needContainers(t)
	s := c.space(t, "uninstall", "restricted")
	n := c.workers[0]
	s.start(t, pod{name: "hold", node: n, queues: 2, args: []string{"hold"}})
	s.opened(t, "hold")
	c.leases(t, n, 2)
	if same := c.before[0].nic().compare(n.snapshot(t, c.nic).nic()); len(same) == 0 {
		t.Fatal("a lease changes nothing of the NIC: this test shows nothing")
	}
	log, err := c.uninstall()
	t.Logf("the hook's log:\n%s", log)
	if err != nil {
		t.Fatal(err)
	}
	for _, difference := range c.before[0].nic().compare(n.snapshot(t, c.nic).nic()) {
		t.Errorf("the NIC is not as it was before the installation: %s", difference)
	}
	for _, word := range []string{c.workers[0].name, c.workers[1].name, s.name + "/hold"} {
		if !strings.Contains(log, word) {
			t.Errorf("the hook's log does not mention %s", word)
		}
	}
	c.event(t, s.name, "Pod", "hold", "ninstall")
}

// nic is what of a snapshot is about the NIC.
func (s snapshot) nic() snapshot {
	nic := maps.Clone(s)
	maps.DeleteFunc(nic, func(name, _ string) bool { return !strings.HasPrefix(name, "NIC") })
	return nic
}

func uninstalledLeavesNothing(t *testing.T, c *cluster) {
	c.needContainers(t)
	if err := c.install(nil); err != nil {
		t.Fatal(err)
	}
	s := c.space(t, "last", "restricted")
	s.answers(t)
	s.start(t, pod{name: "send", node: c.workers[0], queues: queues, args: []string{"send"}})
	s.opened(t, "send")
	var kernel []object
	for _, n := range c.workers {
		objects := n.pinned(t)
		if len(objects) == 0 {
			t.Fatalf("node %s: no pins while there are leases", n.name)
		}
		kernel = append(kernel, objects...)
	}
	s.sent(t, "send")
	s.end(t, "answer", -1)
	s.end(t, "send", -1)
	if _, err := c.uninstall(); err != nil {
		t.Fatal(err)
	}
	for i, n := range c.workers {
		for _, difference := range c.before[i].compare(n.snapshot(t, c.nic)) {
			t.Errorf("node %s is not as it was before the installation: %s", n.name, difference)
		}
		ctx, cancel := background(time.Minute)
		object, err := c.kube.CoreV1().Nodes().Get(ctx, n.name, metav1.GetOptions{})
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		for key := range object.Annotations {
			if strings.HasPrefix(key, domain) {
				t.Errorf("node %s has the annotation %s", n.name, key)
			}
		}
	}
	eventually(t, 10*time.Second, "the kernel has dropped programs, maps and links", func(context.Context) error {
		var errs []error
		for _, o := range kernel {
			if o.exists() {
				errs = append(errs, fmt.Errorf("%s %d is there", o.kind, o.id))
			}
		}
		return errors.Join(errs...)
	})
	c.nothingLeftInCluster(t)
}

// nothingLeftInCluster looks for what the chart could have left.
func (c *cluster) nothingLeftInCluster(t *testing.T) {
	t.Helper()
	ctx, cancel := background(time.Minute)
	defer cancel()
	out, err := command(ctx, nil, "helm", "--kubeconfig", c.kubeconfig, "list", "--namespace", prefix, "--all", "--short")
	if err != nil || out != "" {
		t.Errorf("helm still lists %q %v", out, err)
	}
	options := metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + chartName}
	var left []string
	add := func(kind string, names []string, err error) {
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range names {
			left = append(left, kind+" "+n)
		}
	}
	roles, err := c.kube.RbacV1().ClusterRoles().List(ctx, options)
	add("cluster role", namesOf(roles.Items, func(i int) string { return roles.Items[i].Name }), err)
	bindings, err := c.kube.RbacV1().ClusterRoleBindings().List(ctx, options)
	add("cluster role binding", namesOf(bindings.Items, func(i int) string { return bindings.Items[i].Name }), err)
	policies, err := c.kube.AdmissionregistrationV1().ValidatingAdmissionPolicies().List(ctx, options)
	add("admission policy", namesOf(policies.Items, func(i int) string { return policies.Items[i].Name }), err)
	policyBindings, err := c.kube.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().List(ctx, options)
	add("admission policy binding", namesOf(policyBindings.Items, func(i int) string { return policyBindings.Items[i].Name }), err)
	sets, err := c.kube.AppsV1().DaemonSets(prefix).List(ctx, options)
	add("daemon set", namesOf(sets.Items, func(i int) string { return sets.Items[i].Name }), err)
	accounts, err := c.kube.CoreV1().ServiceAccounts(prefix).List(ctx, options)
	add("service account", namesOf(accounts.Items, func(i int) string { return accounts.Items[i].Name }), err)
	configs, err := c.kube.CoreV1().ConfigMaps(prefix).List(ctx, options)
	add("config map", namesOf(configs.Items, func(i int) string { return configs.Items[i].Name }), err)
	if len(left) > 0 {
		t.Errorf("left in the cluster: %v", left)
	}
}

func namesOf[T any](items []T, name func(int) string) []string {
	names := make([]string, 0, len(items))
	for i := range items {
		names = append(names, name(i))
	}
	slices.Sort(names)
	return names
}

// object is a program, a map or a link in the kernel.
type object struct {
	kind string
	id   uint32
}

// pinned returns the objects that are pinned on a node, and the programs of links. The nodes share this machine's kernel.
func (n *node) pinned(t *testing.T) []object {
	t.Helper()
	ctx, cancel := background(time.Minute)
	defer cancel()
	pid, err := n.pid(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var objects []object
	root := filepath.Join("/proc", strconv.Itoa(pid), "root/sys/fs/bpf")
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		if m, err := ebpf.LoadPinnedMap(path, nil); err == nil {
			defer m.Close()
			if info, err := m.Info(); err == nil {
				if id, ok := info.ID(); ok {
					objects = append(objects, object{"map", uint32(id)})
				}
			}
			return nil
		}
		l, err := link.LoadPinnedLink(path, nil)
		if err != nil {
			return nil // something else
		}
		defer l.Close()
		info, err := l.Info()
		if err != nil {
			return err
		}
		objects = append(objects, object{"link", uint32(info.ID)}, object{"program", uint32(info.Program)})
		return nil
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return objects
}

func (o object) exists() bool {
	switch o.kind {
	case "map":
		m, err := ebpf.NewMapFromID(ebpf.MapID(o.id))
		if err == nil {
			m.Close()
		}
		return err == nil
	case "program":
		p, err := ebpf.NewProgramFromID(ebpf.ProgramID(o.id))
		if err == nil {
			p.Close()
		}
		return err == nil
	}
	l, err := link.NewFromID(link.ID(o.id))
	if err == nil {
		l.Close()
	}
	return err == nil
}
