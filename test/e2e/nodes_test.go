//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/afxdp-project/afxdp/test/e2e/ledger"
)

func conflistRewritten(t *testing.T, c *cluster) {
	c.needContainers(t)
	n := c.workers[0]
	path := strings.TrimSpace(n.sh(t, firstConflist))
	chained := n.do(t, "cat", path)
	if !strings.Contains(chained, "afxdp-cni") {
		t.Fatalf("%s has no entry of the plugin: %s", path, chained)
	}
	// What the main CNI would write: the file as it was before the installation. Without our entry only.
	original := c.before[0][conflistContents]
	if original == "" || strings.Contains(original, "afxdp-cni") {
		t.Fatalf("the configuration before the installation is not known: %q", original)
	}
	ctx, cancel := background(time.Minute)
	defer cancel()
	if _, err := n.run(ctx, strings.NewReader(original), "sh", "-ec", "cat > "+path+".new && mv "+path+".new "+path); err != nil {
		t.Fatal(err)
	}
	eventually(t, startLimit, "the entry is back", func(ctx context.Context) error {
		now, err := n.run(ctx, nil, "cat", path)
		if err == nil && !strings.Contains(now, "afxdp-cni") {
			err = errors.New(now)
		}
		return err
	})
	s := c.space(t, "rewritten", "restricted")
	s.start(t, pod{name: "hold", node: n, queues: 1, args: []string{"hold"}})
	s.opened(t, "hold")
}

func nicLost(t *testing.T, c *cluster) {
	c.needContainers(t)
	ctx, cancel := background(2 * time.Minute)
	defer cancel()
	if err := unwire(ctx, c.workers[0], c.workers[1], c.nic); err != nil {
		t.Fatal(err)
	}
	for _, n := range c.workers {
		c.offers(t, n, pool, 0)
		c.event(t, "", "Node", n.name, c.nic)
	}
	if err := c.rewire(ctx); err != nil {
		t.Fatal(err)
	}
	for _, n := range c.workers {
		c.offers(t, n, pool, queues)
	}
	twoPodsExchange(t, c)
}

func bpffsMounted(t *testing.T, c *cluster) {
	c.needContainers(t)
	if kind := strings.TrimSpace(c.workers[1].sh(t, "stat -f -c %T /sys/fs/bpf")); kind != "bpf_fs" {
		t.Errorf("on %s, /sys/fs/bpf is a %s; want a bpf_fs, which the installer mounts", c.workers[1].name, kind)
	}
}

func nodeRebooted(t *testing.T, c *cluster) {
	c.needContainers(t)
	s := c.space(t, "reboot", "restricted")
	n := c.workers[1]
	s.deployment(t, 1, pod{name: "answer", node: n, queues: queues, args: []string{"answer"}})
	s.openPods(t, startLimit, "answer", 1, nil)
	routes := n.sh(t, "ip -4 route show scope global | grep via || true")
	ctx, cancel := background(5 * time.Minute)
	defer cancel()
	start := time.Now()
	if _, err := command(ctx, nil, "docker", "restart", "--time", "5", n.name); err != nil {
		t.Fatal(err)
	}
	// What a machine finds again as it boots, and a container does not.
	if err := c.rewire(ctx); err != nil {
		t.Fatal(err)
	}
	for route := range strings.Lines(routes) {
		n.sh(t, "ip route replace "+strings.TrimSpace(route))
	}
	eventually(t, 3*time.Minute, "the Deployment's pod has its queues again", func(ctx context.Context) error {
		pods, err := s.kube.CoreV1().Pods(s.name).List(ctx, metav1.ListOptions{LabelSelector: "app=answer"})
		if err != nil {
			return err
		}
		var seen []error
		for _, p := range pods.Items {
			seen = append(seen, errors.New(describe(&p)))
			if p.Status.Phase != corev1.PodRunning || len(p.Status.ContainerStatuses) == 0 {
				continue
			}
			running := p.Status.ContainerStatuses[0].State.Running
			if running == nil || running.StartedAt.Time.Before(start.Truncate(time.Second)) {
				continue
			}
			if told, err := s.told(ctx, p.Name, "main", false); err == nil && len(told) > 0 {
				return nil
			}
		}
		return errors.Join(seen...)
	})
	t.Logf("%v after the reboot", time.Since(start).Round(time.Second))
	s.start(t, pod{name: "send", node: c.workers[0], queues: queues, args: []string{"send"}})
	s.sent(t, "send")
}

// capabilityNeeded is a capability of the agent, and how a pod with queues fares when the agent has not got it.
func capabilitiesNeeded(t *testing.T, c *cluster) {
	c.needContainers(t)
	n := c.workers[0]
	template := c.agentReady(t, n, "")
	if err := c.install(map[string]any{"affinity": onNodes(c.workers[1])}); err != nil {
		t.Fatal(err)
	}
	defer func() {
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
	added := template.Spec.Containers[0].SecurityContext.Capabilities.Add
	for _, without := range append([]corev1.Capability{""}, added...) {
		name := "with all"
		if without != "" {
			name = "without " + string(without)
		}
		t.Run(name, func(t *testing.T) {
			s := c.space(t, "rights", "restricted")
			agent := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: "agent-with-other-rights", Labels: template.Labels},
				Spec:       *template.Spec.DeepCopy(),
			}
			// Not the DaemonSet's: its controller would delete it.
			agent.Labels = map[string]string{"app.kubernetes.io/name": "afxdp", "app.kubernetes.io/component": "agent", prefix: "rights"}
			agent.Spec.Affinity = nil
			agent.Spec.NodeName = n.name
			caps := agent.Spec.Containers[0].SecurityContext.Capabilities
			caps.Add = slices.DeleteFunc(slices.Clone(added), func(c corev1.Capability) bool { return c == without })
			ctx, cancel := background(2 * time.Minute)
			defer cancel()
			if _, err := c.kube.CoreV1().Pods(prefix).Create(ctx, agent, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				a := &space{cluster: c, name: prefix}
				a.end(t, agent.Name, 1)
			})
			s.start(t, pod{name: "hold", node: n, queues: queues, args: []string{"hold"}})
			if without == "" {
				s.opened(t, "hold")
				return
			}
			eventually(t, startLimit, "what needs the capability fails", func(ctx context.Context) error {
				why, err := s.whyNot(ctx, n, "hold")
				if err == nil && why == "" {
					err = errors.New("the pod has not failed")
				}
				if err == nil {
					t.Log(why)
				}
				return err
			})
		})
	}
}

// whyNot tells why a pod with queues cannot work, as the pod, its Events or the agent say; empty: not known yet.
func (s *space) whyNot(ctx context.Context, n *node, name string) (string, error) {
	p, err := s.get(ctx, name)
	if err != nil {
		return "", err
	}
	if told, err := s.told(ctx, name, "main", false); err == nil && len(told) > 0 {
		if last := told[len(told)-1]; last.Error != "" {
			return "the pod: " + last.Error, nil
		}
		return "", permanent("the pod has its queues: %s", describe(p))
	}
	events, err := s.kube.CoreV1().Events(s.name).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + name})
	if err != nil {
		return "", err
	}
	for _, e := range events.Items {
		for _, word := range []string{"not permitted", "EPERM", "permission denied"} {
			if strings.Contains(e.Message, word) {
				return "an Event: " + e.Message, nil
			}
		}
	}
	if a, err := s.agent(ctx, n); err == nil {
		for _, st := range a.Status.ContainerStatuses {
			if st.RestartCount > 0 {
				raw, err := s.kube.CoreV1().Pods(prefix).GetLogs(a.Name, &corev1.PodLogOptions{Previous: true}).DoRaw(ctx)
				return fmt.Sprintf("the agent: %s", raw), err
			}
		}
	}
	return "", errors.New(describe(p))
}

// attachedByDelegate is what a meta plugin such as Multus does: it calls the plugin with the configuration of a
// NetworkAttachmentDefinition, the pod's sandbox and a device id.
func attachedByDelegate(t *testing.T, c *cluster) {
	c.needContainers(t)
	n := c.workers[0]
	if err := c.install(map[string]any{"cni": map[string]any{"chain": false}}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.install(nil); err != nil {
			t.Fatal(err)
		}
	}()
	if conf := n.sh(t, "cat $("+firstConflist+")"); strings.Contains(conf, "afxdp-cni") {
		t.Errorf("with cni.chain false the node's CNI configuration has the plugin:\n%s", conf)
	}
	program, err := os.Open("../../build/bin/e2e-delegate")
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	ctx, cancel := background(3 * time.Minute)
	defer cancel()
	if _, err := n.run(ctx, program, "sh", "-ec", "cat > "+delegatePath+" && chmod +x "+delegatePath); err != nil {
		t.Fatal(err)
	}
	defer n.do(t, "rm", "-rf", delegatePath, delegatePath+".cache")
	s := c.space(t, "delegate", "restricted")
	s.start(t, pod{name: "hold", node: n, queues: 2, args: []string{"hold"}, change: func(p *corev1.Pod) {
		p.Spec.RestartPolicy = corev1.RestartPolicyAlways
	}})
	// Until somebody calls the plugin for the pod, it does not start, and says why.
	c.event(t, s.name, "Pod", "hold", "afxdp-cni was not called for this pod")
	p, err := s.get(ctx, "hold")
	if err != nil {
		t.Fatal(err)
	}
	sandbox := strings.TrimSpace(n.sh(t, "crictl pods --quiet --state ready --namespace "+s.name+" --name hold"))
	var info struct {
		Info struct {
			RuntimeSpec struct {
				Linux struct{ Namespaces []struct{ Type, Path string } }
			}
		}
	}
	if err := json.Unmarshal([]byte(n.do(t, "crictl", "inspectp", sandbox)), &info); err != nil {
		t.Fatal(err)
	}
	netns := ""
	for _, ns := range info.Info.RuntimeSpec.Linux.Namespaces {
		if ns.Type == "network" {
			netns = ns.Path
		}
	}
	call := func(verb string) string {
		t.Helper()
		return n.do(t, delegatePath, verb, "--container-id", sandbox, "--netns", netns, "--namespace", s.name, "--name", p.Name,
			"--uid", string(p.UID), "--resource", domain+"/"+pool)
	}
	t.Log(strings.TrimSpace(call("add")))
	call("check")
	s.last(t, 2*time.Minute, "hold", "it has its queues", func(ledger.Event) error { return nil })
	c.leases(t, n, 2)
	call("del")
	c.leases(t, n, 0)
	s.end(t, "hold", -1)
}

const delegatePath = "/usr/local/bin/" + prefix + "-delegate"
