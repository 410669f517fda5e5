//go:build e2e

package e2e

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/afxdp-project/afxdp/test/e2e/ledger"
)

// kubeletLimit is within how long after a restart of kubelet the devices have to be there again, and slack by how much
// a busy machine may exceed it.
const (
	kubeletLimit = 10 * time.Second
	slack        = 3
)

func kubeletRestart(t *testing.T, c *cluster) {
	c.needContainers(t)
	s := c.space(t, "kubelet", "restricted")
	n := c.workers[0]
	s.start(t, pod{name: "before", node: n, queues: 1, args: []string{"hold"}})
	before := s.opened(t, "before")
	n.do(t, "systemctl", "stop", "kubelet")
	time.Sleep(time.Second) // in which the node's status has its times: what is as young as the start is the new kubelet's
	start := time.Now()
	n.do(t, "systemctl", "start", "kubelet")
	eventually(t, slack*kubeletLimit, "the new kubelet has the devices", func(ctx context.Context) error {
		object, err := c.kube.CoreV1().Nodes().Get(ctx, n.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range object.Status.Conditions {
			if condition.Type == corev1.NodeReady &&
				(condition.LastHeartbeatTime.Time.Before(start.Truncate(time.Second)) || condition.Status != corev1.ConditionTrue) {
				return fmt.Errorf("the node is not ready: %s at %v", condition.Reason, condition.LastHeartbeatTime)
			}
		}
		if have := object.Status.Allocatable[corev1.ResourceName(domain+"/"+pool)]; have.Value() != queues {
			return fmt.Errorf("it offers %v devices", have.Value())
		}
		return nil
	})
	took := time.Since(start).Round(time.Millisecond)
	t.Logf("all devices were allocatable again %v after kubelet's start (bound: %v)", took, kubeletLimit)
	// It gives out those that are free, and the pod that has one goes on.
	s.start(t, pod{name: "after", node: n, queues: queues - 1, args: []string{"hold"}})
	after := s.opened(t, "after")
	if slices.Contains(devices(after), devices(before)[0]) {
		t.Errorf("%v was given out twice", devices(before))
	}
	ctx, cancel := background(time.Minute)
	defer cancel()
	if p, err := s.get(ctx, "before"); err != nil || p.Status.Phase != corev1.PodRunning || p.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("the pod with a queue did not go on: %v %s", err, describe(p))
	}
}

func agentsReplacedUnderTraffic(t *testing.T, c *cluster) {
	s := c.space(t, "restart", "restricted")
	s.answers(t)
	s.start(t, pod{name: "send", node: c.workers[0], queues: queues, args: []string{"send", "--resumes", "1", "--timeout", "30s"}})
	s.opened(t, "send")
	var old [2]*corev1.Pod
	for i, n := range c.workers {
		old[i] = c.agentReady(t, n, "")
	}
	ctx, cancel := background(2 * time.Minute)
	defer cancel()
	for _, p := range old {
		if err := c.kube.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for i, n := range c.workers {
		c.agentReady(t, n, string(old[i].UID))
	}
	e := s.sent(t, "send") // all that was sent was answered, and the sender's sockets counted no drop
	if e.Resumes != 1 {
		t.Errorf("the sender has taken up %d lost connections; want 1", e.Resumes)
	}
	var sent, answered uint64
	for _, q := range e.Queues {
		sent += q.Sent
	}
	a := s.last(t, startLimit, "answer", "it has taken up the lost connection", func(e ledger.Event) error {
		answered = 0
		for _, q := range e.Queues {
			answered += q.Sent
			if q.Drops != 0 || q.Wrong != 0 {
				return permanent("%s: dropped %d, wrong %d", q.Device, q.Drops, q.Wrong)
			}
		}
		if e.Resumes != 1 || answered != sent {
			return fmt.Errorf("resumed %d times, answered %d of %d", e.Resumes, answered, sent)
		}
		return nil
	})
	t.Logf("sent %d, answered %d, resumed once each, no drop", sent, answered)
	// The new agent counts for the sockets that the old one made.
	for _, q := range a.Queues {
		netdev, queue, _ := strings.Cut(q.Device, "-q")
		c.metric(t, c.workers[1], metricDrops, map[string]string{"netdev": netdev, "queue": queue}, 0)
	}
}

// metric waits until a metric of a node's agent, with some labels, is there and has a value.
func (c *cluster) metric(t *testing.T, n *node, name string, labels map[string]string, want float64) {
	t.Helper()
	eventually(t, startLimit, fmt.Sprintf("node %s: metric %s%v", n.name, name, labels), func(ctx context.Context) error {
		value, err := c.scrape(ctx, n, name, labels)
		if err == nil && value != want {
			err = fmt.Errorf("it is %v, want %v", value, want)
		}
		return err
	})
}

// scrape returns the value of a metric with some labels, the sum if there are several.
func (c *cluster) scrape(ctx context.Context, n *node, name string, labels map[string]string) (float64, error) {
	body, err := c.ask(ctx, n, "/metrics")
	if err != nil {
		return 0, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	family, ok := families[name]
	if !ok {
		return 0, fmt.Errorf("there is no such metric")
	}
	sum, found := 0.0, false
	for _, m := range family.Metric {
		matches := 0
		for _, l := range m.Label {
			if labels[l.GetName()] == l.GetValue() {
				matches++
			}
		}
		if matches == len(labels) {
			found = true
			sum += m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	if !found {
		return 0, fmt.Errorf("it has no such labels")
	}
	return sum, nil
}

func agentDown(t *testing.T, c *cluster) {
	c.needContainers(t)
	s := c.space(t, "down", "restricted")
	n := c.workers[0]
	always := func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyAlways }
	s.start(t, pod{name: "held", node: n, queues: 1, args: []string{"hold"}, change: always})
	s.opened(t, "held")
	if err := c.install(map[string]any{"affinity": onNodes(c.workers[1])}); err != nil {
		t.Fatal(err)
	}
	defer func() { // also when this test fails
		if err := c.install(nil); err != nil {
			t.Fatal(err)
		}
	}()
	eventually(t, endLimit, "the agent is gone", func(ctx context.Context) error {
		if p, err := c.agent(ctx, n); err == nil {
			return errors.New(describe(p))
		}
		return nil
	})
	c.offers(t, n, pool, 0) // until the scheduler hears of it, kubelet would reject the pods that it sends
	// A pod whose sandbox is gone gets another one, for which the CNI plugin needs the agent; kubelet does not ask for
	// devices again.
	n.sh(t, "crictl --timeout 60s stopp $(crictl --timeout 60s pods --quiet --namespace "+s.name+" --name held)")
	s.start(t,
		pod{name: "without", node: n, args: []string{"idle"}},
		pod{name: "with", node: n, queues: 1, args: []string{"hold"}})
	eventually(t, startLimit, "a pod without queues starts", func(ctx context.Context) error {
		p, err := s.get(ctx, "without")
		if err == nil && p.Status.Phase != corev1.PodRunning {
			err = errors.New(describe(p))
		}
		return err
	})
	c.event(t, s.name, "Pod", "held", "FailedCreatePodSandBox", "agent")
	ctx, cancel := background(time.Minute)
	defer cancel()
	held, err := s.get(ctx, "held")
	if err != nil {
		t.Fatal(err)
	}
	with, err := s.get(ctx, "with")
	if err != nil {
		t.Fatal(err)
	}
	if st := held.Status.ContainerStatuses[0]; st.State.Running != nil {
		t.Errorf("without the agent, the pod whose sandbox is gone runs: %s", describe(held))
	}
	if with.Status.Phase != corev1.PodPending {
		t.Errorf("without the agent, the new pod with a queue is not pending: %s", describe(with))
	}
	if err := c.install(nil); err != nil {
		t.Fatal(err)
	}
	s.opened(t, "with")
	eventually(t, startLimit, "the pod whose sandbox is gone runs again", func(ctx context.Context) error {
		p, err := s.get(ctx, "held")
		if err == nil && (p.Status.ContainerStatuses[0].State.Running == nil || p.Status.ContainerStatuses[0].RestartCount == 0) {
			err = errors.New(describe(p))
		}
		return err
	})
	s.opened(t, "held")
}

// hurry has kubelet look at the agents' pods now, and so write a changed ConfigMap into them; by itself it does within
// about a minute.
func (c *cluster) hurry(ctx context.Context) error {
	for _, n := range c.workers {
		p, err := c.agent(ctx, n)
		if err != nil {
			return err
		}
		patch := fmt.Sprintf(`{"metadata": {"annotations": {%q: %q}}}`, prefix+"/look", strconv.FormatInt(time.Now().UnixNano(), 10))
		_, err = c.kube.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
		if err != nil {
			return err
		}
	}
	return nil
}

var errDiffers = errors.New("not yet")

const (
	reloadLimit   = 3 * time.Minute
	hurryInterval = 2 * time.Second
)

// written waits until a changed ConfigMap shows its effect.
func (c *cluster) written(t *testing.T, what string, ask func(context.Context) error) {
	t.Helper()
	var hurried time.Time
	eventually(t, reloadLimit, what, func(ctx context.Context) error {
		if time.Since(hurried) > hurryInterval {
			hurried = time.Now()
			if err := c.hurry(ctx); err != nil {
				return err
			}
		}
		return ask(ctx)
	})
}

// reloaded waits until the nodes offer so many devices by pool.
func (c *cluster) reloaded(t *testing.T, want map[string]int64) {
	t.Helper()
	c.written(t, "the changed pools are in force", func(ctx context.Context) error {
		for _, n := range c.workers {
			for pool, count := range want {
				if have, _, err := c.allocatable(ctx, n, pool); err != nil || have != count {
					return fmt.Errorf("node %s offers %d of %s, want %d: %w", n.name, have, pool, count, cmp.Or(err, errDiffers))
				}
			}
		}
		return nil
	})
}

func poolsChanged(t *testing.T, c *cluster) {
	s := c.space(t, "pools", "restricted")
	n := c.workers[0]
	s.start(t, pod{name: "held", node: n, queues: 1, args: []string{"hold"}})
	held := devices(s.opened(t, "held"))[0]
	queue, err := strconv.Atoi(held[strings.LastIndex(held, "-q")+2:])
	if err != nil {
		t.Fatal(err)
	}
	kept := []string{strconv.Itoa(queue), strconv.Itoa((queue + 1) % queues)}
	spare := []string{strconv.Itoa((queue + 2) % queues), strconv.Itoa((queue + 3) % queues)}
	var old [2]*corev1.Pod
	for i, n := range c.workers {
		old[i] = c.agentReady(t, n, "")
	}
	values := map[string]any{"pools": []any{
		c.poolValues(pool, strings.Join(kept, ",")), c.poolValues("spare", strings.Join(spare, ",")),
	}}
	if err := c.install(values); err != nil {
		t.Fatal(err)
	}
	c.reloaded(t, map[string]int64{pool: 2, "spare": 2})
	for i, n := range c.workers {
		if now := c.agentReady(t, n, ""); now.UID != old[i].UID || now.Status.ContainerStatuses[0].RestartCount != old[i].Status.ContainerStatuses[0].RestartCount {
			t.Errorf("node %s: the agent was started anew for a change of the pools", n.name)
		}
	}
	c.leases(t, n, 1)
	s.start(t, pod{name: "spare", node: n, queues: 2, pool: "spare", args: []string{"hold"}})
	s.opened(t, "spare")
	if e := s.opened(t, "held"); e.Event == ledger.End || e.Resumes != 0 {
		t.Errorf("the pod that has a queue was disturbed: %+v", e)
	}
	s.end(t, "spare", -1)
	if err := c.install(nil); err != nil {
		t.Fatal(err)
	}
	c.written(t, "the pools are as before", func(ctx context.Context) error {
		for _, n := range c.workers {
			if healthy, err := c.healthy(ctx, n, pool); err != nil || healthy != queues {
				return fmt.Errorf("node %s has %d devices: %w", n.name, healthy, cmp.Or(err, errDiffers))
			}
		}
		return nil
	})
	c.leases(t, n, 1)
}

func badPools(t *testing.T, c *cluster) {
	bad := c.poolValues(pool, "all")
	bad["busyPol"] = map[string]any{"budget": 64}
	if err := c.install(map[string]any{"pools": []any{bad}}); err == nil || !strings.Contains(err.Error(), "busyPol") {
		t.Errorf("helm says %v to an unknown key; want a refusal that names it", err)
	}
	ctx, cancel := background(2 * time.Minute)
	defer cancel()
	maps, err := c.kube.CoreV1().ConfigMaps(prefix).List(ctx, metav1.ListOptions{LabelSelector: agentLabels})
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(maps.Items, func(m corev1.ConfigMap) bool { return m.Data[configKey] != "" })
	if i < 0 {
		t.Fatalf("no ConfigMap with %s is there", configKey)
	}
	m := &maps.Items[i]
	good := m.Data[configKey]
	edit := func(text string) {
		t.Helper()
		ctx, cancel := background(time.Minute)
		defer cancel()
		now, err := c.kube.CoreV1().ConfigMaps(prefix).Get(ctx, m.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		now.Data[configKey] = text
		if _, err := c.kube.CoreV1().ConfigMaps(prefix).Update(ctx, now, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	inForce := func(want float64) {
		t.Helper()
		c.written(t, fmt.Sprintf("the agents' metric %s is %v", metricReload, want), func(ctx context.Context) error {
			for _, n := range c.workers {
				if have, err := c.scrape(ctx, n, metricReload, nil); err != nil || have != want {
					return fmt.Errorf("node %s: it is %v: %w", n.name, have, cmp.Or(err, errDiffers))
				}
			}
			return nil
		})
	}
	edit(strings.ReplaceAll(good, "queues: all", "queues: every"))
	t.Cleanup(func() {
		edit(good)
		inForce(1)
	})
	inForce(0)
	for _, n := range c.workers {
		c.event(t, "", "Node", n.name, "queues", "every")
		c.offers(t, n, pool, queues)
	}
}
