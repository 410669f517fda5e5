package agent

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/status"

	"github.com/afxdp-project/afxdp/internal/deviceplugin"
	"github.com/afxdp-project/afxdp/internal/kube"
	"github.com/afxdp-project/afxdp/internal/lease"
)

// The reasons of Events.
const (
	reasonRefused        = "QueueRefused"          // on a pod: an ADD, the start of a container or an OPEN
	reasonWithdrawn      = "QueueWithdrawn"        // on a pod: its lease was ended by an uninstallation
	reasonNICLost        = "NICLost"               // on the node: a NIC that had devices does not exist any more
	reasonForeignProgram = "ForeignXDPProgram"     // on the node: a NIC of a pool runs a program that is not ours
	reasonPoolProblem    = "PoolProblem"           // on the node: a pool selects what the node cannot give
	reasonNotRestored    = "NICNotRestored"        // on the node: what was changed of a NIC could not be put back
	reasonConfigRefused  = "ConfigurationRefused"  // on the node: a changed configuration; the old one stays in force
	reasonConfigReloaded = "ConfigurationReloaded" // on the node: a changed configuration is in force
)

// teller tells the API server what users should know. Without an API server it does nothing.
type teller struct {
	node *kube.Node // nil: no API server

	mu       sync.Mutex
	nics     map[string]bool // that had devices at the last look
	findings map[finding]bool
	trouble  string // as last told
}

type finding struct{ reason, message string }

// refused tells that a pod did not get what it asked for.
func (t *teller) refused(p lease.Pod, message string) {
	if t.node != nil {
		t.node.PodEvent(kube.Pod(p), reasonRefused, message)
	}
}

// opening tells that a pod was refused a socket.
func (t *teller) opening(p lease.Pod, device, reason string) {
	t.refused(p, strings.TrimSpace("open "+device)+": "+reason)
}

// withdrawn tells the pods of leases that these were ended. It waits, since the agent may be deleted soon.
func (t *teller) withdrawn(ctx context.Context, leases []lease.Lease, why string) error {
	if t.node == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, withdrawnTimeout)
	defer cancel()
	devices := make(map[lease.Pod][]string)
	for _, l := range leases {
		devices[l.Pod] = append(devices[l.Pod], l.Device)
	}
	var errs []error
	for p, ids := range devices {
		errs = append(errs, t.node.PodEventNow(ctx, kube.Pod(p), reasonWithdrawn, strings.Join(ids, ", ")+": "+why))
	}
	return errors.Join(errs...)
}

// withdrawnTimeout is how long an uninstallation waits for its Events to be sent.
const withdrawnTimeout = 15 * time.Second

// reloaded tells of a changed configuration, or why it was refused.
func (t *teller) reloaded(err error) {
	switch {
	case t.node == nil:
	case err != nil:
		t.node.NodeWarning(reasonConfigRefused, "the former configuration stays in force: "+err.Error())
	default:
		t.node.NodeEvent(reasonConfigReloaded, "the changed configuration of the pools is in force")
	}
}

// notRestored tells what could not be put back, once until it could or the error is another one.
func (t *teller) notRestored(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	t.mu.Lock()
	news := text != "" && text != t.trouble
	t.trouble = text
	t.mu.Unlock()
	if news && t.node != nil {
		t.node.NodeWarning(reasonNotRestored, text)
	}
}

// looked tells what is new at a look at the node's devices, given whether a NIC is still there.
func (t *teller) looked(devices map[string][]deviceplugin.Device, problems []string, exists func(nic string) bool) {
	if t.node == nil {
		return
	}
	nics, findings := make(map[string]bool), make(map[finding]bool)
	for _, p := range problems {
		findings[finding{reasonPoolProblem, p}] = true
	}
	for _, list := range devices {
		for _, d := range list {
			nics[d.NIC] = true
			if d.Cause == string(causeForeignProgram) {
				findings[finding{reasonForeignProgram, d.Reason}] = true
			}
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for nic := range t.nics {
		if !nics[nic] && !exists(nic) {
			t.node.NodeWarning(reasonNICLost, nic+" does not exist any more; pods that have its queues get no packets")
		}
	}
	for f := range findings {
		if !t.findings[f] {
			t.node.NodeWarning(f.reason, f.message)
		}
	}
	t.nics, t.findings = nics, findings
}

// refusedAdd tells of an ADD that failed. One that its caller gave up is not news.
func (a *Agent) refusedAdd(ctx context.Context, p lease.Pod, err error) {
	if err != nil && ctx.Err() == nil {
		a.teller.refused(p, "attach queues: "+status.Convert(err).Message())
	}
}

// refusedStart tells of a container that was not let start. Kubelet waits for the answer that this is about, so it is
// asked for the pod's name afterwards.
func (a *Agent) refusedStart(resource string, devices, uids []string, err error) {
	if a.teller.node == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	want := slices.Sorted(slices.Values(devices))
	go func() {
		defer cancel()
		pods, lerr := a.kubelet.List(ctx)
		if lerr != nil {
			return // kubelet tells of the failure, too
		}
		for _, p := range pods {
			for _, c := range p.Containers {
				for _, d := range c.Devices {
					if d.Resource != resource || !slices.Equal(d.IDs, want) {
						continue
					}
					pod := lease.Pod{Namespace: p.Namespace, Name: p.Name}
					if len(uids) == 1 {
						pod.UID = uids[0]
					}
					a.teller.refused(pod, "start container "+c.Name+": "+err.Error())
				}
			}
		}
	}()
}

// lookedAtNode tells what is new on the node.
func (a *Agent) lookedAtNode(devices map[string][]deviceplugin.Device) {
	_, problems := a.inventory.last()
	a.teller.looked(devices, problems, func(nic string) bool {
		_, err := a.nics.LinkByName(nic)
		return err == nil
	})
}
