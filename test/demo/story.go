package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/testutil/fakekubelet"
)

// How long packets flow before the pod is killed, before the agent is killed, while no agent runs, and in all.
const (
	firstFlow  = 1200 * time.Millisecond
	secondFlow = 600 * time.Millisecond
	noAgent    = 300 * time.Millisecond
	wholeFlow  = 3500 * time.Millisecond
	// patience is how long any one step may take.
	patience = 15 * time.Second
)

var thePod = podName{uid: "6f0c1ad2-5b1e-4c39-9e0e-000000000001", namespace: "default", name: "forwarder"}

const sandbox = "demo-sandbox-1"

// story is what happens on the node, from its making to its end.
type story struct {
	screen  *screen
	outcome outcome

	node    *node
	source  *source
	kubelet *fakekubelet.Kubelet
	agent   *agent
	network *network
	pod     *container
	devices []string // of the pod, as kubelet chose them

	nicBefore, nodeBefore world
	ended                 []benchReport // the last words of each run of the pod's program
	caps                  uint64        // of all runs
}

func (s *story) tell(bin string) error {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	for _, chapter := range []func(context.Context) error{
		func(ctx context.Context) error { return s.prepare(ctx, bin) },
		s.startAgent,
		s.admit,
		s.attach,
		s.startPod,
		s.flow(firstFlow),
		s.killPod,
		s.startPod,
		s.flow(secondFlow),
		s.killAgent,
		s.flowToTheEnd,
		s.stopPod,
		s.detach,
		s.stopAgent,
		s.compare,
	} {
		if err := chapter(ctx); err != nil {
			_ = s.count() // what there is
			return err
		}
	}
	return errors.Join(s.count(), s.leave())
}

// leave takes down what is the node's own. After a failure its namespaces go all the same, with the process.
func (s *story) leave() error {
	return errors.Join(s.source.close(), s.kubelet.Close(), s.node.close())
}

// within bounds a step, which also ends when the agent does.
func (s *story) within(ctx context.Context) (context.Context, context.CancelFunc) {
	if s.agent != nil {
		return s.agent.guard(ctx, patience)
	}
	return context.WithTimeoutCause(ctx, patience, fmt.Errorf("not done within %v", patience))
}

func (s *story) prepare(ctx context.Context, bin string) (err error) {
	if s.node, err = setUpNode(bin); err != nil {
		return fmt.Errorf("set up the node: %w", err)
	}
	s.screen.step("node: network, mount and PID namespaces of its own; NIC %s (veth, %d queues), cabled to %s in another network namespace",
		nearNIC, nicQueues, farNIC)
	if s.source, err = s.node.openFar([]int{1, 2}); err != nil {
		return err
	}
	s.source.start(ctx)
	go s.watch(ctx)
	s.screen.step("traffic source: AF_XDP on queues 1 and 2 of %s, at most %d packets of each on their way", farNIC, window)
	if s.kubelet, err = fakekubelet.Start(fakekubelet.Config{Root: kubeletRoot, RateLimit: 100}); err != nil {
		return err
	}
	if s.nicBefore, err = lookAtNIC(s.node.nics, nearNIC); err != nil {
		return err
	}
	s.nodeBefore, err = lookAtNode()
	return errors.Join(err, os.WriteFile(configFile, []byte(agentConfig), 0o600))
}

func (s *story) startAgent(ctx context.Context) (err error) {
	if s.agent, err = startAgent(); err != nil {
		return err
	}
	ctx, cancel := s.within(ctx)
	defer cancel()
	if err := s.kubelet.WaitRegistered(ctx, resource); err != nil {
		return err
	}
	if err := s.kubelet.WaitHealthy(ctx, resource, podQueues); err != nil {
		return err
	}
	if err := s.agent.hasAgentCaps(); err != nil {
		return err
	}
	s.screen.step("agent (pid %d, with NET_ADMIN, NET_RAW, IPC_LOCK and BPF only): registered %s with kubelet, %d healthy devices",
		s.agent.cmd.Process.Pid, resource, podQueues)
	return nil
}

// admit has kubelet admit the pod, which has the agent answer Allocate.
func (s *story) admit(ctx context.Context) error {
	ctx, cancel := s.within(ctx)
	defer cancel()
	err := s.kubelet.AddPod(ctx, fakekubelet.Pod{
		UID: thePod.uid, Namespace: thePod.namespace, Name: thePod.name,
		Containers: []fakekubelet.Container{{Name: containerName, Resources: map[string]int{resource: podQueues}}},
	})
	if err != nil {
		return err
	}
	s.devices = s.kubelet.Allocated(thePod.uid, containerName, resource)
	s.screen.step("kubelet: pod %s/%s admitted, Allocate gave it %s", thePod.namespace, thePod.name, strings.Join(s.devices, " and "))
	return nil
}

// attach has the CNI plugins set up the pod's network.
func (s *story) attach(ctx context.Context) (err error) {
	ctx, cancel := s.within(ctx)
	defer cancel()
	if err := makePodNetns(); err != nil {
		return fmt.Errorf("make the pod's network namespace: %w", err)
	}
	if s.network, err = newNetwork(thePod, sandbox); err != nil {
		return err
	}
	interfaces, err := s.network.add(ctx)
	if err != nil {
		return err
	}
	listed := slices.ContainsFunc(interfaces, func(i *types100.Interface) bool { return i.Name == nearNIC && i.Sandbox == "" })
	if !listed {
		return fmt.Errorf("CNI ADD: the result does not list %s as an interface of the host", nearNIC)
	}
	now, err := lookAtNIC(s.node.nics, nearNIC)
	if err != nil {
		return err
	}
	if now["xdp"] != "native" {
		return fmt.Errorf("CNI ADD has not attached XDP to %s: it shows %q", nearNIC, now["xdp"])
	}
	s.screen.step("CNI ADD and CHECK (loopback, then afxdp-cni): on %s", nearNIC)
	for _, change := range s.nicBefore.changes(now) {
		s.screen.step("    %s", change)
	}
	return nil
}

// startPod has kubelet start the container, which calls PreStartContainer, and checks what it is.
func (s *story) startPod(ctx context.Context) error {
	ctx, cancel := s.within(ctx)
	defer cancel()
	started, err := s.kubelet.StartContainer(ctx, thePod.uid, containerName)
	if err != nil {
		return err
	}
	if s.pod, err = startContainer(started); err != nil {
		return err
	}
	report, err := s.pod.until(ctx, "it was ready", func(benchReport) bool { return true })
	if err != nil {
		return err
	}
	var mounts []string
	for _, m := range started.Mounts {
		mounts = append(mounts, m.GetContainerPath())
	}
	pid := s.pod.cmd.Process.Pid
	if err := s.pod.confine(s.agent.cmd.Process.Pid, mounts); err != nil {
		return err
	}
	r, err := rightsOf(pid)
	if err != nil {
		return err
	}
	if err := s.noteRights(r, pid); err != nil {
		return err
	}
	if got := slices.Sorted(slices.Values(report.devices())); !slices.Equal(got, s.devices) {
		return fmt.Errorf("the pod has opened %v and was given %v", got, s.devices)
	}
	if err := s.noteUMEM(pid, len(s.ended) == 0); err != nil {
		return err
	}
	again := ""
	if len(s.ended) > 0 {
		s.outcome.Reconnects++ // over a new connection, to the same queues
		again = " again, over a second connection"
	}
	s.outcome.Queues = len(report.Queues)
	s.screen.step("pod (pid %d): uid %d, capabilities %016x, no_new_privs, %d KiB of locked memory, sees only %s",
		pid, r.uid, r.caps, memlock>>10, strings.Join(slices.Sorted(maps.Values(started.Env)), ", "))
	s.screen.step("pod: afxdp-bench l2fwd on %s%s, on one UMEM: %t", strings.Join(s.devices, " and "), again, s.outcome.SharedUMEM)
	if len(s.ended) == 0 {
		s.screen.step("    %s", report.mode())
	}
	return nil
}

// noteRights adds to the outcome what a run of the pod's program may do.
func (s *story) noteRights(r rights, pid int) error {
	limit, err := lockLimitOf(pid)
	if err != nil {
		return err
	}
	if limit != fmt.Sprint(memlock) || !r.noNewPrivs || r.groups != "" {
		return fmt.Errorf("the pod may lock %s bytes of memory, has groups %q, no_new_privs %t", limit, r.groups, r.noNewPrivs)
	}
	if len(s.ended) > 0 && r.uid != s.outcome.UID {
		return fmt.Errorf("the pod ran as uid %d and then as %d", s.outcome.UID, r.uid)
	}
	s.outcome.UID = r.uid
	s.caps |= r.caps
	s.outcome.Caps = fmt.Sprintf("%016x", s.caps)
	return nil
}
