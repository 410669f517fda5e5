//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	// prefix is what the names of everything that the tests make begin with; what has it is removed at start.
	prefix = "afxdp-e2e"
	// queues is how many rx and tx queues the NICs of the workers have.
	queues = 4
	// kindConfig makes a control plane and two workers.
	kindConfig = `kind: Cluster
apiVersion: kind.x-k8s.io/v1alpha4
nodes: [{role: control-plane}, {role: worker}, {role: worker}]
`
)

// cluster is what the tests run on.
type cluster struct {
	kubeconfig string
	rest       *rest.Config
	kube       *kubernetes.Clientset
	workers    [2]*node
	nic        string // of both workers, wired to each other
	wired      bool   // by the tests, which may do so again
	image      string // of the agent
	podImage   string // has the program test/e2e/pod
	output     string // directory for what helps to understand a failure
	chart      release
	before     [2]snapshot // of the workers, before anything was installed; only if wired
}

// needContainers skips the test where the nodes are no containers: it does to a node what is not done to one that others
// use.
func (c *cluster) needContainers(t *testing.T) {
	t.Helper()
	if !c.workers[0].container || !c.workers[1].container || !c.wired {
		t.Skip("it needs nodes that are containers, and NICs that may be removed")
	}
}

// newCluster takes the cluster that KUBECONFIG names, or makes one with kind that is deleted with the test. What an
// earlier run has left is removed.
func newCluster(t *testing.T) *cluster {
	output, err := filepath.Abs("../../build/e2e")
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{kubeconfig: os.Getenv("KUBECONFIG"), output: output}
	if err := errors.Join(os.RemoveAll(output), os.MkdirAll(output, 0o755)); err != nil {
		t.Fatal(err)
	}
	if c.kubeconfig == "" {
		c.makeKind(t)
	}
	c.rest, err = clientcmd.BuildConfigFromFlags("", c.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	c.rest.QPS, c.rest.Burst = 200, 400
	// Forwarding a port prints what goes wrong, beside returning it: agents that do not serve yet are nothing to print.
	runtime.ErrorHandlers = nil
	if c.kube, err = kubernetes.NewForConfig(c.rest); err != nil {
		t.Fatal(err)
	}
	eventually(t, 3*time.Minute, "two nodes that take pods", c.findWorkers)
	return c
}

func (c *cluster) makeKind(t *testing.T) {
	c.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	remove := func() error {
		ctx, cancel := background(2 * time.Minute)
		defer cancel()
		_, err := command(ctx, nil, "kind", "delete", "cluster", "--name", prefix, "--kubeconfig", c.kubeconfig)
		return err
	}
	if err := remove(); err != nil { // of a run that was killed
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if os.Getenv("AFXDP_E2E_KEEP") != "" {
			t.Logf("kept: kind cluster %s", prefix)
			return
		}
		if err := remove(); err != nil {
			t.Error(err)
		}
	})
	args := []string{"create", "cluster", "--name", prefix, "--kubeconfig", c.kubeconfig, "--config", "-", "--wait", "3m"}
	if image := os.Getenv("KIND_NODE_IMAGE"); image != "" {
		args = append(args, "--image", image)
	}
	ctx, cancel := background(10 * time.Minute)
	defer cancel()
	if _, err := command(ctx, strings.NewReader(kindConfig), "kind", args...); err != nil {
		t.Fatal(err)
	}
}

// findWorkers chooses two nodes that are ready and take pods, workers rather than control planes.
func (c *cluster) findWorkers(ctx context.Context) error {
	list, err := c.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var names []string
	for _, n := range list.Items {
		_, control := n.Labels["node-role.kubernetes.io/control-plane"]
		ready := slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		})
		if !control && ready && !n.Spec.Unschedulable {
			names = append(names, n.Name)
		}
	}
	if len(names) < 2 {
		return fmt.Errorf("two workers are needed, there are %d that are ready", len(names))
	}
	slices.Sort(names)
	containers, _ := command(ctx, nil, "docker", "ps", "--format", "{{.Names}}")
	for i := range c.workers {
		c.workers[i] = &node{name: names[i], container: slices.Contains(strings.Fields(containers), names[i])}
	}
	return nil
}

// prepare sweeps, wires the workers, gives the nodes the images and finds the chart.
func (c *cluster) prepare(t *testing.T) {
	ctx, cancel := background(5 * time.Minute)
	defer cancel()
	c.sweep(ctx, t)
	if c.nic = os.Getenv("AFXDP_E2E_NIC"); c.nic == "" {
		if !c.workers[0].container || !c.workers[1].container {
			t.Fatal("the nodes are no containers of this machine: AFXDP_E2E_NIC has to name a NIC of two nodes that is wired to the other's")
		}
		c.nic, c.wired = "afx0", true
		if err := c.rewire(ctx); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			ctx, cancel := background(time.Minute)
			defer cancel()
			if err := unwire(ctx, c.workers[0], c.workers[1], c.nic); err != nil {
				t.Error(err)
			}
		})
	}
	c.loadImages(ctx, t)
	t.Cleanup(func() { // before the images and the NICs go
		if os.Getenv("AFXDP_E2E_KEEP") == "" {
			ctx, cancel := background(5 * time.Minute)
			defer cancel()
			c.sweep(ctx, t)
		}
	})
	if !c.wired {
		return
	}
	// One node without a bpffs: the installer has to mount it.
	c.workers[1].sh(t, "! mountpoint -q /sys/fs/bpf || umount /sys/fs/bpf")
	for i, n := range c.workers {
		c.before[i] = n.snapshot(t, c.nic)
	}
}

// rewire makes the NICs anew.
func (c *cluster) rewire(ctx context.Context) error {
	return wire(ctx, c.workers[0], c.workers[1], c.nic, queues)
}

// sweep removes what the tests have made: at start, since an earlier run may have been killed, and at the end.
func (c *cluster) sweep(ctx context.Context, t *testing.T) {
	if out, err := c.chart.helm(ctx, c, "list", "--namespace", prefix, "--all", "--short"); err == nil && out != "" {
		t.Logf("uninstalling the release that is there: %s", strings.TrimSpace(out))
		c.deleteNamespaces(ctx, t, false)
		if _, err := c.chart.helm(ctx, c, "uninstall", chartName, "--namespace", prefix, "--wait", "--timeout", "3m"); err != nil {
			t.Log(err)
			if _, err := c.chart.helm(ctx, c, "uninstall", chartName, "--namespace", prefix, "--no-hooks"); err != nil {
				t.Fatal(err)
			}
		}
	}
	c.deleteNamespaces(ctx, t, true)
	for _, n := range c.workers {
		if n.container {
			n.do(t, "rm", "-rf", delegatePath, delegatePath+".cache")
		}
	}
}

// deleteNamespaces deletes those of the tests, and with all that of the chart.
func (c *cluster) deleteNamespaces(ctx context.Context, t *testing.T, all bool) {
	list, err := c.kube.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: prefix})
	if err != nil {
		t.Fatal(err)
	}
	for _, ns := range list.Items {
		if ns.Name == prefix && !all {
			continue
		}
		if err := c.kube.CoreV1().Namespaces().Delete(ctx, ns.Name, metav1.DeleteOptions{}); err != nil {
			t.Log(err)
		}
	}
	eventually(t, 2*time.Minute, "the tests' namespaces are gone", func(ctx context.Context) error {
		list, err := c.kube.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: prefix})
		if err != nil {
			return err
		}
		for _, ns := range list.Items {
			if ns.Name != prefix || all {
				return fmt.Errorf("%s is there", ns.Name)
			}
		}
		return nil
	})
}
