//go:build e2e

package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// capabilities adds some to a container.
func capabilities(c *corev1.Container, add ...corev1.Capability) {
	c.SecurityContext.Capabilities.Add = add
}

func policyRefuses(t *testing.T, c *cluster) {
	s := c.space(t, "policy", "privileged")
	yes, no := true, false
	add := func(caps ...corev1.Capability) func(*corev1.Pod) {
		return func(p *corev1.Pod) { capabilities(&p.Spec.Containers[0], caps...) }
	}
	other := func(p *corev1.Pod, change func(*corev1.Container)) corev1.Container {
		o := *p.Spec.Containers[0].DeepCopy()
		o.Name, o.Resources = "other", corev1.ResourceRequirements{}
		change(&o)
		return o
	}
	for _, test := range []struct {
		name    string
		queues  int
		refused bool
		change  func(*corev1.Pod)
	}{
		{"NET_ADMIN", 1, true, add("NET_ADMIN")},
		{"CAP_NET_ADMIN", 1, true, add("CAP_NET_ADMIN")},
		{"SYS_ADMIN", 1, true, add("SYS_ADMIN")},
		{"ALL", 1, true, add("ALL")},
		{"privileged", 1, true, func(p *corev1.Pod) {
			p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: &yes}
		}},
		{"NET_ADMIN in a container without the resource", 1, true, func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, other(p, func(c *corev1.Container) { capabilities(c, "NET_ADMIN") }))
		}},
		{"privileged init container", 1, true, func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{other(p, func(c *corev1.Container) {
				c.SecurityContext = &corev1.SecurityContext{Privileged: &yes}
			})}
		}},
		{"resource of an init container", 0, true, func(p *corev1.Pod) {
			i := *s.template(pod{name: "i", queues: 1}).Spec.Containers[0].DeepCopy()
			i.Name = "init"
			p.Spec.InitContainers = []corev1.Container{i}
			capabilities(&p.Spec.Containers[0], "NET_ADMIN")
		}},
		{"host network", 1, true, func(p *corev1.Pod) { p.Spec.HostNetwork = true }},

		{"no capability", 1, false, nil},
		{"another capability", 1, false, add("NET_BIND_SERVICE")},
		{"NET_ADMIN in a user namespace", 1, false, func(p *corev1.Pod) {
			p.Spec.HostUsers = &no
			capabilities(&p.Spec.Containers[0], "NET_ADMIN")
		}},
		{"NET_ADMIN without our resource", 0, false, add("NET_ADMIN")},
		{"host network without our resource", 0, false, func(p *corev1.Pod) { p.Spec.HostNetwork = true }},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := background(time.Minute)
			defer cancel()
			template := s.template(pod{name: "policy", queues: test.queues, args: []string{"hold"}, change: test.change})
			_, err := s.kube.CoreV1().Pods(s.name).Create(ctx, &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec},
				metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			checkPolicy(t, err, test.refused)
		})
	}
	t.Run("ephemeral container with NET_ADMIN", func(t *testing.T) {
		s.start(t, pod{name: "debugged", node: c.workers[0], queues: 1, args: []string{"hold"}})
		s.opened(t, "debugged")
		checkPolicy(t, s.debug(t, "debugged", "NET_ADMIN"), true)
		checkPolicy(t, s.debug(t, "debugged"), false)
	})
}

// debug would add an ephemeral container to a pod.
func (s *space) debug(t *testing.T, name string, caps ...corev1.Capability) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	p, err := s.get(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	main := p.Spec.Containers[0]
	p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
		Name: "debug", Image: main.Image, Args: []string{"idle"},
		SecurityContext: &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: caps}},
	}}}
	_, err = s.kube.CoreV1().Pods(s.name).UpdateEphemeralContainers(ctx, name, p, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

func checkPolicy(t *testing.T, err error, refused bool) {
	t.Helper()
	switch {
	case refused && (err == nil || !strings.Contains(err.Error(), "ValidatingAdmissionPolicy")):
		t.Errorf("the API server says %v; want a refusal by the policy", err)
	case !refused && err != nil:
		t.Errorf("refused: %v", err)
	}
}
