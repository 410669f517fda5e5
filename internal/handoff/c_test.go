package handoff_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/handoff/handofftest"
	"github.com/afxdp-project/afxdp/internal/testutil"
)

// A client can be written from docs/protocol.md alone, in any language.
func TestClientInC(t *testing.T) {
	testutil.NeedKernel(t)
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("not run: no C compiler")
	}
	// In a directory that any uid can reach.
	dir := "/run/c"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "client")
	if out, err := exec.Command(cc, "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", "-o", program, "testdata/client.c").CombinedOutput(); err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	n := handofftest.New(t)
	far := handofftest.NewFarEnd(t, 3)
	p := n.NewPod("a")
	path := n.Serve("x", 1, 2)
	run := func() (*exec.Cmd, *bufio.Scanner) {
		cmd := exec.Command(program, path)
		cmd.Stderr = t.Output()
		cmd.SysProcAttr = &unix.SysProcAttr{Credential: &syscall.Credential{Uid: 1000650000, Gid: 1000650000}}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Netns.Do(cmd.Start); err != nil {
			t.Fatal(err)
		}
		return cmd, bufio.NewScanner(out)
	}
	cmd, _ := run()
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 2 {
		t.Errorf("without a lease: %v, want exit code 2", err)
	}
	p.Add(handofftest.DefaultSettings, 2)
	cmd, out := run()
	var lines []string
	for out.Scan() {
		lines = append(lines, out.Text())
		if out.Text() == "ready" {
			far.Send(2, append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 0x88, 0xb5}, strings.Repeat("hello, pod ", 5)...))
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, strings.Join(lines, "\n"))
	}
	want := []string{
		"pool fast, hnear queue 2, MTU 1500", "cookie ", "ready",
		fmt.Sprintf("packet 69 bytes at offset 256: %s", strings.Repeat("hello, pod ", 5)), "closed",
	}
	for i, w := range want {
		if i >= len(lines) || !strings.HasPrefix(lines[i], w) {
			t.Errorf("the client printed:\n%s\nwant:\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
			break
		}
	}
	if n.IsOpen(handofftest.Device(2)) {
		t.Error("the device is still open after CLOSE")
	}
}
