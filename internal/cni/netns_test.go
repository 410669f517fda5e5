package cni

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/testutil"
)

func TestCookieIsThatOfThePodsSockets(t *testing.T) {
	a, b := testutil.NewNetns(t), testutil.NewNetns(t)
	var seen []uint64
	for _, ns := range []*testutil.Netns{a, b, a} {
		got, err := podCookie(ns.Path())
		if err != nil {
			t.Fatal(err)
		}
		var want uint64
		if err := ns.Do(func() (err error) {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer func() { _ = unix.Close(fd) }()
			want, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("got cookie %d, a socket in the namespace has %d", got, want)
		}
		seen = append(seen, got)
	}
	if seen[0] == seen[1] || seen[0] != seen[2] {
		t.Errorf("cookies %v of namespaces a, b, a", seen)
	}
}

func TestAddRefusesHostNetworkPods(t *testing.T) {
	testutil.NeedKernel(t)
	agent, _ := startAgent(t)
	r := newRig(onePod())
	err := r.Add(cmdArgs("/proc/thread-self/ns/net", podArgs, conf("1.1.0", agent.socket, nil)))
	e := wantCode(t, err, types.ErrInvalidNetNS)
	if !strings.Contains(e.Msg, "host-network pods are not supported") {
		t.Errorf("got %q", e.Msg)
	}
	if calls := agent.called(); len(calls) != 0 || r.stdout.Len() != 0 {
		t.Errorf("the agent was asked (%v) or a result printed (%s)", calls, r.stdout.Bytes())
	}
	// One without our devices passes: it is none of our business.
	r = newRig(nil)
	if err := r.Add(cmdArgs("/proc/thread-self/ns/net", podArgs, conf("1.1.0", agent.socket, nil))); err != nil {
		t.Error(err)
	}
}

// badNamespaces are paths where there is no network namespace.
func badNamespaces(t *testing.T) map[string]string {
	dir := tempDir(t)
	file, fifo := filepath.Join(dir, "file"), filepath.Join(dir, "fifo")
	if err := os.WriteFile(file, []byte("corrupt"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	return map[string]string{
		"empty":           "",
		"vanished":        filepath.Join(dir, "gone"),
		"corrupt":         file,
		"FIFO":            fifo,
		"directory":       dir,
		"another kind":    "/proc/self/ns/mnt",
		"process is gone": "/proc/4194305/ns/net", // above the highest possible pid
	}
}

func TestAddRefusesWhatIsNoNetworkNamespace(t *testing.T) {
	testutil.NeedKernel(t)
	agent, _ := startAgent(t)
	for name, path := range badNamespaces(t) {
		t.Run(name, func(t *testing.T) {
			r := newRig(onePod())
			err := r.Add(cmdArgs(path, podArgs, conf("1.1.0", agent.socket, nil)))
			if e := wantCode(t, err, types.ErrInvalidNetNS); !strings.Contains(e.Msg, path) {
				t.Errorf("got %q, want the path in it", e.Msg)
			}
			if calls := agent.called(); len(calls) != 0 {
				t.Errorf("the agent was asked: %v", calls)
			}
		})
	}
}
