package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// limit is how long the demo may take; then the node and all in it is killed.
const limit = 55 * time.Second

// programs are what the demo runs, all of them static: the container has no libraries.
var programs = []string{"afxdp-deviceplugin", "afxdp-cni", "afxdp-bench", "loopback"}

// check says what is missing before anything is done.
func check(bin string) error {
	if os.Geteuid() != 0 {
		return errors.New("it makes namespaces and a NIC: run it as root (sudo make demo)")
	}
	var missing []string
	for _, p := range programs {
		if info, err := os.Stat(filepath.Join(bin, p)); err != nil || info.Mode()&0o111 == 0 {
			missing = append(missing, p)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("%s lacks %s: run make demo, which builds them", bin, strings.Join(missing, ", "))
	}
	return nil
}

// onHost runs the node in namespaces of its own, and looks afterwards whether the host is as it was. What it returns
// beside an error is as much of the outcome as there is.
func onHost(bin string, logs bool) (outcome, error) {
	before, err := lookAtHost()
	if err != nil {
		return outcome{UID: -1}, err
	}
	o, err := runNode(bin, logs)
	after, herr := lookAtHost()
	o.Leftovers = append(o.Leftovers, before.changes(after)...)
	return o, errors.Join(err, herr)
}

// runNode starts the program as the node. The kernel kills it when this process dies, and with it, the first of its PID
// namespace, all that it has started; network and mount namespaces go with the last of them.
func runNode(bin string, logs bool) (o outcome, err error) {
	o.UID = -1
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not done within %v", limit))
	defer cancel()
	from, to, err := os.Pipe()
	if err != nil {
		return o, err
	}
	defer from.Close()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", bin, fmt.Sprint(logs))
	cmd.Args[0] = roleNode
	cmd.Env = append(os.Environ(), runVariable+"="+runID())
	cmd.Stderr, cmd.ExtraFiles = os.Stderr, []*os.File{to}
	cmd.SysProcAttr = &unix.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID, Pdeathsig: unix.SIGKILL,
		// A terminal's Ctrl-C comes here, and the node is told.
		Setsid: true,
	}
	// The node shows what it knows, and ends; a kill is for one that does not.
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	runtime.LockOSThread() // whose end is what sends the parent-death signal
	defer runtime.UnlockOSThread()
	err = cmd.Start()
	_ = to.Close()
	if errors.Is(err, unix.EPERM) {
		return o, fmt.Errorf("start in namespaces of its own: %w (this root lacks CAP_SYS_ADMIN; in a container it must be privileged)", err)
	}
	if err != nil {
		return o, fmt.Errorf("start in namespaces of its own: %w", err)
	}
	text, rerr := io.ReadAll(from)
	err = cmd.Wait()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case errors.As(err, &exit) && exit.ExitCode() == 1:
		err = errors.New("see the node's last words above")
	case err != nil:
		err = fmt.Errorf("the node ended: %w", err)
	}
	if rerr == nil && len(text) > 0 {
		rerr = json.Unmarshal(text, &o)
	}
	return o, errors.Join(err, rerr)
}
