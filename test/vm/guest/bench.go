package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/lease"
	"github.com/afxdp-project/afxdp/pkg/busypoll"
	"github.com/afxdp-project/afxdp/pkg/xsk"
	"github.com/afxdp-project/afxdp/test/vm/report"
	"github.com/afxdp-project/afxdp/test/vm/traffic"
)

const (
	// The fill ring and the NIC's own have frames at all times. What is dropped is dropped at the rx ring.
	benchFrames = 8192
	benchFill   = 4096
	benchTX     = 2048
	benchBatch  = 64
	// floodWarmUp is how long a flood goes on before it is measured.
	floodWarmUp = 20 * time.Millisecond
	benchTime   = 150 * time.Millisecond
	pingTime    = 100 * time.Millisecond
)

// bench measures each case, in turn and again.
func (t *tester) bench(b report.Bench) (err error) {
	runtime.LockOSThread() // its CPU time is the application's
	defer runtime.UnlockOSThread()
	if b.CPUs > 1 {
		speedup, err := speedup(b.CPUs)
		if err != nil {
			return err
		}
		t.tell(report.Message{Speedup: speedup})
		if speedup < b.AtOnce || len(b.Cases) == 0 {
			return nil
		}
	}
	if err := pin(0); err != nil {
		return err
	}
	n, err := t.openNIC(t.task.NICs[0])
	if err != nil {
		return err
	}
	if t.polls, err = countPolls(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.polls.close()) }()
	for round := range b.Runs {
		for _, c := range b.Cases {
			if c.Aside && round%2 != 0 {
				continue
			}
			t.tell(report.Message{Bench: t.benchRun(n, c)})
			if c.Latency {
				t.tell(report.Message{Bench: t.benchLatency(n, c)})
			}
		}
	}
	return nil
}

// benchRun has a case receive under overload.
func (t *tester) benchRun(n *nic, c report.BenchCase) *report.BenchRun {
	run := &report.BenchRun{Case: c.Name, Kernel: t.release, Driver: n.Driver}
	err := t.benchOpen(n, c, run, func(q *benchQueue, loop *busypoll.Loop) error {
		t.tell(report.Message{Flood: true})
		defer t.tell(report.Message{Quiet: true})
		return t.measureFlood(n, q, loop, run)
	})
	if err != nil {
		run.Refusal = err.Error()
	}
	return run
}

// benchLatency has a case send packets back for a while.
func (t *tester) benchLatency(n *nic, c report.BenchCase) *report.BenchRun {
	run := &report.BenchRun{Case: c.Name, Kernel: t.release, Driver: n.Driver, Latency: true}
	err := t.benchOpen(n, c, run, func(q *benchQueue, loop *busypoll.Loop) error {
		q.forward = true
		if err := spin(loop, floodWarmUp); err != nil {
			return err
		}
		t.tell(report.Message{Ping: true})
		defer t.tell(report.Message{Quiet: true})
		return spin(loop, pingTime)
	})
	if err != nil {
		run.Refusal = err.Error()
	}
	return run
}

// spin runs the loop for a while.
func spin(loop *busypoll.Loop, limit time.Duration) error {
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); {
		if _, err := loop.Round(); err != nil {
			return err
		}
	}
	return nil
}

// benchOpen leases the queue, opens a socket on it as a case wants, and has f use it.
func (t *tester) benchOpen(n *nic, c report.BenchCase, run *report.BenchRun,
	f func(*benchQueue, *busypoll.Loop) error) (err error) {
	if err := weigh(c.Weight); err != nil {
		return fmt.Errorf("join a control group: %w", err)
	}
	t.tag++
	release, err := t.benchActivate(n, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release(), t.settle(n)) }()
	q, err := openBench(n, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, q.close()) }()
	g, err := t.leases.Grant(deviceID(n, testQueue), t.cookie)
	if err != nil {
		return err
	}
	cookie, err := q.Socket.Cookie()
	if err != nil {
		return err
	}
	handed, err := q.Socket.Dup()
	if err != nil {
		return err
	}
	record := lease.Socket{Cookie: cookie, Group: cookie, ZeroCopy: true}
	if err := t.leases.Opened(g, handed, record, func(string) {}); err != nil {
		return errors.Join(err, handed.Close())
	}
	if err := t.settle(n); err != nil {
		return err
	}
	if err := t.leases.Retune(); err != nil { // the bind may have been a reset
		return err
	}
	if t.task.Bench.CPUs > 1 {
		if err := n.steer(testQueue, c.IRQCPU); err != nil {
			return err
		}
	}
	config := busypoll.Config{Batch: benchBatch, IdleRounds: math.MaxInt, MaxSleep: 20 * time.Millisecond}
	if c.Sleeps {
		config.IdleRounds = 1
	}
	loop, err := busypoll.NewLoop([]*busypoll.Queue{&q.Queue}, config)
	if err != nil {
		return err
	}
	if err := t.benchMode(n, c, q, loop, run); err != nil {
		return err
	}
	return f(q, loop)
}

// benchActivate has the queue leased and tuned.
func (t *tester) benchActivate(n *nic, c report.BenchCase) (release func() error, err error) {
	link, err := t.nics.LinkByIndex(n.index)
	if err != nil {
		return nil, err
	}
	attachment := lease.Attachment{Network: "bench", ContainerID: fmt.Sprintf("sandbox-%d", t.tag), Ifname: "eth0"}
	err = t.leases.Activate(lease.Request{
		Pod: lease.Pod{UID: "pod", Namespace: "default", Name: "pod"}, NetnsCookie: t.cookie, Attachment: attachment,
		Devices: []lease.DeviceRequest{{
			Device: lease.Device{ID: deviceID(n, testQueue), Link: link, Queue: testQueue},
			Settings: lease.Settings{
				Pool: "bench", ZeroCopy: lease.ZeroCopyRequire, NeedWakeup: true, Threaded: c.Threaded,
				BusyPollBudget: c.Budget, BusyPollTimeout: busypoll.DefaultTimeout, DeferHardIRQs: c.DeferHardIRQs,
				GROFlushTimeout: time.Duration(c.GROFlushTimeoutUs) * time.Microsecond,
				MaxUMEM:         64 << 20, MaxFrames: 1 << 14, MaxRingSize: 4096,
			},
		}},
	})
	if err != nil {
		return nil, err
	}
	return func() error { return t.endLease(attachment) }, t.settle(n)
}

// endLease ends a lease and waits until nothing holds the queue.
func (t *tester) endLease(a lease.Attachment) error {
	if err := t.leases.Detach(a); err != nil {
		return err
	}
	for deadline := time.Now().Add(3 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		pending, err := t.leases.Maintain()
		if err != nil || !pending {
			return err
		}
		if time.Now().After(deadline) {
			return errors.New("the queue is still held 3 s after the end of the lease")
		}
	}
}

// benchMode has the socket work as the case wants, and checks that it does.
func (t *tester) benchMode(n *nic, c report.BenchCase, q *benchQueue, loop *busypoll.Loop, run *report.BenchRun) error {
	if _, err := loop.Round(); err != nil { // the fill ring was empty at the bind
		return err
	}
	poll := busypoll.Options{Budget: busypoll.DefaultBudget, Timeout: busypoll.DefaultTimeout}
	if err := busypoll.Enable(q.Socket.FD(), poll); err != nil {
		return err
	}
	if err := q.Socket.WakeRX(); err != nil {
		return err
	}
	if c.Budget == 0 {
		if err := busypoll.Disable(q.Socket.FD()); err != nil {
			return err
		}
	}
	var row report.Row
	if err := t.napis(n, &row); err != nil {
		return err
	}
	napi, err := t.nics.NAPI(row.NAPI.RX)
	if err != nil {
		return err
	}
	q.thread = napi.PID
	if threaded := napi.PID != 0; threaded != c.Threaded {
		return fmt.Errorf("whether the NAPI has a thread: %v, want %v", threaded, c.Threaded)
	}
	if c.Budget == 0 {
		run.BusyPoll = "off"
		return nil
	}
	if err := busypoll.Enable(q.Socket.FD(), busypoll.Options{Budget: c.Budget, Timeout: busypoll.DefaultTimeout}); err != nil {
		return err
	}
	state, err := busypoll.Read(q.Socket.FD())
	if err != nil {
		return err
	}
	f := busypoll.Facts{ZeroCopy: true, QueueNAPI: &row.NAPI.RX}
	if s := napi.Settings; s.DeferHardIRQs != nil && s.GROFlushTimeout != nil {
		f.Deferral = &busypoll.Deferral{HardIRQs: int(*s.DeferHardIRQs), GROFlushTimeout: *s.GROFlushTimeout}
	}
	status := busypoll.Assess(state, f)
	run.BusyPoll = status.Reason
	if !status.Active {
		return errors.New("busy polling is not active: " + status.Reason)
	}
	q.SetBusyPolling(true)
	if row.NAPI.Separate {
		if err := q.addKick(n); err != nil {
			return fmt.Errorf("make the socket that starts transmission: %w", err)
		}
	}
	return nil
}

// weigh puts the process into a control group with a weight, as the kubelet does with pods, or into the root for 0.
func weigh(weight int) error {
	const root, group = "/sys/fs/cgroup", "/sys/fs/cgroup/pods"
	if _, err := os.Stat(group); err != nil {
		if err := unix.Mount("cgroup2", root, "cgroup2", 0, ""); err != nil {
			return fmt.Errorf("mount cgroup2: %w", err)
		}
		if err := os.Mkdir(group, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(root+"/cgroup.subtree_control", []byte("+cpu"), 0); err != nil {
			return err
		}
	}
	if weight == 0 {
		return os.WriteFile(root+"/cgroup.procs", []byte("0"), 0)
	}
	if err := os.WriteFile(group+"/cpu.weight", []byte(strconv.Itoa(weight)), 0); err != nil {
		return err
	}
	return os.WriteFile(group+"/cgroup.procs", []byte("0"), 0)
}

// benchQueue is the queue under test. What the application does with a packet is the same in all cases.
type benchQueue struct {
	busypoll.Queue
	thread   int  // of the NAPI
	forward  bool // send packets back
	received uint64
	offered  uint64 // the number of the last frame
	sum      uint64 // so that the checksums are not optimized away
}

func openBench(n *nic, c report.BenchCase) (_ *benchQueue, err error) {
	q := &benchQueue{}
	q.Name = deviceID(n, testQueue)
	q.Handle = q.take
	defer func() {
		if err != nil {
			err = errors.Join(err, q.close())
		}
	}()
	frames := uint32(benchFrames)
	if c.FewFrames {
		frames = uint32(c.Ring)
	}
	if q.UMEM, err = xsk.NewUMEM(xsk.UMEMConfig{Frames: frames, FrameSize: xsk.MinFrameSize}); err != nil {
		return nil, err
	}
	q.Frames = xsk.NewFrames(q.UMEM.Config, 0, frames)
	if q.Socket, err = xsk.NewSocket(); err != nil {
		return nil, err
	}
	if err := q.Socket.RegisterUMEM(q.UMEM.Bytes(), q.UMEM.Config); err != nil {
		return nil, err
	}
	sizes := xsk.RingSizes{Fill: benchFill, Completion: benchTX, RX: uint32(c.Ring), TX: benchTX}
	if err := q.Socket.SetRings(sizes); err != nil {
		return nil, err
	}
	if q.Rings, err = q.Socket.Map(sizes); err != nil {
		return nil, err
	}
	return q, bindPatiently(q.Socket, xsk.BindConfig{Ifindex: n.index, Queue: testQueue, Mode: xsk.ZeroCopyRequire, NeedWakeup: true})
}

// addKick makes the second socket, which starts transmission.
func (q *benchQueue) addKick(n *nic) error {
	kick, err := xsk.NewSocket()
	if err != nil {
		return err
	}
	q.KickTX = kick
	if err := kick.SetRings(xsk.RingSizes{TX: 1}); err != nil {
		return err
	}
	return bindPatiently(kick, xsk.BindConfig{Ifindex: n.index, Queue: testQueue, Shared: q.Socket})
}

func (q *benchQueue) close() error {
	var errs []error
	if q.Rings != nil {
		errs = append(errs, q.Rings.Close())
	}
	for _, s := range []*xsk.Socket{q.KickTX, q.Socket} {
		if s != nil {
			errs = append(errs, s.Close())
		}
	}
	if q.UMEM != nil {
		errs = append(errs, q.UMEM.Close())
	}
	return errors.Join(errs...)
}

// take does what a small forwarder does with each packet: it reads all of it, for a checksum, and swaps the addresses.
func (q *benchQueue) take(_ *busypoll.Queue, packets []xsk.Desc) int {
	for _, d := range packets {
		p := q.UMEM.Packet(d)
		if len(p) < 14 {
			continue
		}
		q.sum += checksum(p)
		var target [6]byte
		copy(target[:], p[:6])
		copy(p[:6], p[6:12])
		copy(p[6:12], target[:])
	}
	q.received += uint64(len(packets))
	q.offered = traffic.Number(q.UMEM.Packet(packets[len(packets)-1]))
	if q.forward {
		return len(packets)
	}
	return 0
}

// checksum adds up a frame, as for an Internet checksum, eight bytes at a time.
func checksum(p []byte) (sum uint64) {
	for len(p) >= 8 {
		v := binary.NativeEndian.Uint64(p)
		sum += v>>32 + v&0xffffffff
		p = p[8:]
	}
	return sum
}
