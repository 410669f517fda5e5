//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"

	"github.com/afxdp-project/afxdp/test/e2e/ledger"
)

const (
	// Times within which something has to have happened, generous: the machine may be busy.
	startLimit = time.Minute
	endLimit   = time.Minute
	pool       = "e2e"
	domain     = "afxdp.io"
	// arbitraryUID is like those that OpenShift gives to pods.
	arbitraryUID = 1000650000
)

// space is a namespace of one test.
type space struct {
	*cluster
	name string
}

// space makes a namespace of the restricted pod-security standard, which is deleted with the test. The test ends when
// its pods are gone and its queues are free.
func (c *cluster) space(t *testing.T, name string, level string) *space {
	t.Helper()
	s := &space{cluster: c, name: prefix + "-" + name}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: s.name, Labels: map[string]string{prefix: "", "pod-security.kubernetes.io/enforce": level},
	}}
	eventually(t, endLimit, "a namespace is made", func(ctx context.Context) error { // one of that name may still be on its way out
		_, err := c.kube.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{})
		return err
	})
	t.Cleanup(func() {
		if t.Failed() {
			c.diagnose(t, s.name)
		}
		ctx, cancel := background(time.Minute)
		defer cancel()
		if err := c.kube.CoreV1().Namespaces().Delete(ctx, s.name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		if err := wait(endLimit, func(ctx context.Context) error {
			pods, err := c.kube.CoreV1().Pods(s.name).List(ctx, metav1.ListOptions{})
			if err == nil && len(pods.Items) > 0 {
				err = fmt.Errorf("pod %s is there", pods.Items[0].Name)
			}
			return err
		}); err != nil {
			t.Errorf("the test's pods do not go: %v", err)
		}
	})
	return s
}

// pod describes a pod that runs test/e2e/pod under the restricted standard.
type pod struct {
	name   string
	node   *node
	queues int    // of pool
	pool   string // by default pool
	args   []string
	change func(*corev1.Pod) // what else is to be different
}

func (s *space) template(p pod) corev1.PodTemplateSpec {
	grace, no, yes, uid := int64(5), false, true, int64(arbitraryUID)
	if p.pool == "" {
		p.pool = pool
	}
	limits := corev1.ResourceList{}
	if p.queues > 0 {
		limits[corev1.ResourceName(domain+"/"+p.pool)] = *resource.NewQuantity(int64(p.queues), resource.DecimalSI)
	}
	object := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: p.name, Namespace: s.name, Labels: map[string]string{"app": p.name}},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &grace, AutomountServiceAccountToken: &no, RestartPolicy: corev1.RestartPolicyNever,
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: &yes, RunAsUser: &uid, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name: "main", Image: s.podImage, ImagePullPolicy: corev1.PullIfNotPresent, Args: p.args,
				Resources: corev1.ResourceRequirements{Limits: limits},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: &no, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}
	if p.node != nil {
		object.Spec.NodeSelector = map[string]string{corev1.LabelHostname: p.node.name}
	}
	if p.change != nil {
		p.change(&object)
	}
	return corev1.PodTemplateSpec{ObjectMeta: object.ObjectMeta, Spec: object.Spec}
}

// create makes a pod, or returns why the API server does not want it.
func (s *space) create(p pod) error {
	ctx, cancel := background(time.Minute)
	defer cancel()
	t := s.template(p)
	_, err := s.kube.CoreV1().Pods(s.name).Create(ctx, &corev1.Pod{ObjectMeta: t.ObjectMeta, Spec: t.Spec}, metav1.CreateOptions{})
	return err
}

// start makes pods.
func (s *space) start(t *testing.T, pods ...pod) {
	t.Helper()
	for _, p := range pods {
		if err := s.create(p); err != nil {
			t.Fatal(err)
		}
	}
}

// end deletes a pod and waits until it is gone. Grace is in seconds; less than 0 is the pod's own.
func (s *space) end(t *testing.T, name string, grace int64) {
	t.Helper()
	ctx, cancel := background(time.Minute)
	defer cancel()
	options := metav1.DeleteOptions{}
	if grace >= 0 {
		options.GracePeriodSeconds = &grace
	}
	if err := s.kube.CoreV1().Pods(s.name).Delete(ctx, name, options); err != nil {
		t.Fatal(err)
	}
	eventually(t, endLimit, "pod "+name+" is gone", func(ctx context.Context) error {
		_, err := s.kube.CoreV1().Pods(s.name).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(errors.New("it is there"), err)
	})
}

func (s *space) get(ctx context.Context, name string) (*corev1.Pod, error) {
	return s.kube.CoreV1().Pods(s.name).Get(ctx, name, metav1.GetOptions{})
}

// describe says how far a pod is, for messages.
func describe(p *corev1.Pod) string {
	words := []string{string(p.Status.Phase), p.Status.Reason, p.Status.Message}
	for _, st := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if w := st.State.Waiting; w != nil {
			words = append(words, st.Name+" waits:", w.Reason, w.Message)
		}
		if e := st.State.Terminated; e != nil {
			words = append(words, fmt.Sprintf("%s ended: %s %d", st.Name, e.Reason, e.ExitCode), e.Message)
		}
	}
	for _, c := range p.Status.Conditions {
		if c.Status != corev1.ConditionTrue && c.Message != "" {
			words = append(words, c.Message)
		}
	}
	return fmt.Sprintf("pod %s: %s", p.Name, strings.Join(slices.DeleteFunc(words, func(s string) bool { return s == "" }), " "))
}

// events returns what the test program in a container has told, from its first line on.
func (s *space) told(ctx context.Context, pod, container string, previous bool) ([]ledger.Event, error) {
	raw, err := s.kube.CoreV1().Pods(s.name).GetLogs(pod, &corev1.PodLogOptions{Container: container, Previous: previous}).DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	var events []ledger.Event
	lines := bufio.NewScanner(bytes.NewReader(raw))
	for lines.Scan() {
		var e ledger.Event
		if json.Unmarshal(lines.Bytes(), &e) == nil && e.Event != "" { // a line may be half written, or be for people
			events = append(events, e)
		}
	}
	return events, lines.Err()
}

// last returns what the test program has told last, once it satisfies ask.
func (s *space) last(t *testing.T, limit time.Duration, pod, what string, ask func(ledger.Event) error) ledger.Event {
	t.Helper()
	var found ledger.Event
	eventually(t, limit, fmt.Sprintf("pod %s: %s", pod, what), func(ctx context.Context) error {
		p, err := s.get(ctx, pod)
		if err != nil {
			return err
		}
		told, err := s.told(ctx, pod, "main", false)
		if err != nil || len(told) == 0 {
			return errors.Join(errors.New(describe(p)), err)
		}
		found = told[len(told)-1]
		if err := ask(found); err != nil {
			if found.Error != "" || p.Status.Phase == corev1.PodFailed && found.Event != ledger.End {
				return permanent("%w: %s: %s", err, describe(p), found.Error)
			}
			return fmt.Errorf("%w: %s", err, describe(p))
		}
		return nil
	})
	return found
}

// opened waits until packets can come to a pod, and returns its queues.
func (s *space) opened(t *testing.T, pod string) ledger.Event {
	t.Helper()
	return s.last(t, startLimit, pod, "its queues are open", func(ledger.Event) error { return nil })
}

// sent waits until a sender has ended, which means that every packet was answered.
func (s *space) sent(t *testing.T, pod string) ledger.Event {
	t.Helper()
	e := s.last(t, 2*time.Minute, pod, "all is sent and answered", func(e ledger.Event) error {
		if e.Event != ledger.End || e.Error != "" {
			return fmt.Errorf("not at its end: %s %s", e.Event, e.Error)
		}
		return nil
	})
	for _, q := range e.Queues {
		if q.Sent == 0 || q.Sent != q.Received || q.Wrong != 0 || q.Drops != 0 {
			t.Errorf("pod %s: %s: sent %d, answered %d, wrong %d, dropped %d; want all answered, none wrong or dropped",
				pod, q.Device, q.Sent, q.Received, q.Wrong, q.Drops)
		}
	}
	return e
}

// devices returns the devices of an event.
func devices(e ledger.Event) []string {
	var d []string
	for _, q := range e.Queues {
		d = append(d, q.Device)
	}
	slices.Sort(d)
	return d
}

// event waits for an Event about an object whose message has all the words.
func (c *cluster) event(t *testing.T, namespace, kind, name string, words ...string) corev1.Event {
	t.Helper()
	var found corev1.Event
	eventually(t, startLimit, fmt.Sprintf("an Event on %s %s with %q", kind, name, words), func(ctx context.Context) error {
		list, err := c.kube.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{
			FieldSelector: "involvedObject.kind=" + kind + ",involvedObject.name=" + name,
		})
		if err != nil {
			return err
		}
		var seen []string
		for _, e := range list.Items {
			text := e.Reason + ": " + e.Message
			if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(text, w) }) {
				found = e
				return nil
			}
			seen = append(seen, text)
		}
		return fmt.Errorf("there are %q", seen)
	})
	return found
}

// allocatable returns how many devices of a pool a node has.
func (c *cluster) allocatable(ctx context.Context, n *node, pool string) (count int64, known bool, err error) {
	object, err := c.kube.CoreV1().Nodes().Get(ctx, n.name, metav1.GetOptions{})
	if err != nil {
		return 0, false, err
	}
	q, known := object.Status.Allocatable[corev1.ResourceName(domain+"/"+pool)]
	return q.Value(), known, nil
}

// offers waits until a node has so many devices of a pool to give.
func (c *cluster) offers(t *testing.T, n *node, pool string, want int64) {
	t.Helper()
	eventually(t, startLimit, fmt.Sprintf("node %s offers %d of %s", n.name, want, pool), func(ctx context.Context) error {
		count, known, err := c.allocatable(ctx, n, pool)
		if err == nil && (!known && want > 0 || count != want) {
			err = fmt.Errorf("it offers %d", count)
		}
		return err
	})
}

// agent returns the pod of the agent on a node.
func (c *cluster) agent(ctx context.Context, n *node) (*corev1.Pod, error) {
	list, err := c.kube.CoreV1().Pods(prefix).List(ctx, metav1.ListOptions{
		LabelSelector: agentLabels, FieldSelector: "spec.nodeName=" + n.name,
	})
	if err != nil {
		return nil, err
	}
	for _, p := range list.Items {
		if p.DeletionTimestamp == nil {
			return &p, nil
		}
	}
	return nil, fmt.Errorf("node %s has no agent", n.name)
}

// ask gets a page from the agent of a node, through the API server.
func (c *cluster) ask(ctx context.Context, n *node, path string) ([]byte, error) {
	p, err := c.agent(ctx, n)
	if err != nil {
		return nil, err
	}
	transport, upgrader, err := spdy.RoundTripperFor(c.rest)
	if err != nil {
		return nil, err
	}
	url := c.kube.CoreV1().RESTClient().Post().Resource("pods").Namespace(p.Namespace).Name(p.Name).SubResource("portforward").URL()
	dialer := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, url)
	stop, ready := make(chan struct{}), make(chan struct{})
	defer close(stop)
	forward, err := portforward.New(dialer, []string{"0:" + agentPort}, stop, ready, io.Discard, io.Discard)
	if err != nil {
		return nil, err
	}
	failed := make(chan error, 1)
	go func() { failed <- forward.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-failed:
		return nil, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	ports, err := forward.GetPorts()
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d%s", ports[0].Local, path), nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", path, response.Status, bytes.TrimSpace(body))
	}
	return body, err
}
