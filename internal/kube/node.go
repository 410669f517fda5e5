package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v5"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// The annotations of a node by which its agent is uninstalled.
const (
	// MarkAnnotation asks the agent in the pod with this UID to uninstall. It means nothing to any other agent, so that
	// one which was left behind does no harm to a later installation.
	MarkAnnotation = "afxdp.io/uninstall"
	// ReportAnnotation is that agent's answer, a [Report] in JSON.
	ReportAnnotation = "afxdp.io/uninstall-report"
)

// Node is the agent's view of its own node at the API server. Its methods may be called concurrently.
type Node struct {
	client kubernetes.Interface
	name   string
	log    *slog.Logger
	events *events
	retry  time.Duration // the first wait after a failure
}

// NewNode makes a Node of the given name. Events are sent until ctx is done.
func NewNode(ctx context.Context, client kubernetes.Interface, name string, log *slog.Logger) *Node {
	n := &Node{client: client, name: name, log: log, retry: time.Second}
	n.events = newEvents(ctx, client, name, log)
	return n
}

// Mark is what a node's object says of an uninstallation.
type Mark struct {
	PodUID  string // of the agent that is asked to uninstall; empty: none
	Report  Report // the last one; its PodUID is empty if there is none
	Runtime string // the node's container runtime and its version, such as "containerd://2.3.0"
}

func markOf(n *corev1.Node) Mark {
	report, _ := parseReport(n) // one that cannot be read is none
	return Mark{n.Annotations[MarkAnnotation], report, n.Status.NodeInfo.ContainerRuntimeVersion}
}

// Mark asks for the node's mark once.
func (n *Node) Mark(ctx context.Context) (Mark, error) {
	list, err := n.list(ctx)
	if err != nil {
		return Mark{}, err
	}
	return markOf(&list.Items[0]), nil
}

// onlyThis selects the own node: nothing of the others is read.
func (n *Node) onlyThis() string {
	return fields.OneTermEqualSelector("metadata.name", n.name).String()
}

// list returns a list of exactly the own node.
func (n *Node) list(ctx context.Context) (*corev1.NodeList, error) {
	list, err := n.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{FieldSelector: n.onlyThis()})
	if err != nil {
		return nil, fmt.Errorf("look up node %s at the API server: %w", n.name, err)
	}
	if len(list.Items) != 1 {
		return nil, fmt.Errorf("look up node %s at the API server: there is no node of this name", n.name)
	}
	n.events.learn(&list.Items[0])
	return list, nil
}

const (
	// watchPeriod is after how long a watch is begun anew, from a list: what a connection that died in silence keeps
	// back comes in then.
	watchPeriod = 10 * time.Minute
	listTimeout = 15 * time.Second
	maxRetry    = time.Minute
)

// Follow calls seen with the node's mark as it is, and again whenever it may have changed, until ctx is done. While the
// API server is away it tries again, ever less often; that is logged once.
func (n *Node) Follow(ctx context.Context, seen func(Mark)) {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = n.retry, maxRetry
	away := false
	for ctx.Err() == nil {
		begin := time.Now()
		err := n.follow(ctx, func(m Mark) {
			if away {
				away = false
				n.log.Info("the API server answers again", "node", n.name)
			}
			seen(m)
		})
		if ctx.Err() != nil {
			return
		}
		if err != nil && !away {
			away = true
			n.log.Warn("the API server does not answer; an uninstallation is not noticed until it does", "node", n.name, "error", err)
		}
		if err == nil || time.Since(begin) > maxRetry {
			wait.Reset()
		}
		pause := n.retry
		if err != nil {
			pause = wait.NextBackOff()
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// follow lists the node and watches it until the watch ends.
func (n *Node) follow(ctx context.Context, seen func(Mark)) error {
	short, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	list, err := n.list(short)
	if err != nil {
		return err
	}
	seen(markOf(&list.Items[0]))
	seconds := int64(watchPeriod / time.Second)
	w, err := n.client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{
		FieldSelector: n.onlyThis(), ResourceVersion: list.ResourceVersion, TimeoutSeconds: &seconds,
	})
	if err != nil {
		return fmt.Errorf("watch node %s: %w", n.name, err)
	}
	defer w.Stop()
	// The server ends the watch; this is for one that has gone without a word.
	overdue := time.NewTimer(watchPeriod + time.Minute)
	defer overdue.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-overdue.C:
			return nil
		case e, ok := <-w.ResultChan():
			if !ok {
				return nil
			}
			switch object := e.Object.(type) {
			case *corev1.Node:
				if object.Name == n.name {
					seen(markOf(object))
				}
			case *metav1.Status:
				return fmt.Errorf("watch node %s: %s", n.name, object.Message)
			}
		}
	}
}

// Report puts a report on the node. It tries again until ctx is done.
func (n *Node) Report(ctx context.Context, r Report) error {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = n.retry, 15*time.Second
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		short, cancel := context.WithTimeout(ctx, listTimeout)
		defer cancel()
		return struct{}{}, annotate(short, n.client, n.name, map[string]any{ReportAnnotation: r.encode()})
	}, backoff.WithBackOff(wait), backoff.WithMaxElapsedTime(0), backoff.WithNotify(func(err error, _ time.Duration) {
		n.log.Warn("report the uninstallation", "error", err)
	}))
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("report the uninstallation: %w", err)
	}
	return err
}

// annotate sets annotations of a node, or removes those of which the value is nil.
func annotate(ctx context.Context, client kubernetes.Interface, node string, annotations map[string]any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	if err == nil {
		_, err = client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	if err != nil {
		return fmt.Errorf("annotate node %s: %w", node, err)
	}
	return nil
}

// parseReport returns the report on a node; the error is errNoReport without one.
func parseReport(n *corev1.Node) (Report, error) {
	text, ok := n.Annotations[ReportAnnotation]
	if !ok {
		return Report{}, errNoReport
	}
	var r Report
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return Report{}, fmt.Errorf("read annotation %s of node %s: %w", ReportAnnotation, n.Name, err)
	}
	return r, nil
}

var errNoReport = errors.New("no report")
