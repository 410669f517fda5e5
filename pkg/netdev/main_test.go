package netdev

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/testutil"
)

func TestMain(m *testing.M) { os.Exit(testutil.Main(m)) }

// open opens the calling thread's network namespace for the length of a test.
func open(tb testing.TB) *Handle {
	tb.Helper()
	testutil.NeedKernel(tb)
	h, err := Open()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = h.Close() })
	return h
}

// veth makes the pair nvnear and nvfar and returns the near end.
func veth(tb testing.TB, h *Handle, queues int) Link {
	tb.Helper()
	testutil.Veth(tb, testutil.VethPair{Near: "nvnear", Far: "nvfar", Queues: queues})
	return byName(tb, h, "nvnear")
}

func byName(tb testing.TB, h *Handle, name string) Link {
	tb.Helper()
	l, err := h.LinkByName(name)
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

// ip runs ip(8) in the calling thread's network namespace.
func ip(tb testing.TB, args ...string) {
	tb.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		tb.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// inNetns runs f with a handle of a new network namespace, in that namespace and on the test's own goroutine, which a
// failure may end.
func inNetns(t *testing.T, f func(h *Handle)) {
	t.Helper()
	ns := testutil.NewNetns(t)
	home, err := os.Open("/proc/thread-self/ns/net")
	must(t, err)
	defer func() { _ = home.Close() }()
	runtime.LockOSThread()
	must(t, unix.Setns(ns.FD(), unix.CLONE_NEWNET))
	defer func() {
		if unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
	}()
	h, err := Open()
	must(t, err)
	defer func() { _ = h.Close() }()
	f(h)
}

// attachXDP runs a program that passes everything on a device until the test ends, or the caller closes the link.
func attachXDP(tb testing.TB, index int, flags link.XDPAttachFlags) (link.Link, uint32) {
	tb.Helper()
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type:         ebpf.XDP,
		License:      "Apache-2.0",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2 /* XDP_PASS */), asm.Return()},
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = prog.Close() })
	info, err := prog.Info()
	if err != nil {
		tb.Fatal(err)
	}
	id, _ := info.ID()
	l, err := link.AttachXDP(link.XDPOptions{Program: prog, Interface: index, Flags: flags})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = l.Close() })
	return l, uint32(id)
}

// eventually waits for what the kernel does in its own time, as operational states.
func eventually(tb testing.TB, what string, f func() bool) {
	tb.Helper()
	for deadline := time.Now().Add(10 * time.Second); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			tb.Fatalf("not within 10 s: %s", what)
		}
	}
}
