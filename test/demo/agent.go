package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// agentConfig has one pool, of the queues 1 and 2 of the NIC, with everything else as it comes.
const agentConfig = `apiVersion: afxdp.io/v1alpha1
kind: Configuration
pools:
- name: ` + pool + `
  nics:
    names: [` + nearNIC + `]
  queues: 1-2
`

const (
	pool     = "fast"
	resource = "afxdp.io/" + pool
)

// agent is the running node agent.
type agent struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when the process has ended, with err
	err   error
}

// startAgent starts the agent program. Its log goes to agentLog, after what is there.
func startAgent() (*agent, error) {
	log, err := os.OpenFile(agentLog, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	a := &agent{ended: make(chan struct{})}
	a.cmd = exec.Command("/proc/self/exe", filepath.Join(binDir, "afxdp-deviceplugin"),
		"--config", configFile, "--kubelet-root", kubeletRoot, "--run-dir", runDir, "--pin-dir", pinDir)
	a.cmd.Args[0] = roleAgent
	a.cmd.Stdout, a.cmd.Stderr = log, log
	if err := a.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the agent: %w", err)
	}
	go func() {
		a.err = a.cmd.Wait()
		close(a.ended)
	}()
	return a, nil
}

// agentCaps are all that the agent is documented to need, as root.
var agentCaps = []uintptr{unix.CAP_NET_ADMIN, unix.CAP_NET_RAW, unix.CAP_IPC_LOCK, unix.CAP_BPF}

// agentMain becomes the program args with agentCaps and no others: of root, exec permits what the bounding set has.
func agentMain(args []string) error {
	runtime.LockOSThread()
	if err := boundCapabilities(agentCaps...); err != nil {
		return err
	}
	return unix.Exec(args[0], args, os.Environ())
}

// hasAgentCaps returns an error unless the agent runs with agentCaps.
func (a *agent) hasAgentCaps() error {
	r, err := rightsOf(a.cmd.Process.Pid)
	if err != nil {
		return err
	}
	var want uint64
	for _, c := range agentCaps {
		want |= 1 << c
	}
	if r.uid != 0 || r.caps != want {
		return fmt.Errorf("the agent runs with uid %d and capabilities %016x, not with 0 and %016x", r.uid, r.caps, want)
	}
	return nil
}

// kill kills the agent with SIGKILL and waits for its end.
func (a *agent) kill() error {
	if err := a.cmd.Process.Kill(); err != nil {
		return fmt.Errorf("kill the agent: %w", err)
	}
	<-a.ended
	return nil
}

// stop has the agent stop by itself, as kubelet stops a pod.
func (a *agent) stop(ctx context.Context) error {
	if err := a.cmd.Process.Signal(unix.SIGTERM); err != nil {
		return fmt.Errorf("stop the agent: %w", err)
	}
	select {
	case <-a.ended:
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("stop the agent: %w", context.Cause(ctx)), a.kill())
	}
	if a.err != nil {
		return fmt.Errorf("stop the agent: it ended with %w", a.err)
	}
	return nil
}

// guard returns a context that ends when the agent does. The caller calls cancel first when it ends the agent itself.
func (a *agent) guard(parent context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	ctx, release := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not done within %v", limit))
	go func() {
		select {
		case <-a.ended:
			cancel(fmt.Errorf("the agent has ended: %w", a.err))
		case <-ctx.Done():
		}
	}()
	return ctx, func() { release(); cancel(nil) }
}
