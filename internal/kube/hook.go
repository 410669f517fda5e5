package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Uninstallation has the agents of a cluster uninstall.
type Uninstallation struct {
	Client    kubernetes.Interface
	Namespace string    // of the agents
	Selector  string    // labels of the agents, such as "app.kubernetes.io/name=afxdp"
	Out       io.Writer // progress and reports, for a human

	// Poll is how often the cluster is looked at; 0: every two seconds.
	Poll time.Duration
}

// cleanupTimeout is for taking the marks away after the time for the uninstallation is over.
const cleanupTimeout = 30 * time.Second

// Run marks each node that runs an agent, and again each time that the agent's pod is replaced, and waits until all have
// reported or ctx is done. Then it removes marks and reports. The error says which nodes have not been uninstalled and
// what to do.
func (u Uninstallation) Run(ctx context.Context) error {
	nodes := make(map[string]*target)
	err := u.wait(ctx, nodes)
	// Even when there is no time left: a report must not be taken for one of a later uninstallation.
	cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	u.unmark(cleanup, nodes)
	return errors.Join(err, verdict(nodes))
}

// target is a node that runs an agent, or did so at the beginning.
type target struct {
	agent    *corev1.Pod // nil: none now
	marked   string      // for which pod UID
	finished bool
	gone     bool // the node
	err      error
	problem  string // last said
}

func (u Uninstallation) wait(ctx context.Context, nodes map[string]*target) error {
	poll := u.Poll
	if poll == 0 {
		poll = 2 * time.Second
	}
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	said, counted := "", false
	for {
		err := u.look(ctx, nodes)
		switch {
		case err != nil && ctx.Err() == nil:
			if now := err.Error(); now != said {
				said = now
				u.say("%v; trying again", err)
			}
		case err == nil && len(nodes) == 0:
			u.say("no agent runs in namespace %s with labels %s: nothing to uninstall", u.Namespace, u.Selector)
			return nil
		case err == nil:
			if !counted {
				counted = true
				u.say("waiting for the agents of %d nodes", len(nodes))
			}
			for _, name := range slices.Sorted(maps.Keys(nodes)) {
				u.advance(ctx, name, nodes[name])
			}
			if done(nodes) {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			if len(nodes) == 0 && err != nil {
				return fmt.Errorf("uninstall: %w; no node was asked", err)
			}
			return nil // verdict says what is missing
		case <-ticker.C:
		}
	}
}

func done(nodes map[string]*target) bool {
	for _, t := range nodes {
		if !t.finished && !t.gone {
			return false
		}
	}
	return true
}

// look finds the agents.
func (u Uninstallation) look(ctx context.Context, nodes map[string]*target) error {
	pods, err := u.Client.CoreV1().Pods(u.Namespace).List(ctx, metav1.ListOptions{LabelSelector: u.Selector})
	if err != nil {
		return fmt.Errorf("list the agents' pods: %w", err)
	}
	agents := make(map[string]*corev1.Pod)
	for i := range pods.Items {
		p := &pods.Items[i]
		ended := p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded
		if p.Spec.NodeName == "" || ended {
			continue
		}
		if other := agents[p.Spec.NodeName]; other == nil || other.CreationTimestamp.Before(&p.CreationTimestamp) {
			agents[p.Spec.NodeName] = p
		}
	}
	for name := range agents {
		if nodes[name] == nil {
			nodes[name] = &target{}
		}
	}
	for name, t := range nodes {
		t.agent = agents[name]
	}
	return nil
}

// advance does what is next for one node.
func (u Uninstallation) advance(ctx context.Context, name string, t *target) {
	if t.gone || t.finished && (t.agent == nil || string(t.agent.UID) == t.marked) {
		return
	}
	node, err := u.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		t.gone = true
		u.say("node %s: is gone from the cluster", name)
		return
	}
	if err == nil && t.agent != nil {
		err = u.ask(ctx, node, t)
	}
	if err != nil {
		if ctx.Err() == nil {
			u.complain(name, t, err.Error())
		}
		return
	}
	report, err := parseReport(node)
	if err == nil && t.marked != "" && report.PodUID == t.marked {
		t.finished, t.err = true, nil
		report.print(u.Out, name)
		if !report.OK {
			t.err = fmt.Errorf("%s", strings.Join(report.Failed, "; "))
		}
		return
	}
	if err != nil && !errors.Is(err, errNoReport) {
		u.complain(name, t, err.Error())
		return
	}
	if s := obstacle(t.agent, node); s != "" {
		u.complain(name, t, s)
	}
}

// ask marks a node for the agent that it has now.
func (u Uninstallation) ask(ctx context.Context, node *corev1.Node, t *target) error {
	uid := string(t.agent.UID)
	if t.marked == uid && node.Annotations[MarkAnnotation] == uid {
		return nil
	}
	annotations := map[string]any{MarkAnnotation: uid}
	if t.marked != uid {
		annotations[ReportAnnotation] = nil // of an earlier attempt, perhaps with the same pod
	}
	if err := annotate(ctx, u.Client, node.Name, annotations); err != nil {
		return err
	}
	again := ""
	if t.marked != "" {
		again = " (again: the pod was replaced, or the mark taken away)"
	}
	t.marked, t.finished = uid, false
	delete(node.Annotations, ReportAnnotation)
	u.say("node %s: agent pod %s asked to uninstall%s", node.Name, t.agent.Name, again)
	return nil
}

// obstacle says why an agent may not answer, or returns "".
func obstacle(agent *corev1.Pod, node *corev1.Node) string {
	var parts []string
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			parts = append(parts, "the node is not ready ("+c.Reason+")")
		}
	}
	if agent == nil {
		return strings.Join(append(parts, "its agent is gone before it has reported, and there is no other yet"), ", ")
	}
	for _, c := range slices.Concat(agent.Status.InitContainerStatuses, agent.Status.ContainerStatuses) {
		switch {
		case c.State.Waiting != nil && c.State.Waiting.Reason != "PodInitializing":
			parts = append(parts, fmt.Sprintf("container %s of its agent %s waits: %s", c.Name, agent.Name, c.State.Waiting.Reason))
		case c.State.Terminated != nil && c.State.Terminated.ExitCode != 0:
			parts = append(parts, fmt.Sprintf("container %s of its agent %s has ended with code %d", c.Name, agent.Name, c.State.Terminated.ExitCode))
		}
	}
	if len(parts) == 0 && agent.Status.Phase == corev1.PodPending {
		parts = append(parts, "its agent "+agent.Name+" has not started")
	}
	return strings.Join(parts, ", ")
}

// complain says what keeps a node from being done, once.
func (u Uninstallation) complain(name string, t *target, problem string) {
	if t.problem != problem {
		t.problem = problem
		u.say("node %s: waiting: %s", name, problem)
	}
}

// unmark removes both annotations.
func (u Uninstallation) unmark(ctx context.Context, nodes map[string]*target) {
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		if nodes[name].marked == "" || nodes[name].gone {
			continue
		}
		err := annotate(ctx, u.Client, name, map[string]any{MarkAnnotation: nil, ReportAnnotation: nil})
		if err != nil && !apierrors.IsNotFound(err) {
			u.say("node %s: the annotations %s and %s are left, which does no harm: %v", name, MarkAnnotation, ReportAnnotation, err)
		}
	}
}

// verdict says which nodes have not been uninstalled.
func verdict(nodes map[string]*target) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		t := nodes[name]
		switch {
		case t.gone:
		case t.finished && t.err != nil:
			errs = append(errs, fmt.Errorf("node %s: the agent could not undo everything: %w", name, t.err))
		case !t.finished:
			why := t.problem
			if why == "" {
				why = "its agent has not answered in time; look at its log"
			}
			errs = append(errs, fmt.Errorf("node %s: no report: %s", name, why))
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("%w\nwhat to do: put that right and uninstall again, which goes on where this one stopped; or, for nodes that will "+
		"not come back, delete the node, or uninstall without hooks (helm uninstall --no-hooks) and reboot the node: "+
		"settings, links and maps do not outlive a boot. To keep the installation after all, restart the agents: "+
		"kubectl rollout restart daemonset", errors.Join(errs...))
}

func (u Uninstallation) say(format string, args ...any) {
	_, _ = fmt.Fprintf(u.Out, format+"\n", args...)
}
