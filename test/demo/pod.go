package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/testutil/fakekubelet"
)

// podName is the pod as Kubernetes names it.
type podName struct{ uid, namespace, name string }

const (
	containerName = "app"
	program       = "/bin/afxdp-bench"
	// tellInterval is how often the pod's program says what it has counted.
	tellInterval = "50ms"
)

// benchReport is what afxdp-bench says as JSON, as far as it is needed.
type benchReport struct {
	End     string `json:"end"`
	Error   string `json:"error"`
	Resumes int    `json:"resumes"`
	Queues  []struct {
		Netdev   string `json:"netdev"`
		Queue    int    `json:"queue"`
		Received uint64 `json:"rx_packets"`
		ZeroCopy bool   `json:"zero_copy"`
		BusyPoll struct {
			Active bool   `json:"active"`
			Reason string `json:"reason"`
		} `json:"busy_poll"`
		Drops *struct {
			RXDropped       uint64 `json:"rx_dropped"`
			RXRingFull      uint64 `json:"rx_ring_full"`
			RXFillRingEmpty uint64 `json:"rx_fill_ring_empty"`
			RXInvalid       uint64 `json:"rx_invalid"`
			TXInvalid       uint64 `json:"tx_invalid"`
		} `json:"drops"`
		NotCompleted uint64 `json:"tx_not_completed"`
	} `json:"queues"`
}

func (r *benchReport) received() (sum uint64) {
	for _, q := range r.Queues {
		sum += q.Received
	}
	return sum
}

// dropped sums up what the kernel dropped on the pod's sockets. It is an error when the program could not read that.
func (r *benchReport) dropped() (sum uint64, err error) {
	for _, q := range r.Queues {
		if q.Drops == nil {
			return 0, fmt.Errorf("the pod could not read the statistics of %s-q%d", q.Netdev, q.Queue)
		}
		d := q.Drops
		sum += d.RXDropped + d.RXRingFull + d.RXFillRingEmpty + d.RXInvalid + d.TXInvalid
	}
	return sum, nil
}

// mode says how the queues work, in words.
func (r *benchReport) mode() string {
	var modes []string
	for _, q := range r.Queues {
		m := "copy mode"
		if q.ZeroCopy {
			m = "zero-copy"
		}
		if q.BusyPoll.Active {
			m += ", busy polling: "
		} else {
			m += ", no busy polling: "
		}
		modes = append(modes, m+q.BusyPoll.Reason)
	}
	return strings.Join(slices.Compact(modes), "; ")
}

// devices names the queues as kubelet does.
func (r *benchReport) devices() []string {
	var ids []string
	for _, q := range r.Queues {
		ids = append(ids, fmt.Sprintf("%s-q%d", q.Netdev, q.Queue))
	}
	return ids
}

// container is the running container.
type container struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when the process has ended and all that it said was read, with err
	err   error

	mu     sync.Mutex
	last   benchReport
	count  int // reports that have come
	words  []string
	change chan struct{} // closed and made anew with each report
}

// startContainer starts the pod's program in a container, with what kubelet got from the device plugin.
func startContainer(started fakekubelet.Started) (*container, error) {
	spec := containerSpec{
		Netns: podNetns, Env: []string{runVariable + "=" + os.Getenv(runVariable)},
		Args: []string{program, "l2fwd", "--json", "--progress", tellInterval},
	}
	if runtime.NumCPU() < 4 {
		// With the source, a thread for each queue would be more busy threads than there are CPUs.
		spec.Args = append(spec.Args, "--threads", "1")
	}
	for k, v := range started.Env {
		spec.Env = append(spec.Env, k+"="+v)
	}
	for _, m := range started.Mounts {
		spec.Mounts = append(spec.Mounts, containerMount{From: m.GetHostPath(), To: m.GetContainerPath(), ReadOnly: m.GetReadOnly()})
	}
	from, to, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer from.Close()
	defer to.Close()
	c := &container{ended: make(chan struct{}), change: make(chan struct{})}
	c.cmd = exec.Command("/proc/self/exe")
	c.cmd.Args[0] = roleContainer
	c.cmd.ExtraFiles = []*os.File{from}
	c.cmd.SysProcAttr = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS}
	stdout, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	stderr, err := c.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the container: %w", err)
	}
	var reading sync.WaitGroup
	reading.Go(func() { c.read(stdout, c.report) })
	reading.Go(func() { c.read(stderr, c.say) })
	go func() {
		reading.Wait()
		c.err = c.cmd.Wait()
		close(c.ended)
	}()
	return c, json.NewEncoder(to).Encode(spec)
}

func (c *container) read(from io.Reader, take func(line []byte)) {
	lines := bufio.NewScanner(from)
	for lines.Scan() {
		take(lines.Bytes())
	}
}

func (c *container) report(line []byte) {
	var r benchReport
	if err := json.Unmarshal(line, &r); err != nil {
		c.say(fmt.Appendf(nil, "%v: %s", err, line))
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = r
	c.count++
	close(c.change)
	c.change = make(chan struct{})
}

func (c *container) say(line []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.words = append(c.words, string(line))
}

// said returns what the program wrote beside its reports.
func (c *container) said() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.words, "\n")
}

func (c *container) latest() benchReport {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}

// until waits for a report for which cond holds.
func (c *container) until(ctx context.Context, what string, cond func(benchReport) bool) (benchReport, error) {
	for {
		c.mu.Lock()
		last, count, change := c.last, c.count, c.change
		c.mu.Unlock()
		if count > 0 && cond(last) {
			return last, nil
		}
		select {
		case <-change:
		case <-c.ended:
			return last, fmt.Errorf("the pod's program ended before %s: %w: %s", what, c.err, c.said())
		case <-ctx.Done():
			return last, fmt.Errorf("the pod's program: wait until %s: %w: %s", what, context.Cause(ctx), c.said())
		}
	}
}

// kill kills the program with SIGKILL and waits for its end.
func (c *container) kill() error {
	if err := c.cmd.Process.Kill(); err != nil {
		return fmt.Errorf("kill the pod's program: %w", err)
	}
	<-c.ended
	return nil
}

// stop has the program end by itself and returns its summary.
func (c *container) stop(ctx context.Context) (benchReport, error) {
	if err := c.cmd.Process.Signal(unix.SIGTERM); err != nil {
		return benchReport{}, fmt.Errorf("stop the pod's program: %w", err)
	}
	select {
	case <-c.ended:
	case <-ctx.Done():
		return benchReport{}, errors.Join(fmt.Errorf("stop the pod's program: %w", context.Cause(ctx)), c.kill())
	}
	last := c.latest()
	if c.err != nil {
		return last, fmt.Errorf("stop the pod's program: %w: %s", c.err, c.said())
	}
	if last.End != "signal" {
		return last, fmt.Errorf("stop the pod's program: its last report is of an end by %q: %s", last.End, c.said())
	}
	return last, nil
}

// confine checks that the container sees nothing of the node but what it was given, and shares no namespace with the
// agent.
func (c *container) confine(agent int, mounts []string) error {
	dir := fmt.Sprintf("/proc/%d", c.cmd.Process.Pid)
	for _, kind := range []string{"net", "mnt", "pid", "ipc", "uts"} {
		pods, err := os.Readlink(filepath.Join(dir, "ns", kind))
		if err != nil {
			return err
		}
		agents, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", agent, kind))
		if err != nil {
			return err
		}
		if pods == agents {
			return fmt.Errorf("the pod is in the agent's %s namespace", kind)
		}
	}
	table, err := os.ReadFile(filepath.Join(dir, "mountinfo"))
	if err != nil {
		return err
	}
	var found []string
	for line := range strings.Lines(string(table)) {
		found = append(found, parseMount(line).point)
	}
	want := append([]string{"/", "/dev/null", "/proc", program}, mounts...)
	slices.Sort(found)
	if slices.Sort(want); !slices.Equal(found, want) {
		return fmt.Errorf("the pod sees the mounts %q, not %q", found, want)
	}
	return nil
}
