package main

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/lease"
	"github.com/afxdp-project/afxdp/pkg/busypoll"
	"github.com/afxdp-project/afxdp/pkg/netdev"
	"github.com/afxdp-project/afxdp/pkg/xsk"
	"github.com/afxdp-project/afxdp/test/vm/report"
)

// mode is a way to run.
type mode struct {
	name     string
	every    bool // all queues are leased, not only testQueue
	budget   int
	noKick   bool
	threaded bool
	cpus     netdev.CPUs // of the thread; empty: any
}

var modes = []mode{
	{name: report.ModeInterrupts, every: true},
	{name: report.ModeBusyPoll, budget: busypoll.DefaultBudget},
	{name: report.ModeNoKick, budget: busypoll.DefaultBudget, noKick: true},
	{name: report.ModeThreaded, threaded: true},
}

const (
	ok = "ok"
	// testQueue is the queue that is looked at closely; not the first, which is often a special case.
	testQueue = 1
	// firstTime is when a queue without a packet is given up. igb's watchdog looks at its rings every two seconds.
	firstTime = 3 * time.Second
	// windows is how many counts are made at most.
	windows = 3
	// warmUp is for the socket to see packets, from which some kernels take its NAPI.
	warmUp      = 400 * time.Millisecond
	measureTime = 1500 * time.Millisecond
	// The deferral that the pool asks for. The timeout is far longer than the default of 200 µs, which is less than what
	// an emulated CPU takes for a round of the loop, or for being away.
	deferHardIRQs   = 2
	groFlushTimeout = 20 * time.Millisecond
)

// probe finds out what binds a NIC takes while our program is on it.
func (t *tester) probe(n *nic, row *report.Row) (err error) {
	release, err := t.activate(n, mode{}, []int{testQueue})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	xdp, err := t.xdpMode(n)
	if err != nil {
		return err
	}
	row.NativeXDP = xdp == netdev.XDPNative
	for _, b := range []struct {
		mode xsk.ZeroCopy
		name *string
		text *string
	}{{xsk.ZeroCopyRequire, &row.ZeroCopyBind, &row.ZeroCopyText}, {xsk.ZeroCopyOff, &row.CopyBind, new(string)}} {
		if err := t.settle(n); err != nil {
			return err
		}
		*b.name = ok
		err := trialBind(xsk.BindConfig{Ifindex: n.index, Queue: testQueue, Mode: b.mode, NeedWakeup: true})
		if err == nil {
			continue
		}
		*b.name, *b.text = err.Error(), err.Error()
		var errno unix.Errno
		switch {
		case errors.Is(err, unix.EOPNOTSUPP):
			*b.name = "EOPNOTSUPP" // which has two names
		case errors.As(err, &errno):
			*b.name = unix.ErrnoName(errno)
		}
	}
	return nil
}

// activate has queues leased, as the CNI plugin's ADD does. release ends the leases and waits until nothing holds the
// queues.
func (t *tester) activate(n *nic, m mode, queues []int) (release func() error, err error) {
	link, err := t.nics.LinkByIndex(n.index)
	if err != nil {
		return nil, err
	}
	settings := lease.Settings{
		Pool: "test", ZeroCopy: lease.ZeroCopyAuto, NeedWakeup: true, CountUnclaimed: true,
		BusyPollBudget: m.budget, BusyPollTimeout: busypoll.DefaultTimeout,
		DeferHardIRQs: deferHardIRQs, GROFlushTimeout: groFlushTimeout, Threaded: m.threaded, ThreadCPUs: m.cpus,
		MaxUMEM: 64 << 20, MaxFrames: 1 << 14, MaxRingSize: 4096,
	}
	if n.Copy {
		settings.ZeroCopy = lease.ZeroCopyNever
	}
	attachment := lease.Attachment{Network: "test", ContainerID: fmt.Sprintf("sandbox-%d", t.tag), Ifname: "eth0"}
	r := lease.Request{
		Pod: lease.Pod{UID: "pod", Namespace: "default", Name: "pod"}, NetnsCookie: t.cookie, Attachment: attachment,
	}
	for _, q := range queues {
		r.Devices = append(r.Devices, lease.DeviceRequest{
			Device: lease.Device{ID: deviceID(n, q), Link: link, Queue: q}, Settings: settings,
		})
	}
	if err := t.leases.Activate(r); err != nil {
		return nil, err
	}
	return func() error {
		if err := t.leases.Detach(attachment); err != nil {
			return err
		}
		for deadline := time.Now().Add(3 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			pending, err := t.leases.Maintain()
			if err != nil || !pending {
				return err
			}
			if time.Now().After(deadline) {
				return errors.New("the queues are still held 3 s after the end of the leases")
			}
		}
	}, t.settle(n)
}

func deviceID(n *nic, queue int) string { return fmt.Sprintf("%s-q%d", n.device, queue) }

// row fills in a row.
func (t *tester) row(n *nic, m mode, row *report.Row) (err error) {
	row.LeasedQueues = []int{testQueue}
	if m.every {
		row.LeasedQueues = nil
		for q := range t.task.Queues {
			row.LeasedQueues = append(row.LeasedQueues, q)
		}
	}
	s := &row.Settings
	if s.Before, err = t.snapshot(n); err != nil {
		return err
	}
	release, err := t.activate(n, m, row.LeasedQueues)
	if err != nil {
		return err
	}
	leasedErr := t.leased(n, m, row)
	if err := errors.Join(release(), t.settle(n)); err != nil {
		return errors.Join(leasedErr, err)
	}
	xdp, err := t.xdpMode(n)
	if err != nil {
		return err
	}
	if s.After, err = t.snapshot(n); err != nil {
		return err
	}
	s.Restored = xdp == netdev.XDPNone && same(s.Before, s.After)
	if leasedErr != nil {
		return leasedErr
	}
	var wants report.Values
	if m.budget > 0 {
		count, timeout := uint32(deferHardIRQs), groFlushTimeout
		wants = report.Values{DeferHardIRQs: &count, GROFlushTimeout: &timeout}
	}
	if m.threaded {
		wants.Threaded = new(uint32(netdev.ThreadedOn))
	}
	compare(s, row.LeasedQueues, wants)
	return nil
}

// leased does what is done while the leases are active.
func (t *tester) leased(n *nic, m mode, row *report.Row) (err error) {
	var grants []lease.Grant
	for _, q := range row.LeasedQueues {
		g, err := t.leases.Grant(deviceID(n, q), t.cookie)
		if err != nil {
			return err
		}
		grants = append(grants, g)
	}
	zeroCopy := grants[0].ZeroCopy
	row.Bound = "copy"
	if zeroCopy {
		row.Bound = "zero-copy"
	}
	s, err := t.open(n, grants, zeroCopy, t.tag)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := t.settle(n); err != nil {
		return err
	}
	// As the agent does when it hears of the reset that a zero-copy bind may be.
	if err := t.leases.Retune(); err != nil {
		return err
	}
	if missing := grants[0].Tuning.Missing; missing != "" {
		return t.refusal(n, missing)
	}
	q := s.queues[0]
	if err := t.napis(n, row); err != nil {
		return err
	}
	row.TX.Kick = "socket"
	if m.budget > 0 {
		row.BusyPoll = &report.BusyPoll{}
		err := busypoll.Enable(q.Socket.FD(), busypoll.Options{Budget: m.budget, Timeout: busypoll.DefaultTimeout})
		if err != nil {
			row.BusyPoll.Reason = err.Error()
		}
		row.BusyPoll.Accepted = err == nil
		switch {
		case zeroCopy && row.NAPI.Separate && m.noKick:
			row.TX.Kick = "none"
		case zeroCopy && row.NAPI.Separate:
			row.TX.Kick = "second socket"
			if err := q.addKick(n); err != nil {
				return fmt.Errorf("make the socket that starts transmission: %w", err)
			}
			if err := t.settle(n); err != nil {
				return err
			}
		}
	}
	r, err := newRunner(s)
	if err != nil {
		return err
	}
	if err := t.load(n, m, row, r); err != nil {
		return err
	}
	return r.quietBursts(m, row)
}

// napis tells which NAPIs the leased queue has now.
func (t *tester) napis(n *nic, row *report.Row) error {
	queues, err := t.nics.Queues(n.index)
	if errors.Is(err, netdev.ErrUnsupported) {
		return nil
	}
	if err != nil {
		return err
	}
	row.NAPI.Told = true
	for _, q := range queues {
		if q.Index != testQueue {
			continue
		}
		if q.Type == netdev.RX {
			row.NAPI.RX = q.NAPI
		} else {
			row.NAPI.TX = q.NAPI
		}
	}
	row.NAPI.Linked, row.NAPI.TXLinked = row.NAPI.RX != 0, row.NAPI.TX != 0
	row.NAPI.Separate = row.NAPI.Linked && row.NAPI.RX != row.NAPI.TX
	return nil
}

// refusal says why the leased queue cannot have settings of its own.
func (t *tester) refusal(n *nic, missing string) error {
	var row report.Row
	if err := t.napis(n, &row); err != nil {
		return err
	}
	why := "the kernel does not have it by NAPI"
	switch {
	case !row.NAPI.Told:
		why = "the kernel does not tell which NAPI a queue has"
	case !row.NAPI.Linked:
		why = "the driver links the queue to no NAPI"
	}
	return fmt.Errorf("%s of one queue: %w: %s", missing, netdev.ErrUnsupported, why)
}
