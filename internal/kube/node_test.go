package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// newNode returns the node "one" of a cluster that has another one too.
func newNode(t *testing.T, log io.Writer) (*Node, *fake.Clientset) {
	t.Helper()
	client := fake.NewClientset(
		&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "uid-of-one"},
			Status:     corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{ContainerRuntimeVersion: "containerd://2.3.0"}},
		})
	n := NewNode(t.Context(), client, "one", slog.New(slog.NewTextHandler(log, nil)))
	n.retry = 5 * time.Millisecond
	return n, client
}

// follow returns the marks that are seen.
func follow(t *testing.T, n *Node) <-chan Mark {
	t.Helper()
	marks, done := make(chan Mark, 100), make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer close(done)
		n.Follow(ctx, func(m Mark) { marks <- m })
	}()
	t.Cleanup(func() { cancel(); <-done })
	return marks
}

// next waits for a mark with this UID.
func next(t *testing.T, marks <-chan Mark, uid string) Mark {
	t.Helper()
	late := time.After(patient)
	for {
		select {
		case m := <-marks:
			if m.PodUID == uid {
				return m
			}
		case <-late:
			t.Fatalf("no mark with UID %q", uid)
		}
	}
}

func mark(t *testing.T, client *fake.Clientset, uid any) {
	t.Helper()
	if err := annotate(t.Context(), client, "one", map[string]any{MarkAnnotation: uid}); err != nil {
		t.Fatal(err)
	}
}

func TestMarkIsSeenAndReported(t *testing.T) {
	n, client := newNode(t, io.Discard)
	mark(t, client, "a")
	m, err := n.Mark(t.Context())
	if err != nil || m.PodUID != "a" || m.Report.PodUID != "" || m.Runtime != "containerd://2.3.0" {
		t.Errorf("mark %+v, %v", m, err)
	}
	marks := follow(t, n)
	next(t, marks, "a")
	mark(t, client, "b")
	next(t, marks, "b")
	report := Report{PodUID: "b", OK: true, Left: []string{"this"}}
	if err := n.Report(t.Context(), report); err != nil {
		t.Fatal(err)
	}
	if m := next(t, marks, "b"); m.Report.PodUID != "b" || !m.Report.OK || len(m.Report.Left) != 1 {
		t.Errorf("report %+v", m.Report)
	}
	mark(t, client, nil)
	next(t, marks, "")
	for _, a := range client.Actions() {
		if verb := a.GetVerb(); a.GetResource().Resource != "nodes" || verb != "list" && verb != "watch" && verb != "patch" {
			t.Errorf("an agent needs %s of %s", verb, a.GetResource().Resource)
		}
		if l, ok := a.(clienttesting.ListAction); ok && l.GetListRestrictions().Fields.String() != "metadata.name=one" {
			t.Errorf("other nodes are listed: %v", l.GetListRestrictions())
		}
		if w, ok := a.(clienttesting.WatchAction); ok && w.GetWatchRestrictions().Fields.String() != "metadata.name=one" {
			t.Errorf("other nodes are watched: %v", w.GetWatchRestrictions())
		}
	}
}

func TestUnknownNode(t *testing.T) {
	n := NewNode(t.Context(), fake.NewClientset(), "one", slog.New(slog.DiscardHandler))
	if m, err := n.Mark(t.Context()); err == nil || !strings.Contains(err.Error(), "no node of this name") {
		t.Errorf("mark %+v, %v", m, err)
	}
}

// The API server goes away, comes back, and ends watches in every way that it can.
func TestMarkIsSeenAfterTheAPIServerWasAway(t *testing.T) {
	var log output
	n, client := newNode(t, &log)
	var away atomic.Bool
	client.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		return away.Load(), nil, errors.New("connection refused")
	})
	watches := make(chan *watch.FakeWatcher, 10)
	client.PrependWatchReactor("nodes", func(clienttesting.Action) (bool, watch.Interface, error) {
		w := watch.NewFake()
		watches <- w
		return true, w, nil
	})
	marks := follow(t, n)
	next(t, marks, "")
	w := <-watches
	w.Error(&metav1.Status{Message: "too old resource version"})
	next(t, marks, "")
	w = <-watches
	away.Store(true)
	w.Stop()
	time.Sleep(100 * time.Millisecond) // several attempts
	mark(t, client, "a")
	away.Store(false)
	next(t, marks, "a")
	if n := strings.Count(log.String(), "the API server does not answer"); n != 2 { // the watch's error, and the lists'
		t.Errorf("that the API server is away was told %d times, want 2:\n%s", n, &log)
	}
	if !strings.Contains(log.String(), "the API server answers again") {
		t.Errorf("log:\n%s", &log)
	}
}

func TestReportIsTriedAgain(t *testing.T) {
	n, client := newNode(t, io.Discard)
	failures := 3
	client.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		failures--
		return failures >= 0, nil, errors.New("connection refused")
	})
	if err := n.Report(t.Context(), Report{PodUID: "a"}); err != nil {
		t.Fatal(err)
	}
	if m, err := n.Mark(t.Context()); err != nil || m.Report.PodUID != "a" {
		t.Errorf("mark %+v, %v", m, err)
	}
	failures = 1 << 30
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := n.Report(ctx, Report{}); err == nil {
		t.Error("a report that was never taken is no error")
	}
}

// eventsOf waits until there are this many Events, and a little for more, and returns them.
func eventsOf(t *testing.T, client *fake.Clientset, namespace string, count int) []corev1.Event {
	t.Helper()
	for deadline := time.Now().Add(patient); ; time.Sleep(10 * time.Millisecond) {
		list, err := client.CoreV1().Events(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(list.Items) >= count {
			return list.Items
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d Events in namespace %s, want %d: %+v", len(list.Items), namespace, count, list.Items)
		}
	}
}

var hostile = Pod{UID: "pod-uid", Namespace: "apps", Name: "hostile"}

func TestEventsNamePodAndNode(t *testing.T) {
	n, client := newNode(t, io.Discard)
	if _, err := n.Mark(t.Context()); err != nil { // learns the node's UID
		t.Fatal(err)
	}
	n.PodEvent(hostile, "QueueRefused", "because")
	n.NodeWarning("NICLost", "eth1 is gone")
	n.NodeEvent("Fine", strings.Repeat("ö", 1000))
	e := eventsOf(t, client, "apps", 1)[0]
	if o := e.InvolvedObject; o.Kind != "Pod" || o.Name != "hostile" || o.UID != "pod-uid" || o.Namespace != "apps" || o.APIVersion != "v1" {
		t.Errorf("Event on %+v", o)
	}
	if e.Type != "Warning" || e.Reason != "QueueRefused" || e.Message != "because" || e.Source.Component != component || e.Source.Host != "one" {
		t.Errorf("Event %+v", e)
	}
	for _, e := range eventsOf(t, client, "default", 2) {
		if o := e.InvolvedObject; o.Kind != "Node" || o.Name != "one" || o.UID != "uid-of-one" {
			t.Errorf("Event on %+v", o)
		}
		if want := map[string]string{"NICLost": "Warning", "Fine": "Normal"}[e.Reason]; e.Type != want {
			t.Errorf("Event %s is of type %s, want %s", e.Reason, e.Type, want)
		}
		if len(e.Message) > maxMessage || !strings.HasPrefix(e.Message, "ö") && e.Reason == "Fine" {
			t.Errorf("message of %d bytes: %q", len(e.Message), e.Message)
		}
	}
}

func TestEventIsSentBeforeTheCallReturns(t *testing.T) {
	n, client := newNode(t, io.Discard)
	if err := n.PodEventNow(t.Context(), hostile, "QueueWithdrawn", "because"); err != nil {
		t.Fatal(err)
	}
	list, err := client.CoreV1().Events("apps").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("Events: %+v, %v", list, err)
	}
	if e := list.Items[0]; e.InvolvedObject.UID != "pod-uid" || e.InvolvedObject.Name != "hostile" || e.Reason != "QueueWithdrawn" ||
		e.Message != "because" || e.Type != "Warning" || e.Count != 1 || e.Source.Component != component {
		t.Errorf("Event %+v", e)
	}
	client.PrependReactor("create", "events", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("connection refused")
	})
	if err := n.PodEventNow(t.Context(), hostile, "QueueWithdrawn", "because"); err == nil {
		t.Error("an Event that was not taken is no error")
	}
}

// However often a pod is refused, the API server hears of it a few times; and what is told of the same pod for another
// reason gets through.
func TestEventsOfOnePodAreBounded(t *testing.T) {
	n, client := newNode(t, io.Discard)
	begin := time.Now()
	const refusals = 20_000
	for i := range refusals {
		n.PodEvent(hostile, "QueueRefused", fmt.Sprintf("refusal %d", i))
	}
	if took := time.Since(begin); took > patient/2 {
		t.Errorf("%d Events took the caller %v: it must not wait", refusals, took)
	}
	var writes int
	for deadline := time.Now().Add(patient); ; time.Sleep(10 * time.Millisecond) {
		n.PodEvent(hostile, "QueueWithdrawn", "uninstalled") // may be dropped while the queue is full
		writes = 0
		withdrawn := false
		for _, a := range client.Actions() {
			if a.GetResource().Resource != "events" {
				continue
			}
			if c, ok := a.(clienttesting.CreateAction); ok && c.GetObject().(*corev1.Event).Reason == "QueueWithdrawn" {
				withdrawn = true
			}
			writes++
		}
		if withdrawn {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the pod's other Event does not get through")
		}
	}
	if writes < 2 || writes > 3*eventBurst {
		t.Errorf("the API server was asked %d times", writes)
	}
}

func TestEventsAreDroppedWhileTheAPIServerIsAway(t *testing.T) {
	var log output
	n, client := newNode(t, &log)
	var away atomic.Bool
	var asked atomic.Int32
	away.Store(true)
	client.PrependReactor("*", "events", func(clienttesting.Action) (bool, runtime.Object, error) {
		asked.Add(1)
		return away.Load(), nil, errors.New("connection refused")
	})
	for i := range 5 {
		n.PodEvent(Pod{UID: fmt.Sprint(i), Namespace: "apps", Name: fmt.Sprint(i)}, "QueueRefused", "because")
	}
	for deadline := time.Now().Add(patient); asked.Load() < 5; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("asked %d times: one Event that fails holds up the others", asked.Load())
		}
	}
	away.Store(false)
	// The first of these is one that the API server does not have, though the recorder takes it for sent.
	n.PodEvent(Pod{UID: "0", Namespace: "apps", Name: "0"}, "QueueRefused", "because")
	n.PodEvent(Pod{UID: "new", Namespace: "apps", Name: "new"}, "QueueRefused", "because")
	eventsOf(t, client, "apps", 2)
	if n := strings.Count(log.String(), "does not take Events"); n != 1 {
		t.Errorf("told %d times, want once:\n%s", n, &log)
	}
	if !strings.Contains(log.String(), "takes Events again") {
		t.Errorf("log:\n%s", &log)
	}
}
