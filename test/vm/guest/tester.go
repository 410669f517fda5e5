package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/lease"
	"github.com/afxdp-project/afxdp/internal/testutil"
	"github.com/afxdp-project/afxdp/pkg/netdev"
	"github.com/afxdp-project/afxdp/pkg/xsk"
	"github.com/afxdp-project/afxdp/test/vm/report"
)

const (
	stateDir = "/run/afxdp/state"
	pinDir   = "/sys/fs/bpf/afxdp"
)

// tester works through the task.
type tester struct {
	task    report.Task
	tell    func(report.Message)
	release string
	nics    *netdev.Handle
	leases  *lease.Manager
	pod     *testutil.Netns // stands for the pod's
	cookie  uint64          // of pod
	// mapFirst says that this kernel maps the rings of an AF_XDP socket only before it is bound.
	mapFirst bool
	tag      byte
	// interrupts are those of each NIC without busy polling.
	interrupts map[string]uint64
	polls      *polls
}

func newTester(task report.Task, tell func(report.Message)) (*tester, error) {
	// A thread for the loop, one for traffic, and the runtime's.
	runtime.GOMAXPROCS(4)
	t := &tester{task: task, tell: tell, interrupts: make(map[string]uint64)}
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return nil, err
	}
	t.release = unix.ByteSliceToString(name.Release[:])
	var err error
	if t.nics, err = netdev.Open(); err != nil {
		return nil, err
	}
	if t.pod, err = testutil.OpenNewNetns(); err != nil {
		return nil, err
	}
	err = t.pod.Do(func() error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
		if err != nil {
			return err
		}
		t.cookie, err = netdev.CookieOfSocket(fd)
		return errors.Join(err, unix.Close(fd))
	})
	if err != nil {
		return nil, err
	}
	if err := xsk.ProbeMapBound(); errors.Is(err, xsk.ErrUnsupported) {
		t.mapFirst = true
	} else if err != nil {
		return nil, err
	}
	leases, findings, err := lease.New(lease.Config{StateDir: stateDir, PinDir: pinDir, NICs: t.nics})
	if err != nil {
		return nil, err
	}
	t.leases = leases
	return t, errors.Join(findings...)
}

func (t *tester) close() error { return errors.Join(t.leases.Close(), t.nics.Close(), t.pod.Close()) }

func (t *tester) run() error {
	if t.task.Bench != nil {
		return t.bench(*t.task.Bench)
	}
	if t.task.Agent {
		t.agent()
	}
	for _, want := range t.task.NICs {
		if err := t.testNIC(want); err != nil {
			return fmt.Errorf("test %s: %w", want.Name, err)
		}
	}
	return nil
}

func (t *tester) testNIC(want report.NIC) error {
	n, err := t.openNIC(want)
	if err != nil {
		return err
	}
	if n.peer != nil {
		defer func() { _ = n.peer.Close() }()
	}
	// Other values than the kernel's own, so that to put them back is not the same as to set them to 0.
	count, timeout := uint32(1), 15*time.Microsecond
	if err := t.nics.SetDeviceSettings(n.index, netdev.DeviceSettings{DeferHardIRQs: &count, GROFlushTimeout: &timeout}); err != nil {
		return err
	}
	base := report.Row{Kernel: t.task.Kernel, Release: t.release, Driver: n.Name, Queues: t.task.Queues, Queue: testQueue}
	if err := t.probe(n, &base); err != nil {
		return fmt.Errorf("find out what it can: %w", err)
	}
	for _, m := range t.task.Once {
		row := base
		row.Mode = m
		t.tag++
		if err := t.once(n, m, &row); err != nil {
			row.Refusal = err.Error()
		}
		t.tell(report.Message{Row: &row, Tag: t.tag, NIC: n.Name})
	}
	if t.task.Once != nil {
		return nil
	}
	for _, m := range modes {
		row := base
		row.Mode = m.name
		if m.noKick && (n.Copy || base.ZeroCopyBind != ok) {
			continue // in copy mode there is no such case
		}
		t.tag++
		if err := t.row(n, m, &row); err != nil {
			row.Refusal = err.Error()
		}
		if m.noKick && !row.NAPI.Separate && row.Refusal == "" {
			continue
		}
		if n.peer != nil {
			row.TX.Count(n.peer.Arrived(t.tag))
		}
		t.tell(report.Message{Row: &row, Tag: t.tag, NIC: n.Name})
	}
	return nil
}

const agentConfig = `apiVersion: afxdp.io/v1alpha1
kind: Configuration
pools:
- name: test
  nics:
    names: [eth9]
`

// agentTime is far more than the agent takes to refuse.
const agentTime = 30 * time.Second

// agent starts the node agent and takes what it says as its refusal.
func (t *tester) agent() {
	row := report.Row{Kernel: t.task.Kernel, Release: t.release, Driver: report.ModeAgent, Mode: report.ModeAgent}
	config := "/run/agent.yaml"
	err := os.WriteFile(config, []byte(agentConfig), 0o600)
	if err != nil {
		row.Refusal = err.Error()
	} else {
		ctx, cancel := context.WithTimeout(context.Background(), agentTime)
		defer cancel()
		out, err := exec.CommandContext(ctx, report.AgentFile, "--config", config).CombinedOutput()
		row.Refusal = fmt.Sprintf("%s (%v)", bytes.TrimSpace(out), err)
	}
	t.tell(report.Message{Row: &row})
}
