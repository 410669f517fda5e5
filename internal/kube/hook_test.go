package kube

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// cluster is a cluster with stand-ins for agents.
type cluster struct {
	*testing.T
	client *fake.Clientset
	out    output
}

type output struct {
	mu sync.Mutex
	b  strings.Builder
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

func newCluster(t *testing.T, nodes ...string) *cluster {
	c := &cluster{T: t, client: fake.NewClientset()}
	for _, n := range nodes {
		c.must(c.client.Tracker().Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n}}))
		c.addAgent(n, "uid-"+n)
	}
	return c
}

func (c *cluster) must(err error) {
	c.Helper()
	if err != nil {
		c.Error(err)
	}
}

func (c *cluster) addAgent(node, uid string) {
	c.Helper()
	c.must(c.client.Tracker().Add(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "agent-" + uid, Namespace: "afxdp", UID: types.UID(uid), Labels: map[string]string{"app": "afxdp"},
		},
		Spec: corev1.PodSpec{NodeName: node},
	}))
}

func (c *cluster) removeAgent(uid string) {
	c.Helper()
	c.must(c.client.CoreV1().Pods("afxdp").Delete(context.Background(), "agent-"+uid, metav1.DeleteOptions{}))
}

// agents answer the marks for the given pod UIDs with what answer returns.
func (c *cluster) agents(answer func(node string, r Report) Report, uids ...string) {
	c.client.PrependReactor("get", "nodes", func(a clienttesting.Action) (bool, runtime.Object, error) {
		name := a.(clienttesting.GetAction).GetName()
		object, err := c.client.Tracker().Get(a.GetResource(), "", name)
		if err != nil {
			return false, nil, nil
		}
		node := object.(*corev1.Node).DeepCopy()
		uid := node.Annotations[MarkAnnotation]
		if old, err := parseReport(node); err == nil && old.PodUID == uid {
			return false, nil, nil
		}
		for _, mine := range uids {
			if uid == mine {
				node.Annotations[ReportAnnotation] = answer(name, Report{PodUID: uid, OK: true}).encode()
				c.must(c.client.Tracker().Update(a.GetResource(), node, ""))
			}
		}
		return false, nil, nil
	})
}

func same(_ string, r Report) Report { return r }

func (c *cluster) uninstall(timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(c.Context(), timeout)
	defer cancel()
	return Uninstallation{
		Client: c.client, Namespace: "afxdp", Selector: "app=afxdp", Out: &c.out, Poll: 5 * time.Millisecond,
	}.Run(ctx)
}

// wantClean checks that no annotation is left.
func (c *cluster) wantClean() {
	c.Helper()
	list, err := c.client.CoreV1().Nodes().List(c.Context(), metav1.ListOptions{})
	c.must(err)
	for _, n := range list.Items {
		if len(n.Annotations) > 0 {
			c.Errorf("left on node %s: %v", n.Name, n.Annotations)
		}
	}
}

func (c *cluster) wantSaid(words ...string) {
	c.Helper()
	for _, w := range words {
		if !strings.Contains(c.out.String(), w) {
			c.Errorf("the output lacks %q:\n%s", w, &c.out)
		}
	}
}

func (c *cluster) wantError(err error, words ...string) {
	c.Helper()
	if err == nil {
		c.Errorf("no error; output:\n%s", &c.out)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			c.Errorf("the error lacks %q: %v", w, err)
		}
	}
}

const patient = 20 * time.Second

func TestUninstallationReportsEachNode(t *testing.T) {
	c := newCluster(t, "one", "two")
	c.agents(func(_ string, r Report) Report {
		r.Done, r.Left = []string{"the lease of eth1-q1 was ended"}, []string{"a directory stays, because"}
		return r
	}, "uid-one", "uid-two")
	c.must(c.uninstall(patient))
	c.wantSaid("waiting for the agents of 2 nodes", "node one: agent pod agent-uid-one asked to uninstall", "node two: uninstalled",
		"node one:   done: the lease of eth1-q1 was ended", "node two:   left: a directory stays, because")
	c.wantClean()
}

func TestUninstallationOfNothing(t *testing.T) {
	c := newCluster(t)
	c.must(c.uninstall(patient))
	c.wantSaid("no agent runs in namespace afxdp with labels app=afxdp")
}

func TestUninstallationThatFailsOnOneNode(t *testing.T) {
	c := newCluster(t, "one", "two")
	c.agents(func(node string, r Report) Report {
		if node == "two" {
			r.OK, r.Failed = false, []string{"eth1 is down"}
		}
		return r
	}, "uid-one", "uid-two")
	c.wantError(c.uninstall(patient), "node two: the agent could not undo everything: eth1 is down", "helm uninstall --no-hooks")
	c.wantSaid("node one: uninstalled", "node two: NOT fully uninstalled", "node two:   failed: eth1 is down")
	c.wantClean()
}

func TestUninstallationWithoutAnAnswer(t *testing.T) {
	c := newCluster(t, "one", "two")
	c.agents(same, "uid-one")
	node, err := c.client.CoreV1().Nodes().Get(t.Context(), "two", metav1.GetOptions{})
	c.must(err)
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: "NodeStatusUnknown"}}
	c.must(c.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("nodes"), node, ""))
	err = c.uninstall(300 * time.Millisecond)
	c.wantError(err, "node two: no report: the node is not ready (NodeStatusUnknown)")
	if strings.Contains(err.Error(), "node one") {
		t.Errorf("the error names a node that has reported: %v", err)
	}
	if n := strings.Count(c.out.String(), "waiting: the node is not ready"); n != 1 {
		t.Errorf("the obstacle was told %d times, want once:\n%s", n, &c.out)
	}
	c.wantClean()
}

func TestUninstallationNamesAContainerThatDoesNotStart(t *testing.T) {
	c := newCluster(t, "one")
	pod, err := c.client.CoreV1().Pods("afxdp").Get(t.Context(), "agent-uid-one", metav1.GetOptions{})
	c.must(err)
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "agent", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
	}}
	c.must(c.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), pod, "afxdp"))
	c.wantError(c.uninstall(100*time.Millisecond), "container agent of its agent agent-uid-one waits: CrashLoopBackOff")
}

func TestUninstallationOfANodeThatVanishes(t *testing.T) {
	c := newCluster(t, "one", "two")
	c.agents(same, "uid-one")
	go func() {
		time.Sleep(50 * time.Millisecond)
		c.removeAgent("uid-two")
		c.must(c.client.CoreV1().Nodes().Delete(context.Background(), "two", metav1.DeleteOptions{}))
	}()
	c.must(c.uninstall(patient))
	c.wantSaid("node two: is gone from the cluster")
	c.wantClean()
}

func TestUninstallationFollowsAnAgentThatIsReplaced(t *testing.T) {
	c := newCluster(t, "one", "two")
	c.agents(same, "uid-two", "uid-new") // the first agent of node one never answers
	go func() {
		time.Sleep(50 * time.Millisecond)
		c.removeAgent("uid-one")
		time.Sleep(50 * time.Millisecond)
		c.addAgent("one", "uid-new")
	}()
	c.must(c.uninstall(patient))
	c.wantSaid("waiting: its agent is gone before it has reported", "node one: agent pod agent-uid-new asked to uninstall (again")
	c.wantClean()
}

// A report of an earlier attempt, even of the same pod, is no answer to this one.
func TestUninstallationDoesNotTakeAnOldReport(t *testing.T) {
	for _, old := range []string{"uid-one", "uid-of-another"} {
		c := newCluster(t, "one")
		c.must(annotate(t.Context(), c.client, "one", map[string]any{
			MarkAnnotation: old, ReportAnnotation: Report{PodUID: old, OK: true}.encode(),
		}))
		c.wantError(c.uninstall(100*time.Millisecond), "node one: no report")
		c.wantClean()
	}
}

func TestUninstallationOutlastsAnAPIServerThatIsAway(t *testing.T) {
	c := newCluster(t, "one")
	c.agents(same, "uid-one")
	failures := 5
	c.client.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		failures--
		return failures >= 0, nil, errors.New("connection refused")
	})
	c.must(c.uninstall(patient))
	c.wantSaid("list the agents' pods: connection refused; trying again")
	c.wantClean()
}

func TestReportIsBounded(t *testing.T) {
	var r Report
	for range 10_000 {
		r.Left = append(r.Left, strings.Repeat("ö", 1000))
	}
	text := r.encode()
	if len(text) > 64<<10 || !strings.Contains(text, "and 9960 more") {
		t.Errorf("the report has %d bytes", len(text))
	}
}
