package testutil

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

var netlinkNative = binary.NativeEndian

// Netns is a network namespace that stands for a pod's. It has no name, so it is gone with its last descriptor.
type Netns struct{ file *os.File }

// NewNetns makes a network namespace that lives as long as the test.
func NewNetns(tb testing.TB) *Netns {
	tb.Helper()
	NeedKernel(tb)
	ns, err := OpenNewNetns()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = ns.Close() })
	return ns
}

// OpenNewNetns makes a network namespace with lo up. The caller closes it.
func OpenNewNetns() (*Netns, error) {
	type result struct {
		file *os.File
		err  error
	}
	done := make(chan result)
	go func() {
		// Not unlocked: the thread ends with the goroutine and never serves another one in the wrong namespace.
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- result{err: fmt.Errorf("unshare the network namespace: %w", err)}
			return
		}
		if err := SetUp("lo"); err != nil {
			done <- result{err: err}
			return
		}
		f, err := os.Open("/proc/thread-self/ns/net")
		done <- result{f, err}
	}()
	r := <-done
	if r.err != nil {
		return nil, r.err
	}
	return &Netns{r.file}, nil
}

// FD returns the namespace's descriptor, which stays ns's.
func (ns *Netns) FD() int { return int(ns.file.Fd()) }

// Path returns a path by which this process can open the namespace.
func (ns *Netns) Path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.FD()) }

// Do runs f on a thread inside the namespace. Goroutines that f starts are not inside.
func (ns *Netns) Do(f func() error) error {
	done := make(chan error)
	go func() {
		err := errors.New("the function ended its goroutine")
		defer func() { done <- err }() // also when f calls FailNow
		runtime.LockOSThread()
		if err = unix.Setns(ns.FD(), unix.CLONE_NEWNET); err != nil {
			err = fmt.Errorf("enter the network namespace: %w", err)
			return
		}
		err = f()
	}()
	return <-done
}

// Close closes the namespace's descriptor.
func (ns *Netns) Close() error { return ns.file.Close() }
