package kube

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
)

const (
	// component is who Events come from.
	component = "afxdp-deviceplugin"
	// eventTimeout is how long the API server may take for one.
	eventTimeout = 5 * time.Second

	// Of each reason on each object so many Events may come at once, and then eventRate a second. A pod can be refused
	// a thousand times a second.
	eventBurst = 10
	eventRate  = 1.0 / 60
	// Events that differ in their message only are one from the fifth on.
	similarEvents = 5
)

// Pod identifies a pod.
type Pod struct{ UID, Namespace, Name string }

// PodEvent has an Event on a pod, a warning, sent soon; reason is one word in CamelCase. It does not wait. Repeated ones
// are counted, too many are dropped, and so are those that the API server does not take.
func (n *Node) PodEvent(p Pod, reason, message string) {
	n.events.send(&corev1.ObjectReference{
		Kind: "Pod", APIVersion: "v1", Namespace: p.Namespace, Name: p.Name, UID: types.UID(p.UID),
	}, corev1.EventTypeWarning, reason, message)
}

// PodEventNow sends an Event on a pod as PodEvent does, but waits until the API server has it.
func (n *Node) PodEventNow(ctx context.Context, p Pod, reason, message string) error {
	now := metav1.Now()
	ctx, cancel := context.WithTimeout(ctx, eventTimeout)
	defer cancel()
	_, err := n.client.CoreV1().Events(p.Namespace).Create(ctx, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s.%x", p.Name, now.UnixNano()), Namespace: p.Namespace},
		InvolvedObject: corev1.ObjectReference{
			Kind: "Pod", APIVersion: "v1", Namespace: p.Namespace, Name: p.Name, UID: types.UID(p.UID),
		},
		Type: corev1.EventTypeWarning, Reason: reason, Message: message, Count: 1, FirstTimestamp: now, LastTimestamp: now,
		Source: corev1.EventSource{Component: component, Host: n.name}, ReportingController: component, ReportingInstance: n.name,
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("send Event %s of pod %s/%s: %w", reason, p.Namespace, p.Name, err)
	}
	return nil
}

// NodeWarning has an Event on the node sent as PodEvent does.
func (n *Node) NodeWarning(reason, message string) {
	n.events.send(n.events.node(), corev1.EventTypeWarning, reason, message)
}

// NodeEvent is NodeWarning for what is no reason to worry.
func (n *Node) NodeEvent(reason, message string) {
	n.events.send(n.events.node(), corev1.EventTypeNormal, reason, message)
}

// events sends Events.
type events struct {
	recorder record.EventRecorder

	mu  sync.Mutex
	ref corev1.ObjectReference // of the node
}

func newEvents(ctx context.Context, client kubernetes.Interface, node string, log *slog.Logger) *events {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx), record.WithCorrelatorOptions(record.CorrelatorOptions{
		BurstSize: eventBurst, QPS: eventRate, MaxEvents: similarEvents,
		// By reason too: an Event of many must not be the end of those of another kind.
		SpamKeyFunc: func(e *corev1.Event) string {
			return strings.Join([]string{string(e.InvolvedObject.UID), e.InvolvedObject.Name, e.InvolvedObject.Namespace, e.Reason}, "/")
		},
	}))
	broadcaster.StartRecordingToSink(&sink{ctx: ctx, client: client, log: log})
	return &events{
		recorder: broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: component, Host: node}),
		// Without the node's UID kubectl looks for its name in that place.
		ref: corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: node, UID: types.UID(node)},
	}
}

// learn takes the node's UID.
func (e *events) learn(n *corev1.Node) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if n.UID != "" {
		e.ref.UID = n.UID
	}
}

func (e *events) node() *corev1.ObjectReference {
	e.mu.Lock()
	defer e.mu.Unlock()
	ref := e.ref
	return &ref
}

// maxMessage is what the API server takes, in bytes.
const maxMessage = 1024

func (e *events) send(ref *corev1.ObjectReference, kind, reason, message string) {
	if ref.Name == "" {
		return
	}
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage-3], "") + "..."
	}
	e.recorder.Event(ref, kind, reason, message)
}

// sink writes Events to the API server. It is called by one goroutine. The recorder would try each one that fails again
// for two minutes, and all others after it; here they are dropped.
type sink struct {
	ctx    context.Context
	client kubernetes.Interface
	log    *slog.Logger
	away   bool
}

func (s *sink) Create(e *corev1.Event) (*corev1.Event, error) {
	return s.write(e, false, func(ctx context.Context) (*corev1.Event, error) {
		return s.client.CoreV1().Events(e.Namespace).Create(ctx, e, metav1.CreateOptions{})
	})
}

// Update is part of record.EventSink, which does not call it.
func (s *sink) Update(e *corev1.Event) (*corev1.Event, error) { return e, nil }

func (s *sink) Patch(e *corev1.Event, data []byte) (*corev1.Event, error) {
	return s.write(e, true, func(ctx context.Context) (*corev1.Event, error) {
		return s.client.CoreV1().Events(e.Namespace).Patch(ctx, e.Name, types.StrategicMergePatchType, data, metav1.PatchOptions{})
	})
}

// write returns no error for what is to be dropped.
func (s *sink) write(
	e *corev1.Event, again bool, f func(context.Context) (*corev1.Event, error),
) (*corev1.Event, error) {
	ctx, cancel := context.WithTimeout(s.ctx, eventTimeout)
	defer cancel()
	written, err := f(ctx)
	switch {
	case err == nil:
		if s.away {
			s.log.Info("the API server takes Events again")
		}
		s.away = false
		return written, nil
	case again && apierrors.IsNotFound(err):
		return nil, err // has the recorder make the Event anew
	case s.ctx.Err() != nil, apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
	case !s.away:
		s.away = true
		s.log.Warn("the API server does not take Events; they are dropped until it does", "error", err)
	}
	return e, nil
}
