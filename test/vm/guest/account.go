package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/afxdp-project/afxdp/pkg/busypoll"
	"github.com/afxdp-project/afxdp/test/vm/report"
)

const (
	// floodPatience is how long the first packet of a flood may take. An idle guest's clock runs ahead of the host's.
	floodPatience = time.Minute
	// accountTime is how long it may take to read all counters, so that what is counted meanwhile is little. Where the
	// kernel takes longer they are read again, so often.
	accountTime  = 500 * time.Microsecond
	accountTries = 100
)

// measureFlood counts for a while what comes in, what it takes, and what is lost.
func (t *tester) measureFlood(n *nic, q *benchQueue, loop *busypoll.Loop, run *report.BenchRun) error {
	for deadline := time.Now().Add(floodPatience); q.received == 0; {
		if _, err := loop.Round(); err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return errors.New("no packet came")
		}
	}
	if err := spin(loop, floodWarmUp); err != nil {
		return err
	}
	before, err := t.account(n, q)
	if err != nil {
		return err
	}
	if err := spin(loop, benchTime); err != nil {
		return err
	}
	after, err := t.account(n, q)
	if err != nil {
		return err
	}
	wall := after.at.Sub(before.at)
	run.Seconds = wall.Seconds()
	count := func(name string) uint64 { return after.counts[name] - before.counts[name] }
	share := func(ns uint64) float64 { return float64(ns) / float64(wall.Nanoseconds()) }
	run.Offered, run.DriverRX, run.Received = count("offered"), count("driverRX"), count("received")
	run.Interrupts, run.Slices = count("interrupts"), count("slices")
	run.Polls, run.ShortPolls = count("polls"), count("shortPolls")
	run.RXCalls, run.Sleeps = count("rxCalls"), count("sleeps")
	run.RingFull, run.Dropped, run.FillEmpty = count("ringFull"), count("dropped"), count("fillEmpty")
	run.DeviceDrop = count("deviceDropped")
	run.CPU = report.BenchCPU{
		SoftIRQ: share(count("softirq")), Application: share(count("application") - count("softirqOnApplication")),
		NAPIThread: share(count("napiThread")),
	}
	return nil
}

// account is what all counters showed at a moment.
type account struct {
	at     time.Time
	counts map[string]uint64
}

// account reads all counters within a moment, if it can.
func (t *tester) account(n *nic, q *benchQueue) (a account, err error) {
	for range accountTries {
		if a, err = t.accountNow(n, q); err != nil || time.Since(a.at) < accountTime {
			break
		}
	}
	if err != nil {
		return a, err
	}
	_, a.counts["interrupts"], err = n.vector(testQueue) // takes longer to read, and is compared with nothing
	return a, err
}

func (t *tester) accountNow(n *nic, q *benchQueue) (a account, err error) {
	a = account{at: time.Now(), counts: make(map[string]uint64)}
	p, err := t.polls.read()
	if err != nil {
		return a, err
	}
	s, err := q.Socket.Statistics()
	if err != nil {
		return a, err
	}
	for name, task := range map[string]string{"application": "thread-self", "napiThread": strconv.Itoa(q.thread)} {
		if task == "0" {
			continue
		}
		ran, slices, err := ranFor("/proc/" + task + "/schedstat")
		if err != nil {
			return a, err
		}
		a.counts[name] = ran
		if name == "application" {
			a.counts["slices"] = slices
		}
	}
	for name, file := range map[string]string{"driverRX": "rx_packets", "deviceDropped": "rx_dropped"} {
		text, err := os.ReadFile("/sys/class/net/" + n.device + "/statistics/" + file)
		if err != nil {
			return a, err
		}
		if a.counts[name], err = strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64); err != nil {
			return a, err
		}
	}
	c := q.Counters()
	for name, v := range map[string]uint64{
		"received": q.received, "offered": q.offered, "rxCalls": c.RXCalls, "sleeps": c.Sleeps,
		"ringFull": s.RXRingFull, "dropped": s.RXDropped, "fillEmpty": s.FillRingEmpty,
		"polls": p.Polls, "shortPolls": p.Short, "softirq": p.SoftIRQ, "softirqOnApplication": p.OnApplication,
	} {
		a.counts[name] = v
	}
	return a, nil
}

// ranFor returns how many nanoseconds a thread has run, and how often it was given the CPU.
func ranFor(file string) (ran, slices uint64, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, 0, err
	}
	f := strings.Fields(string(text)) // time run, time waited, times run
	if len(f) < 3 {
		return 0, 0, fmt.Errorf("read %s: %q", file, text)
	}
	ran, err1 := strconv.ParseUint(f[0], 10, 64)
	slices, err2 := strconv.ParseUint(f[2], 10, 64)
	return ran, slices, errors.Join(err1, err2)
}
