package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/afxdp-project/afxdp/pkg/busypoll"
	"github.com/afxdp-project/afxdp/test/vm/report"
)

// adjustments is how often the rate of a flood is set anew before it is measured.
const adjustments = 2

// floodPatience is how long the first packet of a flood may take.
const floodPatience = 3 * time.Second

// measureFlood counts for a while what comes in, what it takes, and what is lost.
func (t *tester) measureFlood(n *nic, q *benchQueue, loop *busypoll.Loop, run *report.BenchRun, adjust bool) error {
	for deadline := time.Now().Add(floodPatience); q.received == 0; {
		if _, err := loop.Round(); err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return errors.New("no packet came")
		}
	}
	for range adjustments {
		start, first := time.Now(), q.offered
		if err := spin(loop, floodWarmUp); err != nil {
			return err
		}
		pps := float64(q.offered-first) / time.Since(start).Seconds()
		if !adjust || pps == 0 {
			continue
		}
		t.tell(report.Message{Flood: &report.Flood{Scale: min(max(t.wantedPPS/pps, 0.2), 5)}})
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
	run.Received, run.Interrupts = count("received"), count("interrupts")
	run.Offered = count("offered")
	run.RXCalls, run.Sleeps = count("rxCalls"), count("sleeps")
	run.RingFull, run.Dropped, run.FillEmpty = count("ringFull"), count("dropped"), count("fillEmpty")
	run.DeviceDrop, run.Polled, run.Squeezed = count("deviceDropped"), count("polled"), count("squeezed")
	var ticks float64
	for i := range after.ticks {
		ticks += float64(after.ticks[i] - before.ticks[i])
	}
	tick := func(i int) float64 { return float64(after.ticks[i]-before.ticks[i]) / max(ticks, 1) }
	ran := func(name string) float64 { return float64(count(name)) / float64(wall.Nanoseconds()) }
	// /proc/stat: user, nice, system, idle, iowait, irq, softirq.
	run.CPU = report.BenchCPU{
		User: tick(0) + tick(1), System: tick(2), Idle: tick(3) + tick(4), IRQ: tick(5), SoftIRQ: tick(6),
		Application: ran("application"), Ksoftirqd: ran("ksoftirqd"), NAPIThread: ran("napiThread"),
	}
	return nil
}

// account is what all counters showed at a moment.
type account struct {
	at     time.Time
	counts map[string]uint64
	ticks  [7]uint64
}

func (t *tester) account(n *nic, q *benchQueue) (a account, err error) {
	s, err := q.Socket.Statistics()
	if err != nil {
		return a, err
	}
	c := q.Counters()
	a.counts = map[string]uint64{
		"received": q.received, "offered": q.offered, "rxCalls": c.RXCalls, "sleeps": c.Sleeps,
		"ringFull": s.RXRingFull, "dropped": s.RXDropped, "fillEmpty": s.FillRingEmpty,
	}
	if _, a.counts["interrupts"], err = n.vector(testQueue); err != nil {
		return a, err
	}
	dropped, err := os.ReadFile("/sys/class/net/" + n.device + "/statistics/rx_dropped")
	if err != nil {
		return a, err
	}
	if a.counts["deviceDropped"], err = strconv.ParseUint(strings.TrimSpace(string(dropped)), 10, 64); err != nil {
		return a, err
	}
	if a.counts["polled"], a.counts["squeezed"], err = softnet(); err != nil {
		return a, err
	}
	for name, task := range map[string]string{
		"application": "thread-self", "ksoftirqd": ksoftirqd(), "napiThread": strconv.Itoa(q.thread),
	} {
		if task == "" || task == "0" {
			continue
		}
		if a.counts[name], err = ranFor("/proc/" + task + "/schedstat"); err != nil {
			return a, err
		}
	}
	if a.ticks, err = cpuTicks(); err != nil {
		return a, err
	}
	a.at = time.Now()
	return a, nil
}

// ranFor returns how many nanoseconds a thread has run.
func ranFor(file string) (uint64, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(text), " ")
	return strconv.ParseUint(first, 10, 64)
}

// ksoftirqd returns its id, "" when there is none.
func ksoftirqd() string {
	names, _ := filepath.Glob("/proc/[0-9]*/comm")
	for _, file := range names {
		if name, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(name)) == "ksoftirqd/0" {
			return filepath.Base(filepath.Dir(file))
		}
	}
	return ""
}

// softnet returns the packets that softirqs processed, and how often they ended with work left.
func softnet() (processed, squeezed uint64, err error) {
	text, err := os.ReadFile("/proc/net/softnet_stat")
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 3 {
			return 0, 0, fmt.Errorf("read softnet_stat: %q", line)
		}
		p, err1 := strconv.ParseUint(f[0], 16, 64)
		s, err2 := strconv.ParseUint(f[2], 16, 64)
		if err := errors.Join(err1, err2); err != nil {
			return 0, 0, err
		}
		processed, squeezed = processed+p, squeezed+s
	}
	return processed, squeezed, nil
}

// cpuTicks returns where the timer tick found the CPU: /proc/stat.
func cpuTicks() (ticks [7]uint64, err error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return ticks, err
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 1+len(ticks) || f[0] != "cpu0" {
			continue
		}
		for i := range ticks {
			if ticks[i], err = strconv.ParseUint(f[1+i], 10, 64); err != nil {
				return ticks, err
			}
		}
		return ticks, nil
	}
	return ticks, errors.New("/proc/stat has no CPU 0")
}
