package client_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/handoff/handofftest"
	"github.com/afxdp-project/afxdp/internal/testutil"
	"github.com/afxdp-project/afxdp/pkg/client"
	"github.com/afxdp-project/afxdp/pkg/xsk"
)

// podEnv makes the test binary a pod's process.
const podEnv = "AFXDP_TEST_POD"

func TestMain(m *testing.M) {
	if os.Getenv(podEnv) != "" {
		os.Exit(podMain())
	}
	os.Exit(testutil.Main(m))
}

// order is what a pod's process is told to do, a line of JSON; report is its answer.
type order struct {
	Do     string // connect, openall, register, join, open, closequeue, close, churn or report
	Client string
	Path   string
	From   string // the client whose device 0 is joined
	Device int
}

type report struct {
	Error    string
	Code     client.Code // of Error
	Received []uint64    // by device
	Resumes  uint64
	Done     bool
	DoneErr  string
	DoneCode client.Code

	UID, Capabilities string // as /proc/self/status has them
	MemoryLock        uint64 // bytes
	FDs               []string
	Goroutines        int
}

// process is a pod's process, with neither root nor capabilities.
type process struct {
	tb  testing.TB
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func startProcess(tb testing.TB, p *handofftest.Pod, attr *unix.SysProcAttr) *process {
	tb.Helper()
	pr := &process{tb: tb, cmd: exec.Command("/proc/self/exe")}
	// The race detector's second at the end of a process would be most of the tests' time.
	pr.cmd.Env = []string{podEnv + "=1", "GORACE=atexit_sleep_ms=0"}
	pr.cmd.Stderr = os.Stderr
	pr.cmd.SysProcAttr = attr
	var err error
	if pr.in, err = pr.cmd.StdinPipe(); err != nil {
		tb.Fatal(err)
	}
	out, err := pr.cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	pr.out = bufio.NewScanner(out)
	// The child is made by the thread that is in the pod's network namespace.
	if err := p.Netns.Do(pr.cmd.Start); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if pr.cmd.ProcessState == nil {
			pr.end()
		}
	})
	return pr
}

// end has the process end by itself, which it does not when the race detector has found something.
func (pr *process) end() {
	pr.tb.Helper()
	_ = pr.in.Close()
	timer := time.AfterFunc(handofftest.Patience, func() { _ = pr.cmd.Process.Kill() })
	defer timer.Stop()
	if err := pr.cmd.Wait(); err != nil {
		pr.tb.Errorf("the pod's process: %v", err)
	}
}

func (pr *process) kill() {
	_ = pr.cmd.Process.Kill()
	_ = pr.cmd.Wait()
}

func (pr *process) begin(o order) {
	pr.tb.Helper()
	b, err := json.Marshal(o)
	if err != nil {
		pr.tb.Fatal(err)
	}
	if _, err := pr.in.Write(append(b, '\n')); err != nil {
		pr.tb.Fatal(err)
	}
}

func (pr *process) result() (r report) {
	pr.tb.Helper()
	if !pr.out.Scan() {
		pr.tb.Fatal("the pod's process has ended")
	}
	if err := json.Unmarshal(pr.out.Bytes(), &r); err != nil {
		pr.tb.Fatal(err)
	}
	return r
}

// try gives an order and returns the report.
func (pr *process) try(o order) report {
	pr.tb.Helper()
	pr.begin(o)
	return pr.result()
}

// do gives an order that must succeed.
func (pr *process) do(o order) report {
	pr.tb.Helper()
	r := pr.try(o)
	if r.Error != "" {
		pr.tb.Fatalf("%+v: %s", o, r.Error)
	}
	return r
}

func (pr *process) report(name string) report {
	pr.tb.Helper()
	return pr.do(order{Do: "report", Client: name})
}

// podMain is the program of a pod: it sends every packet back.
func podMain() int {
	limit := unix.Rlimit{Cur: 64 << 10, Max: 64 << 10}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	clients := make(map[string]*podClient)
	in := bufio.NewScanner(os.Stdin)
	out := json.NewEncoder(os.Stdout)
	for in.Scan() {
		var o order
		if err := json.Unmarshal(in.Bytes(), &o); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		if clients[o.Client] == nil {
			clients[o.Client] = &podClient{queues: make(map[int]*podQueue)}
		}
		c := clients[o.Client]
		err := c.obey(o, clients)
		r := c.report()
		if err != nil {
			r.Error = err.Error()
			var refused *client.Error
			if errors.As(err, &refused) {
				r.Code = refused.Code
			}
		}
		if err := out.Encode(r); err != nil {
			return 1
		}
	}
	return 0
}

type podClient struct {
	client *client.Client
	set    *client.Set
	umem   *xsk.UMEM
	queues map[int]*podQueue
}

func (c *podClient) obey(o order, clients map[string]*podClient) (err error) {
	switch o.Do {
	case "connect":
		c.client, err = client.Connect(context.Background(), o.Path)
	case "openall":
		if c.set, err = c.client.OpenAll(client.AllConfig{}); err == nil {
			for i, q := range c.set.Queues {
				c.queues[q.Device.Index] = echo(q, c.set.Frames[i])
			}
		}
	case "register":
		c.umem, err = c.client.Register(client.UMEMConfig{UMEMConfig: xsk.UMEMConfig{Frames: 1024}})
	case "join":
		from := clients[o.From]
		if err = c.client.Join(from.queues[0].Queue); err == nil {
			c.umem = from.umem
		}
	case "open":
		var q *client.Queue
		if q, err = c.client.Open(o.Device, c.umem, client.OpenConfig{Rings: smallRings}); err == nil {
			// Joined clients open other devices than those that they have joined: no frame is used twice.
			first := uint32(o.Device) * 128
			if o.From != "" {
				first += 512
			}
			c.queues[o.Device] = echo(q, xsk.NewFrames(c.umem.Config, first, 128))
		}
	case "closequeue":
		err = c.queues[o.Device].end()
		delete(c.queues, o.Device)
	case "close":
		for _, q := range c.queues {
			err = errors.Join(err, q.end())
		}
		clear(c.queues)
		if c.set != nil {
			err = errors.Join(err, c.set.Close())
		} else if c.umem != nil && o.From == "" {
			err = errors.Join(err, c.umem.Close())
		}
		err = errors.Join(err, c.client.Close())
	case "churn":
		err = c.churn()
	}
	return err
}

var smallRings = xsk.RingSizes{Fill: 64, Completion: 64, RX: 64, TX: 64}

// churn opens and closes all devices from a goroutine each, as often as it can in a while.
func (c *podClient) churn() error {
	errs := make([]error, len(c.client.Devices()))
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			for end := time.Now().Add(time.Second); time.Now().Before(end) && errs[i] == nil; {
				q, err := c.client.Open(i, c.umem, client.OpenConfig{Rings: smallRings})
				if err != nil {
					errs[i] = err
					return
				}
				errs[i] = q.Close()
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (c *podClient) report() report {
	r := report{Goroutines: runtime.NumGoroutine(), FDs: testutil.OpenFDs()}
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch fields := strings.Fields(value); name {
		case "Uid":
			r.UID = strings.Join(fields, " ")
		case "CapEff", "CapPrm", "CapAmb":
			r.Capabilities += strings.Trim(fields[0], "0")
		}
	}
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit) == nil {
		r.MemoryLock = limit.Cur
	}
	if c.client == nil {
		return r
	}
	r.Received = make([]uint64, len(c.client.Devices()))
	for i, q := range c.queues {
		r.Received[i] = q.received.Load()
	}
	r.Resumes = c.client.Resumes()
	select {
	case <-c.client.Done():
		r.Done = true
		if err := c.client.Err(); err != nil {
			r.DoneErr = err.Error()
			var e *client.Error
			if errors.As(err, &e) {
				r.DoneCode = e.Code
			}
		}
	default:
	}
	return r
}

// podQueue sends every packet back until it is ended.
type podQueue struct {
	*client.Queue
	frames         *xsk.Frames
	received       atomic.Uint64
	stop, finished chan struct{}
}

func echo(q *client.Queue, frames *xsk.Frames) *podQueue {
	p := &podQueue{Queue: q, frames: frames, stop: make(chan struct{}), finished: make(chan struct{})}
	p.refill() // before anyone is told that packets may come
	go p.run()
	return p
}

func (p *podQueue) run() {
	defer close(p.finished)
	addrs, descs := make([]uint64, 32), make([]xsk.Desc, 32)
	for {
		select {
		case <-p.stop:
			return
		default:
		}
		p.frames.Put(addrs[:p.Rings.Completion.Complete(addrs)])
		p.refill()
		n := p.Rings.RX.Receive(descs)
		p.received.Add(uint64(n))
		sent := p.Rings.TX.Transmit(descs[:n])
		p.frames.PutPackets(descs[sent:n])
		_ = p.Socket.WakeTX()
		if n == 0 {
			_ = p.Socket.WakeRX()
			time.Sleep(100 * time.Microsecond)
		}
	}
}

// refill keeps the fill ring at least half full, as long as there are frames.
func (p *podQueue) refill() {
	for addrs := make([]uint64, 32); p.Rings.Fill.Pending() < p.Rings.Fill.Size()/2; {
		n := p.frames.Get(addrs)
		if n == 0 {
			return
		}
		took := p.Rings.Fill.Refill(addrs[:n])
		p.frames.Put(addrs[took:n])
	}
}

func (p *podQueue) end() error {
	close(p.stop)
	<-p.finished
	return p.Close()
}
