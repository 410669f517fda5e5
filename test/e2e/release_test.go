//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

const (
	chartName   = "afxdp" // of the release too
	chartDir    = "../../charts/afxdp"
	agentLabels = "app.kubernetes.io/name=afxdp,app.kubernetes.io/component=agent"
	agentPort   = "9417"
	helmLimit   = "3m"
	configKey   = "config.yaml"

	metricDrops  = "afxdp_drops_total"
	metricReload = "afxdp_config_last_reload_successful"
)

// release is the chart's installation, in the namespace prefix.
type release struct {
	values map[string]any
}

// poolValues is a pool of some of the queues of the workers' NICs.
func (c *cluster) poolValues(name, queues string) map[string]any {
	return map[string]any{"name": name, "nics": map[string]any{"names": []string{c.nic}}, "queues": queues}
}

// baseValues are those that the tests install with.
func (c *cluster) baseValues() map[string]any {
	colon := strings.LastIndex(c.image, ":")
	return map[string]any{
		"image":    map[string]any{"repository": c.image[:colon], "tag": c.image[colon+1:]},
		"pools":    []any{c.poolValues(pool, "all")},
		"affinity": onNodes(c.workers[0], c.workers[1]),
	}
}

// onNodes has the agents run on some nodes only, whatever else the cluster has.
func onNodes(nodes ...*node) map[string]any {
	var names []string
	for _, n := range nodes {
		names = append(names, n.name)
	}
	return map[string]any{"nodeAffinity": map[string]any{"requiredDuringSchedulingIgnoredDuringExecution": map[string]any{
		"nodeSelectorTerms": []any{map[string]any{"matchExpressions": []any{
			map[string]any{"key": corev1.LabelHostname, "operator": "In", "values": names},
		}}},
	}}}
}

func (r *release) helm(ctx context.Context, c *cluster, args ...string) (string, error) {
	return command(ctx, nil, "helm", append([]string{"--kubeconfig", c.kubeconfig}, args...)...)
}

// install installs the chart, or upgrades it, with values over the base values, and waits until it is ready.
func (c *cluster) install(values map[string]any) error {
	ctx, cancel := background(5 * time.Minute)
	defer cancel()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: prefix, Labels: map[string]string{prefix: "", "pod-security.kubernetes.io/enforce": "privileged"},
	}}
	if _, err := c.kube.CoreV1().Namespaces().Get(ctx, prefix, metav1.GetOptions{}); err != nil {
		if _, err := c.kube.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	all := c.baseValues()
	maps.Copy(all, values)
	text, err := yaml.Marshal(all)
	if err != nil {
		return err
	}
	_, err = command(ctx, bytes.NewReader(text), "helm", "--kubeconfig", c.kubeconfig, "upgrade", "--install", chartName, chartDir,
		"--namespace", prefix, "--values", "-", "--wait", "--timeout", helmLimit)
	if err == nil {
		c.chart.values = values
	}
	return err
}

// uninstall uninstalls the chart, and returns what the pre-delete hook has written.
func (c *cluster) uninstall() (string, error) {
	ctx, cancel := background(5 * time.Minute)
	defer cancel()
	_, err := c.chart.helm(ctx, c, "uninstall", chartName, "--namespace", prefix, "--wait", "--timeout", helmLimit)
	log, logErr := c.hookLog(ctx)
	return log, errors.Join(err, logErr)
}

// hookLog returns what the pre-delete hook has written; its Job is kept.
func (c *cluster) hookLog(ctx context.Context) (string, error) {
	list, err := c.kube.CoreV1().Pods(prefix).List(ctx, metav1.ListOptions{LabelSelector: "batch.kubernetes.io/job-name"})
	if err != nil {
		return "", err
	}
	if len(list.Items) == 0 {
		return "", errors.New("no pod of the pre-delete hook is there")
	}
	slices.SortFunc(list.Items, func(a, b corev1.Pod) int { return b.CreationTimestamp.Compare(a.CreationTimestamp.Time) })
	raw, err := c.kube.CoreV1().Pods(prefix).GetLogs(list.Items[0].Name, &corev1.PodLogOptions{}).DoRaw(ctx)
	return string(raw), err
}

// agentReady waits until a node has an agent, other than the one of a UID, that is ready.
func (c *cluster) agentReady(t *testing.T, n *node, other string) *corev1.Pod {
	t.Helper()
	var found *corev1.Pod
	eventually(t, startLimit, "node "+n.name+" has an agent that is ready", func(ctx context.Context) error {
		p, err := c.agent(ctx, n)
		if err != nil {
			return err
		}
		if string(p.UID) == other || !ready(p) {
			return errors.New(describe(p))
		}
		found = p
		return nil
	})
	return found
}

func ready(p *corev1.Pod) bool {
	return p.DeletionTimestamp == nil && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// status is what of the agent's /statusz the tests look at.
type status struct {
	Devices []struct {
		ID, Pool, Reason string
		Healthy          bool
		Lease            *struct {
			Pod   struct{ Namespace, Name string }
			State string
			Open  bool
		}
	}
}

func (c *cluster) status(ctx context.Context, n *node) (s status, err error) {
	body, err := c.ask(ctx, n, "/statusz")
	if err == nil {
		err = json.Unmarshal(body, &s)
	}
	return s, err
}

// healthy returns how many devices of a pool the agent of a node offers. kubelet tells the API server so every ten seconds.
func (c *cluster) healthy(ctx context.Context, n *node, pool string) (count int, err error) {
	s, err := c.status(ctx, n)
	for _, d := range s.Devices {
		if d.Pool == pool && d.Healthy {
			count++
		}
	}
	return count, err
}

// leases waits until the agent of a node has so many leases, all of them active.
func (c *cluster) leases(t *testing.T, n *node, want int) {
	t.Helper()
	eventually(t, endLimit, fmt.Sprintf("node %s has %d leases", n.name, want), func(ctx context.Context) error {
		s, err := c.status(ctx, n)
		if err != nil {
			return err
		}
		var have []string
		for _, d := range s.Devices {
			if d.Lease != nil {
				have = append(have, fmt.Sprintf("%s of %s/%s %s", d.ID, d.Lease.Pod.Namespace, d.Lease.Pod.Name, d.Lease.State))
				if d.Lease.State != "active" {
					return fmt.Errorf("%q", have)
				}
			}
		}
		if len(have) != want {
			return fmt.Errorf("there are %q", have)
		}
		return nil
	})
}

// diagnose writes down what helps to understand a failure.
func (c *cluster) diagnose(t *testing.T, namespace string) {
	ctx, cancel := background(30 * time.Second)
	defer cancel()
	name := strings.NewReplacer("/", "_", " ", "-").Replace(t.Name())
	var b strings.Builder
	for _, ns := range []string{namespace, prefix} {
		pods, err := c.kube.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			fmt.Fprintln(&b, err)
			continue
		}
		for _, p := range pods.Items {
			fmt.Fprintf(&b, "== %s on %s: %s\n", ns, p.Spec.NodeName, describe(&p))
			for _, container := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
				for _, previous := range []bool{true, false} {
					lines := int64(300)
					raw, err := c.kube.CoreV1().Pods(ns).GetLogs(p.Name, &corev1.PodLogOptions{
						Container: container.Name, Previous: previous, TailLines: &lines,
					}).DoRaw(ctx)
					if err == nil {
						fmt.Fprintf(&b, "-- log of %s (previous: %v)\n%s\n", container.Name, previous, raw)
					}
				}
			}
		}
		list, err := c.kube.CoreV1().Events(ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			fmt.Fprintln(&b, err)
			continue
		}
		fmt.Fprintf(&b, "== events in %s\n", ns)
		for _, e := range list.Items {
			fmt.Fprintln(&b, e.LastTimestamp.Format(time.TimeOnly), e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Reason, e.Message)
		}
	}
	for _, n := range c.workers {
		body, err := c.ask(ctx, n, "/statusz")
		fmt.Fprintf(&b, "== status of %s: %v\n%s\n", n.name, err, body)
	}
	path := c.output + "/" + name + ".txt"
	if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
		t.Log(err)
	}
	t.Logf("logs, events and status: %s", path)
}
