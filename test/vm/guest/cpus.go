package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// spins takes an emulated CPU some tenths of a second.
	spins      = 100_000_000
	spinRounds = 3
)

// pin has the calling thread run on one CPU.
func pin(cpu int) error {
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("pin a thread to CPU %d: %w", cpu, err)
	}
	return nil
}

// speedup returns how many times as much as one of them so many CPUs do in busy loops, each at its best.
func speedup(cpus int) (float64, error) {
	var best [2]time.Duration
	for range spinRounds {
		for i, n := range []int{1, cpus} {
			took, err := spinOn(n)
			if err != nil {
				return 0, err
			}
			if best[i] == 0 || took < best[i] {
				best[i] = took
			}
		}
	}
	return float64(cpus) * best[0].Seconds() / best[1].Seconds(), nil
}

// spinOn has a busy loop run on each of so many CPUs, and returns how long that takes.
func spinOn(cpus int) (time.Duration, error) {
	errs := make([]error, cpus)
	var all sync.WaitGroup
	start := time.Now()
	for cpu := range cpus {
		all.Go(func() {
			runtime.LockOSThread() // for ever: the thread ends with this goroutine
			if errs[cpu] = pin(cpu); errs[cpu] != nil {
				return
			}
			for x := spins; x > 0; x-- {
				runtime.KeepAlive(x)
			}
		})
	}
	all.Wait()
	return time.Since(start), errors.Join(errs...)
}

// steer has the interrupt of an rx queue go to a CPU.
func (n *nic) steer(queue, cpu int) error {
	irq, _, _, err := n.vectorLine(queue)
	if err != nil {
		return err
	}
	return os.WriteFile("/proc/irq/"+irq+"/smp_affinity_list", fmt.Append(nil, cpu), 0)
}
