// Package testutil is the rig of the tests that need the kernel: a namespace for each test binary, veth pairs, further
// network namespaces that stand for pods, and a check for leaked file descriptors.
//
// A package whose tests touch the kernel has
//
//	func TestMain(m *testing.M) { os.Exit(testutil.Main(m)) }
//
// and calls [NeedKernel] first in each such test.
package testutil

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const insideEnv = "AFXDP_TEST_INSIDE"

// Main runs the tests of a package in a network and a mount namespace of their own, with a sysfs that shows that
// network namespace, a fresh bpffs at /sys/fs/bpf and an empty /run. The kernel takes all of it down with the process,
// however that ends, so nothing is left behind by a test that was killed. Without root the tests run where they are
// and those that call [NeedKernel] skip. Main returns the exit code, which is 1 when tests left file descriptors open.
func Main(m *testing.M) int {
	if os.Geteuid() != 0 {
		fmt.Println("not run: the tests that need the kernel (not root)")
		return m.Run()
	}
	if slices.Contains(os.Args, "-test.fuzzworker") {
		return m.Run() // talks to its parent, which is inside, through inherited descriptors
	}
	if os.Getenv(insideEnv) == "" {
		return reexec()
	}
	if err := setUpNamespace(); err != nil {
		fmt.Fprintln(os.Stderr, "set up the tests' namespaces:", err)
		return 1
	}
	before := openFDs()
	code := m.Run()
	if leaked := LeakedFDs(before); code == 0 && len(leaked) > 0 {
		fmt.Fprintln(os.Stderr, "file descriptors left open by the tests:", strings.Join(leaked, ", "))
		return 1
	}
	return code
}

// NeedKernel skips the test when the binary does not run as root inside the namespaces that [Main] makes.
func NeedKernel(tb testing.TB) {
	tb.Helper()
	switch {
	case os.Geteuid() != 0:
		tb.Skip("not run: needs root")
	case os.Getenv(insideEnv) == "":
		tb.Fatal("TestMain does not call testutil.Main")
	}
}

func reexec() int {
	// The parent-death signal is tied to the thread that starts the child.
	runtime.LockOSThread()
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), insideEnv+"=1")
	if os.Getenv("GORACE") == "" {
		cmd.Env = append(cmd.Env, "GORACE=atexit_sleep_ms=0") // else the race detector sleeps a second at the end
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGQUIT)
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "start the tests in namespaces of their own:", err)
		return 1
	}
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s)
		}
	}()
	err := cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		fmt.Fprintln(os.Stderr, "wait for the tests:", err)
		return 1
	}
	if code := cmd.ProcessState.ExitCode(); code >= 0 {
		return code
	}
	fmt.Fprintln(os.Stderr, "tests ended by", cmd.ProcessState)
	return 1
}

func setUpNamespace() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	for _, m := range []struct{ fs, dir string }{{"sysfs", "/sys"}, {"bpf", "/sys/fs/bpf"}, {"tmpfs", "/run"}} {
		if err := unix.Mount(m.fs, m.dir, m.fs, 0, ""); err != nil {
			return fmt.Errorf("mount %s at %s: %w", m.fs, m.dir, err)
		}
	}
	// Router solicitations and the like would be counted as test traffic.
	for _, which := range []string{"all", "default"} {
		_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+which+"/disable_ipv6", []byte("1"), 0)
	}
	return SetUp("lo")
}

func openFDs() []string {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return []string{"unreadable: " + err.Error()}
	}
	var fds []string
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name()))
		switch {
		case err != nil: // the directory's own
		case strings.Contains(target, "[eventpoll]"), strings.Contains(target, "[eventfd]"): // the Go runtime's
		case strings.HasPrefix(target, "/proc/") && strings.HasSuffix(target, "/fd"):
		case strings.HasPrefix(target, "/sys/fs/cgroup"), strings.HasPrefix(target, "/proc/self/"): // GOMAXPROCS updates
		default:
			fds = append(fds, e.Name()+" "+target)
		}
	}
	return fds
}

// OpenFDs lists the process's open descriptors, as "number target", without those of the Go runtime.
func OpenFDs() []string { return openFDs() }

// LeakedFDs lists the descriptors that are open now and were not in before. It waits up to two seconds for those that
// are still being closed.
func LeakedFDs(before []string) []string {
	var leaked []string
	for range 40 {
		leaked = slices.DeleteFunc(openFDs(), func(fd string) bool { return slices.Contains(before, fd) })
		if len(leaked) == 0 {
			return nil
		}
		runtime.GC()
		time.Sleep(50 * time.Millisecond)
	}
	return leaked
}
