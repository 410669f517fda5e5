package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/conflist"
	"github.com/afxdp-project/afxdp/internal/deviceplugin"
	"github.com/afxdp-project/afxdp/internal/install"
	"github.com/afxdp-project/afxdp/internal/kube"
	"github.com/afxdp-project/afxdp/internal/kubelet"
	"github.com/afxdp-project/afxdp/internal/lease"
)

const (
	// startPatience is how long a start waits for the API server's word on whether the node is being uninstalled.
	startPatience = 3 * time.Second
	// heldPatience is how long an uninstallation waits for queues that ended leases hold.
	heldPatience = 3 * time.Second
)

// whyWithdrawn is what pods are told.
const whyWithdrawn = "the node agent was uninstalled: the queue is the node's again and the pod's socket receives nothing more; " +
	"delete the pod, or start it anew where the agent runs"

// followMark has marks have the latest mark of the node that asks this agent to uninstall, until ctx is done.
func (a *Agent) followMark(ctx context.Context, marks chan kube.Mark) {
	switch {
	case a.config.Node == nil:
		return
	case a.config.PodUID == "":
		a.log.Warn("the UID of the agent's own pod is not known: it cannot be asked to uninstall")
		return
	}
	a.config.Node.Follow(ctx, func(m kube.Mark) {
		if m.PodUID != a.config.PodUID {
			return
		}
		select {
		case <-marks:
		default:
		}
		marks <- m
	})
}

// beginning returns whether this agent is asked to uninstall, or has begun to before it was started anew: it must not
// hand out anything again then. In the second case the mark may be empty.
func (a *Agent) beginning(ctx context.Context) (m kube.Mark, is bool) {
	if a.config.Node == nil || a.config.PodUID == "" {
		return m, false
	}
	begun, err := a.leases.UninstallBegun(a.config.PodUID)
	if err != nil {
		a.log.Error("find out whether an uninstallation has begun", "error", err)
	}
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	m, err = a.config.Node.Mark(ctx) // that the API server is away is told elsewhere
	if err == nil && m.PodUID == a.config.PodUID {
		return m, true
	}
	return kube.Mark{}, begun
}

// live serves until ctx is done, or until the node is marked for this agent: then it uninstalls, and waits for its end.
func (a *Agent) live(ctx context.Context, marks <-chan kube.Mark) error {
	mark, is := a.beginning(ctx)
	if !is {
		serving, stop := context.WithCancel(ctx)
		defer stop()
		marked := make(chan kube.Mark, 1)
		go func() {
			select {
			case m := <-marks:
				marked <- m
				a.withdraw()
				stop()
			case <-serving.Done():
			}
		}()
		err := a.serve(serving)
		select {
		case mark = <-marked:
		default:
			return err
		}
		if err != nil {
			a.log.Error("stop serving, for the uninstallation", "error", err)
		}
	}
	a.withdraw()
	for ctx.Err() == nil {
		r := a.uninstall(ctx, mark.Runtime)
		a.log.Info("uninstalled", "ok", r.OK, "done", r.Done, "left", r.Left, "failed", r.Failed)
		// Without a mark nobody waits for the report yet; when it comes all is looked at again.
		if mark.PodUID != "" {
			if err := a.config.Node.Report(ctx, r); err != nil && ctx.Err() == nil {
				a.log.Error("uninstall", "error", err)
			}
		}
		mark = a.nextMark(ctx, marks)
	}
	return nil
}

// nextMark waits until a report is asked for: also one that was given and taken away, for a second attempt.
func (a *Agent) nextMark(ctx context.Context, marks <-chan kube.Mark) kube.Mark {
	for {
		var m kube.Mark
		select {
		case <-ctx.Done():
			return m
		case m = <-marks:
		}
		// It may be older than the report.
		if now, err := a.config.Node.Mark(ctx); err == nil {
			m = now
		}
		if m.PodUID == a.config.PodUID && m.Report.PodUID != a.config.PodUID {
			return m
		}
	}
}

// uninstall undoes what this agent and earlier ones have done to the node, as far as can be. It can be repeated, also by
// an agent that was started anew, which goes on. Nothing is served meanwhile.
func (a *Agent) uninstall(ctx context.Context, runtime string) kube.Report {
	u := &uninstallation{Agent: a, report: kube.Report{PodUID: a.config.PodUID}}
	a.inventory.forget()
	for _, step := range []struct {
		name string
		take func()
	}{
		{"begin", u.begin},
		{"unchain", u.unchain}, // early, so that no pod is set up that cannot be
		{"remove endpoints", u.removeEndpoints},
		{"end leases", func() { u.endLeases(ctx) }},
		{"remove allocations", func() { u.removeAllocations(ctx) }},
		{"remove plugin", func() { u.removePlugin(runtime) }}, // late, since a pod that ends meanwhile may need it
		{"remove run directory", u.removeRunDir},
	} {
		if a.config.fault != nil {
			a.config.fault(step.name)
		}
		step.take()
	}
	u.report.OK = len(u.report.Failed) == 0
	return u.report
}

// uninstallation writes its report as it goes.
type uninstallation struct {
	*Agent
	report kube.Report
}

// did notes what was done, or that it failed.
func (u *uninstallation) did(what string, err error) {
	if err != nil {
		u.report.Failed = append(u.report.Failed, err.Error())
		return
	}
	u.report.Done = append(u.report.Done, what)
}

// do notes only a failure.
func (u *uninstallation) do(what string, err error) {
	if err != nil {
		u.report.Failed = append(u.report.Failed, what+": "+err.Error())
	}
}

func (u *uninstallation) left(format string, args ...any) {
	u.report.Left = append(u.report.Left, fmt.Sprintf(format, args...))
}

// begin has the journal know, for an agent that is started anew.
func (u *uninstallation) begin() {
	if !u.dismantled {
		u.do("remember that the uninstallation has begun", u.leases.BeginUninstall(u.config.PodUID))
	}
}

// removeEndpoints removes what was left of the sockets that kubelet and the CNI plugin use.
func (u *uninstallation) removeEndpoints() {
	socket := filepath.Join(u.config.RunDir, socketName)
	u.did("the devices were taken from kubelet", errors.Join(
		deviceplugin.RemoveSockets(u.config.KubeletRoot, u.inventory.pools()), remove(socket), remove(socket+".new")))
}

// unchain takes the CNI plugin out of the node's network configuration.
func (u *uninstallation) unchain() {
	if u.config.CNIConfDir == "" {
		return
	}
	var err error
	if u.chain != nil {
		err = u.chain.Remove()
	} else { // what an operator has chained by hand stays
		err = conflist.RemoveOwn(u.config.CNIConfDir)
	}
	u.did(fmt.Sprintf("%s was taken out of the network configurations in %s", install.PluginName, u.config.CNIConfDir), err)
}

// endLeases ends all leases, puts the NICs back and removes journal and pins.
func (u *uninstallation) endLeases(ctx context.Context) {
	if u.dismantled {
		u.report.Done = append(u.report.Done, u.dismantling.Done...)
		u.report.Left = append(u.report.Left, u.dismantling.Left...)
		return
	}
	done, left := len(u.report.Done), len(u.report.Left)
	ended, err := u.leases.EndAll("the node agent was uninstalled")
	u.teller.notRestored(err)
	if err := u.teller.withdrawn(ctx, ended, whyWithdrawn); err != nil {
		u.log.Warn("tell pods that their leases were ended", "error", err)
	}
	for _, l := range ended {
		u.log.Info("lease ended", "device", l.Device, "pod", l.Pod.String(), "reason", "uninstallation")
	}
	u.ended = append(u.ended, ended...)
	for _, l := range u.ended {
		u.report.Done = append(u.report.Done, fmt.Sprintf("the lease of %s, of pod %s, was ended", l.Device, l.Pod))
	}
	u.did("settings and XDP programs of the NICs are as before", err)
	held := u.waitForQueues(ctx) // meanwhile the pods' connections are told
	u.do("close the pods' connections", u.closeServer())
	for _, l := range held {
		u.left("queue %d of %s: a process of pod %s held it still when its lease had ended. What was handed out cannot be "+
			"taken back: it can send until the process ends", l.Queue, l.Identity.Name, l.Pod)
	}
	if err != nil {
		return // what is to be put back is in the journal
	}
	err = u.leases.Dismantle()
	u.did("pins and journal were removed", err)
	if u.dismantled = err == nil; u.dismantled {
		u.dismantling = kube.Report{Done: slices.Clone(u.report.Done[done:]), Left: slices.Clone(u.report.Left[left:])}
	}
}

// waitForQueues waits a while for the queues that ended leases hold, and returns what is held then.
func (u *uninstallation) waitForQueues(ctx context.Context) []lease.Lease {
	deadline := time.Now().Add(heldPatience)
	for {
		pending, err := u.leases.Maintain()
		if err != nil {
			u.log.Error("finish the end of leases", "error", err)
		}
		if !pending {
			return nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return slices.DeleteFunc(u.leases.Leases(), func(l lease.Lease) bool { return l.State != lease.StateHeld })
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (a *Agent) closeServer() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	return a.server.Close(ctx)
}

// removeAllocations removes the directories of allocations but for those that a pod may have mounted: were one made anew
// by a later agent, the mount would be dead.
func (u *uninstallation) removeAllocations(ctx context.Context) {
	users, err := u.allocationUsers(ctx)
	if err != nil {
		u.left("the directories in %s, since it is not known which pods have mounted them (%v); they are gone after a boot",
			u.allocations.dir, err)
		return
	}
	entries, err := os.ReadDir(u.allocations.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		u.do("remove allocations", err)
		return
	}
	for _, e := range entries {
		dir := filepath.Join(u.allocations.dir, e.Name())
		if who, ok := users[e.Name()]; ok {
			u.do("remove the socket of an allocation", u.allocations.empty(e.Name()))
			u.left("%s, empty: %s may have mounted it; it is gone after a boot", dir, who)
			continue
		}
		u.do("remove an allocation", os.RemoveAll(dir))
	}
	if err := os.Remove(u.allocations.dir); err == nil {
		u.report.Done = append(u.report.Done, "the allocations were removed")
	} else if !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, fs.ErrNotExist) {
		u.do("remove the allocations", err)
	}
}

// allocationUsers returns which allocations a pod may have mounted: those that kubelet's checkpoint has, unless their
// pods are gone. Kubelet forgets these only when it next allocates something.
func (u *uninstallation) allocationUsers(ctx context.Context) (map[string]string, error) {
	cp, _, err := u.kubelet.Checkpoint()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	users := make(map[string]string)
	for _, e := range cp.Entries {
		if _, ok := poolOf(e.Resource); ok && len(e.DeviceIDs) > 0 {
			users[allocationID(e.DeviceIDs)] = "the pod with UID " + e.PodUID
		}
	}
	if len(users) == 0 {
		return users, nil
	}
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	pods, err := u.kubelet.List(ctx)
	if err != nil {
		u.log.Warn("ask kubelet which pods have allocations", "error", err)
		return users, nil
	}
	for _, e := range cp.Entries {
		id := allocationID(e.DeviceIDs)
		if _, ok := users[id]; !ok {
			continue
		}
		if p, ok := userOf(e, pods, u.ended); ok {
			users[id] = "pod " + p.Namespace + "/" + p.Name
		} else {
			delete(users, id)
		}
	}
	return users, nil
}

// userOf returns the pod that has an entry of the checkpoint, of those that kubelet lists: one with the UID, if a lease
// tells it, or one with some of the devices. Of ordinary init containers kubelet lists none.
func userOf(e kubelet.Entry, pods []kubelet.PodDevices, leases []lease.Lease) (kubelet.PodDevices, bool) {
	for _, p := range pods {
		for _, l := range leases {
			if l.Pod.UID == e.PodUID && l.Pod.Namespace == p.Namespace && l.Pod.Name == p.Name {
				return p, true
			}
		}
		for _, c := range p.Containers {
			for _, d := range c.Devices {
				if d.Resource == e.Resource && slices.ContainsFunc(d.IDs, func(id string) bool { return slices.Contains(e.DeviceIDs, id) }) {
					return p, true
				}
			}
		}
	}
	return kubelet.PodDevices{}, false
}

// removePlugin removes the CNI plugin unless a pod needs it for its end.
func (u *uninstallation) removePlugin(runtime string) {
	if u.config.CNIBinDir == "" {
		return
	}
	path := filepath.Join(u.config.CNIBinDir, install.PluginName)
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return
	}
	users, err := install.Users{CacheDir: u.config.CNICacheDir, ConfDir: u.config.CNIConfDir, Runtime: runtime}.Find()
	const harmless = "it does nothing without an agent, and can be removed by hand when they are gone"
	switch {
	case err != nil:
		u.left("%s, since it is not known whether pods need it for their end (%v); %s", path, err, harmless)
	case len(users) > 0:
		more := ""
		if n := len(users) - maxNamed; n > 0 {
			users, more = users[:maxNamed], fmt.Sprintf(" and %d more", n)
		}
		u.left("%s: without it the end of these would fail for ever: %s%s; %s", path, strings.Join(users, ", "), more, harmless)
	default:
		u.did(path+" was removed", install.RemovePlugin(u.config.CNIBinDir))
	}
}

// maxNamed is how many of those who need the plugin are named.
const maxNamed = 5

// removeRunDir removes the run directory where it is empty. In a container it is a mount, and stays.
func (u *uninstallation) removeRunDir() {
	err := os.Remove(u.config.RunDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ENOTEMPTY) &&
		!errors.Is(err, unix.EROFS) && !errors.Is(err, fs.ErrPermission) {
		u.do("remove the run directory", err)
	}
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
