//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/afxdp-project/afxdp/test/e2e/ledger"
)

// answers starts a pod that answers on all queues of the second worker.
func (s *space) answers(t *testing.T) {
	t.Helper()
	s.start(t, pod{name: "answer", node: s.workers[1], queues: queues, args: []string{"answer"}})
	s.opened(t, "answer")
}

// kindsOfPods runs tests beside each other that need one queue each, and a pod that answers.
func kindsOfPods(t *testing.T, c *cluster) {
	s := c.space(t, "kinds", "restricted")
	s.answers(t)
	for name, test := range map[string]func(*testing.T, *space){
		"a pod in a user namespace sends and receives":             userNamespace,
		"a container that crashes is started again and reconnects": containerCrash,
		"init and main container both have queues":                 initAndMain,
		"a Job that has completed leaves its queues free":          jobCompletes,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, s)
		})
	}
}

func userNamespace(t *testing.T, s *space) {
	s.start(t, pod{name: "userns", node: s.workers[0], queues: 1, args: []string{"send"}, change: func(p *corev1.Pod) {
		no, uid := false, int64(65532) // of the 65536 that a user namespace has
		p.Spec.HostUsers, p.Spec.SecurityContext.RunAsUser = &no, &uid
	}})
	if e := s.sent(t, "userns"); !e.Identity.UserNamespace {
		t.Errorf("the sender ran as %+v; want in a user namespace", e.Identity)
	}
}

func containerCrash(t *testing.T, s *space) {
	s.start(t, pod{name: "crash", node: s.workers[0], queues: 1, args: []string{"send", "--crash-once", "/state/crashed"},
		change: func(p *corev1.Pod) {
			p.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
			p.Spec.Volumes = []corev1.Volume{{Name: "state", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
			p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "state", MountPath: "/state"}}
		}})
	// Read now: once the second container has ended as well, kubelet may remove the first, and its log.
	var before []ledger.Event
	eventually(t, startLimit, "the crashed container's log has what it told", func(ctx context.Context) (err error) {
		before, err = s.told(ctx, "crash", "main", true)
		if err == nil && len(before) == 0 {
			err = errors.New("it is empty")
		}
		return err
	})
	after := s.sent(t, "crash")
	ctx, cancel := background(time.Minute)
	defer cancel()
	p, err := s.get(ctx, "crash")
	if err != nil {
		t.Fatal(err)
	}
	if p.Status.ContainerStatuses[0].RestartCount != 1 {
		t.Errorf("the container was started again %d times; want once: %s", p.Status.ContainerStatuses[0].RestartCount, describe(p))
	}
	if !slices.Equal(devices(before[0]), devices(after)) {
		t.Errorf("before the crash it told %+v; want the devices %v", before, devices(after))
	}
}

func forceDelete(t *testing.T, c *cluster) {
	s := c.space(t, "force", "restricted")
	n := c.workers[0]
	s.start(t, pod{name: "first", node: n, queues: queues, args: []string{"hold"}})
	s.opened(t, "first")
	c.leases(t, n, queues)
	s.end(t, "first", 0)
	c.leases(t, n, 0)
	s.start(t, pod{name: "second", node: n, queues: queues, args: []string{"hold"}})
	if e := s.opened(t, "second"); len(e.Queues) != queues {
		t.Errorf("the second pod has %v; want %d devices", devices(e), queues)
	}
}

// deployment starts one, of pods like p, that changes one pod at a time.
func (s *space) deployment(t *testing.T, replicas int32, p pod) {
	t.Helper()
	template := s.template(p)
	template.Name, template.Namespace = "", ""
	template.Spec.RestartPolicy = corev1.RestartPolicyAlways
	none, one := intstr.FromInt32(0), intstr.FromInt32(1)
	ctx, cancel := background(time.Minute)
	defer cancel()
	_, err := s.kube.AppsV1().Deployments(s.name).Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: p.name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: template.Labels}, Template: template,
			Strategy: appsv1.DeploymentStrategy{
				Type:          appsv1.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &none, MaxUnavailable: &one},
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// openPods waits until a Deployment has so many pods, other than those of old, whose queues are open, and no others.
func (s *space) openPods(t *testing.T, limit time.Duration, app string, want int, old []string) []string {
	t.Helper()
	var names []string
	eventually(t, limit, fmt.Sprintf("%d pods of %s have their queues", want, app), func(ctx context.Context) error {
		pods, err := s.kube.CoreV1().Pods(s.name).List(ctx, metav1.ListOptions{LabelSelector: "app=" + app})
		if err != nil {
			return err
		}
		names = nil
		for _, p := range pods.Items {
			if p.Status.Phase == corev1.PodFailed {
				continue // a Deployment leaves them
			}
			if p.DeletionTimestamp != nil || slices.Contains(old, p.Name) {
				return fmt.Errorf("pod %s is there: %s", p.Name, describe(&p))
			}
			told, err := s.told(ctx, p.Name, "main", false)
			if err != nil || len(told) == 0 || told[len(told)-1].Event == ledger.End {
				return errors.Join(errors.New(describe(&p)), err)
			}
			names = append(names, p.Name)
		}
		if len(names) != want {
			return fmt.Errorf("there are %v", names)
		}
		return nil
	})
	return names
}

func rollingUpdate(t *testing.T, c *cluster) {
	s := c.space(t, "rollout", "restricted")
	s.deployment(t, 2, pod{name: "answer", node: c.workers[1], queues: queues / 2, args: []string{"answer"}})
	old := s.openPods(t, startLimit, "answer", 2, nil)
	ctx, cancel := background(time.Minute)
	defer cancel()
	// All queues are taken: the update gets on only as the old pods' come free.
	patch := fmt.Sprintf(`{"spec": {"template": {"metadata": {"annotations": {%q: "2"}}}}}`, prefix+"/version")
	_, err := s.kube.AppsV1().Deployments(s.name).Patch(ctx, "answer", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.openPods(t, 2*time.Minute, "answer", 2, old)
	s.start(t, pod{name: "send", node: c.workers[0], queues: queues, args: []string{"send"}})
	s.sent(t, "send")
}

func initAndMain(t *testing.T, s *space) {
	s.start(t, pod{name: "init", node: s.workers[0], queues: 1, args: []string{"send"}, change: func(p *corev1.Pod) {
		first := *p.Spec.Containers[0].DeepCopy()
		first.Name = "init"
		p.Spec.InitContainers = []corev1.Container{first}
	}})
	main := s.sent(t, "init")
	ctx, cancel := background(time.Minute)
	defer cancel()
	told, err := s.told(ctx, "init", "init", false)
	if err != nil {
		t.Fatal(err)
	}
	if len(told) == 0 || told[len(told)-1].Event != ledger.End || told[len(told)-1].Error != "" || len(told[0].Queues) != 1 {
		t.Errorf("the init container told %+v; want that it has sent on one queue", told)
	}
	if len(main.Queues) != 1 {
		t.Errorf("the main container has sent on %v; want one queue", devices(main))
	}
}

func jobCompletes(t *testing.T, s *space) {
	template := s.template(pod{name: "job", node: s.workers[0], queues: 1, args: []string{"send"}})
	template.Name, template.Namespace = "", ""
	ctx, cancel := background(2 * time.Minute)
	defer cancel()
	_, err := s.kube.BatchV1().Jobs(s.name).Create(ctx, &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "job"}, Spec: batchv1.JobSpec{Template: template},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, 2*time.Minute, "the Job completes", func(ctx context.Context) error {
		j, err := s.kube.BatchV1().Jobs(s.name).Get(ctx, "job", metav1.GetOptions{})
		if err == nil && j.Status.Succeeded != 1 {
			err = fmt.Errorf("%d pods have ended well, %d have failed", j.Status.Succeeded, j.Status.Failed)
		}
		return err
	})
	// Its pod is still there, its lease is not.
	eventually(t, endLimit, "the Job's pod has no lease", func(ctx context.Context) error {
		st, err := s.status(ctx, s.workers[0])
		if err != nil {
			return err
		}
		for _, d := range st.Devices {
			if d.Lease != nil && d.Lease.Pod.Namespace == s.name && strings.HasPrefix(d.Lease.Pod.Name, "job-") {
				return fmt.Errorf("%s is leased to %s", d.ID, d.Lease.Pod.Name)
			}
		}
		return nil
	})
}
