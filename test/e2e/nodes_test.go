//go:build e2e

package e2e

import (
	"cmp"
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

	"github.com/afxdp-project/afxdp/test/e2e/ledger"
)

func conflistRewritten(t *testing.T, c *cluster) {
	c.needContainers(t)
	n := c.workers[0]
	path := strings.TrimSpace(n.sh(t, firstConflist))
	c.rewriteConflist(t, 0)
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

// rewriteConflist has a worker's CNI configuration as the main CNI plugin wrote it before the installation.
func (c *cluster) rewriteConflist(t *testing.T, worker int) {
	t.Helper()
	n, original := c.workers[worker], c.before[worker][conflistContents]
	path := strings.TrimSpace(n.sh(t, firstConflist))
	if now := n.do(t, "cat", path); !strings.Contains(now, "afxdp-cni") || strings.Contains(original, "afxdp-cni") {
		t.Fatalf("%s has no entry of the plugin, or had one before the installation:\n%s", path, now)
	}
	ctx, cancel := background(time.Minute)
	defer cancel()
	if _, err := n.run(ctx, strings.NewReader(original), "sh", "-ec", "cat > "+path+".new && mv "+path+".new "+path); err != nil {
		t.Fatal(err)
	}
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
		c.event(t, "", "Node", n.name, "NICLost", c.nic)
	}
	if err := c.rewire(ctx); err != nil {
		t.Fatal(err)
	}
	twoPodsExchange(t, c) // on all queues of both NICs
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

// capabilitiesNeeded runs a copy of the agent that lacks one capability, and looks what becomes of a pod with queues.
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
			agent := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: "agent-with-other-rights", Labels: maps.Clone(template.Labels)},
				Spec:       *template.Spec.DeepCopy(),
			}
			delete(agent.Labels, "app.kubernetes.io/instance") // else the DaemonSet's controller would take it for its own
			agent.Spec.Affinity, agent.Spec.NodeName = nil, n.name
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
			// It goes before the agent does, so that the next one finds nothing that is attached.
			s := c.space(t, "rights-"+strings.ToLower(strings.ReplaceAll(string(cmp.Or(without, "all")), "_", "-")), "restricted")
			why := ""
			eventually(t, startLimit, "the agent offers devices, or says why not", func(ctx context.Context) (err error) {
				if why, err = s.agentTrouble(ctx, n); err != nil || why != "" {
					return err
				}
				if healthy, err := s.healthy(ctx, n, pool); err != nil || healthy != queues {
					return fmt.Errorf("it offers %d: %w", healthy, cmp.Or(err, errDiffers))
				}
				// Kubelet refuses the pod for good if it has not taken the devices yet, which is part of being ready.
				if a, err := s.agent(ctx, n); err != nil || !ready(a) {
					return fmt.Errorf("it is not ready: %w", cmp.Or(err, errDiffers))
				}
				return nil
			})
			if why == "" {
				s.start(t, pod{name: "hold", queues: queues, args: []string{"hold"}, change: func(p *corev1.Pod) {
					p.Spec.NodeName = n.name // the scheduler hears of devices later than kubelet
				}})
			}
			if without == "" {
				if why != "" {
					t.Fatal(why)
				}
				s.opened(t, "hold")
				return
			}
			eventually(t, startLimit, "what needs the capability fails", func(ctx context.Context) (err error) {
				if why == "" {
					why, err = s.podTrouble(ctx, "hold")
				}
				if why == "" {
					why, err = s.agentTrouble(ctx, n)
				}
				if err == nil && why == "" {
					err = errDiffers
				}
				return err
			})
			t.Log(why)
		})
	}
}

// podTrouble tells why a pod with queues cannot work, as it says itself or its Events do; empty: not known yet.
func (s *space) podTrouble(ctx context.Context, name string) (string, error) {
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
		if denied(e.Message) {
			return "an Event: " + e.Message, nil
		}
	}
	return "", nil
}

// agentTrouble tells why the agent of a node cannot work; empty: not known yet, or it can.
func (s *space) agentTrouble(ctx context.Context, n *node) (string, error) {
	a, err := s.agent(ctx, n)
	if err != nil {
		return "", err
	}
	for _, st := range a.Status.ContainerStatuses {
		if st.RestartCount == 0 && st.State.Terminated == nil {
			continue
		}
		raw, err := s.kube.CoreV1().Pods(prefix).GetLogs(a.Name, &corev1.PodLogOptions{Previous: st.State.Terminated == nil}).DoRaw(ctx)
		if err == nil && denied(string(raw)) {
			return fmt.Sprintf("the agent: %s", raw), nil
		}
	}
	st, err := s.status(ctx, n)
	if err != nil {
		return "", nil // it does not serve yet
	}
	for _, d := range st.Devices {
		if !d.Healthy && denied(d.Reason) {
			return "the device: " + d.Reason, nil
		}
	}
	return "", nil
}

// denied reports whether a message tells of a right that is missing.
func denied(message string) bool {
	return strings.Contains(message, "not permitted") || strings.Contains(message, "permission denied")
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
	eventually(t, startLimit, "the node's CNI configuration is as it was before the installation", func(context.Context) error {
		if now := n.sh(t, "cat $("+firstConflist+")"); now != c.before[0][conflistContents] {
			return errors.New(now)
		}
		return nil
	})
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
	sandbox := strings.TrimSpace(n.sh(t, "crictl --timeout 60s pods --quiet --state ready --namespace "+s.name+" --name hold"))
	var info struct {
		Info struct {
			RuntimeSpec struct {
				Linux struct{ Namespaces []struct{ Type, Path string } }
			}
		}
	}
	if err := json.Unmarshal([]byte(n.do(t, "crictl", "--timeout", "60s", "inspectp", sandbox)), &info); err != nil {
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
