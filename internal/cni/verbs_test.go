package cni

import (
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/afxdp-project/afxdp/internal/testutil"
)

// Field case 36: success, everything released.
func TestDelSucceedsOnWhatIsGone(t *testing.T) {
	netns := testutil.NewNetns(t)
	paths := badNamespaces(t)
	paths["there"] = netns.Path()
	for name, path := range paths {
		t.Run(name, func(t *testing.T) {
			agent, _ := startAgent(t)
			r := newRig(onePod())
			del := func(args string, more map[string]any) {
				t.Helper()
				if err := r.Del(cmdArgs(path, args, conf("1.1.0", agent.socket, more))); err != nil {
					t.Fatal(err)
				}
			}
			del(podArgs, nil) // without ADD
			if err := r.Add(cmdArgs(netns.Path(), podArgs, conf("1.1.0", agent.socket, nil))); err != nil {
				t.Fatal(err)
			}
			del(podArgs, map[string]any{"prevResult": "corrupt"})
			if n := agent.count(); n != 0 {
				t.Errorf("%d attachments left", n)
			}
			del(podArgs, nil) // twice
			del("", nil)      // without CNI_ARGS
		})
	}
}

func TestDelNeedsNeitherKubeletNorPod(t *testing.T) {
	agent, _ := startAgent(t)
	r := newRig(nil)
	r.Devices = nil // kubelet's real place, where there is none
	if err := r.Del(cmdArgs("", "K8S_POD_UID=only", conf("1.1.0", agent.socket, nil))); err != nil {
		t.Fatal(err)
	}
	if calls := agent.called(); !slices.Equal(calls, []string{"Detach"}) {
		t.Errorf("calls %v, want Detach", calls)
	}
}

func TestDelTakesOutOnlyItsOwnAttachment(t *testing.T) {
	netns := testutil.NewNetns(t)
	agent, _ := startAgent(t)
	r := newRig(onePod())
	args := cmdArgs(netns.Path(), podArgs, conf("1.1.0", agent.socket, nil))
	for _, ifname := range []string{"eth0", "net1"} {
		args.IfName = ifname
		if err := r.Add(args); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Del(args); err != nil {
		t.Fatal(err)
	}
	if agent.get("net", "c1", "eth0") == nil || agent.get("net", "c1", "net1") != nil {
		t.Error("want the attachment of eth0 to stay and that of net1 to go")
	}
}

// Field case 40: success, undone by the agent when it is back.
func TestDelSucceedsWithoutTheAgent(t *testing.T) {
	t.Run("no socket", func(t *testing.T) {
		r := newRig(onePod())
		if err := r.Del(cmdArgs("", podArgs, conf("1.1.0", filepath.Join(tempDir(t), "none.sock"), nil))); err != nil {
			t.Fatal(err)
		}
		if r.stderr.Len() != 0 {
			t.Errorf("a node without the agent is told about it with each pod: %s", r.stderr.Bytes())
		}
	})
	t.Run("nobody listens", func(t *testing.T) {
		socket := filepath.Join(tempDir(t), "agent.sock")
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		_ = l.Close()
		delIsLeftToTheAgent(t, socket)
	})
	t.Run("not a socket", func(t *testing.T) {
		path := filepath.Join(tempDir(t), "agent.sock")
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		delIsLeftToTheAgent(t, path)
	})
	t.Run("it hangs", func(t *testing.T) {
		socket := filepath.Join(tempDir(t), "agent.sock")
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		delIsLeftToTheAgent(t, socket)
	})
}

func delIsLeftToTheAgent(t *testing.T, socket string) {
	t.Helper()
	r := newRig(onePod())
	start := time.Now()
	err := r.Del(cmdArgs("", podArgs, conf("1.1.0", socket, map[string]any{"timeout": "1s"})))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(r.stderr.String(), "left to the agent") || r.stdout.Len() != 0 {
		t.Errorf("stderr %q, stdout %q", r.stderr.Bytes(), r.stdout.Bytes())
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("took %s with a timeout of 1s", took)
	}
}

func TestDelReportsThatTheAgentCouldNot(t *testing.T) {
	agent, _ := startAgent(t)
	agent.failWith(status.Error(codes.Internal, "journal: no space left on device"))
	r := newRig(nil)
	err := r.Del(cmdArgs("", podArgs, conf("1.1.0", agent.socket, nil)))
	if e := wantCode(t, err, types.ErrInternal); !strings.Contains(e.Msg, "no space left") {
		t.Errorf("got %q", e.Msg)
	}
	agent.failWith(status.Error(codes.NotFound, "no such attachment"))
	if err := r.Del(cmdArgs("", podArgs, conf("1.1.0", agent.socket, nil))); err != nil {
		t.Errorf("what the agent does not know is gone: %v", err)
	}
}

// Field case 41: all succeed, state empty afterwards.
func TestAddAndDelOfManyPodsAtOnce(t *testing.T) {
	agent, _ := startAgent(t)
	netns := make([]*testutil.Netns, 4)
	for i := range netns {
		netns[i] = testutil.NewNetns(t)
	}
	const pods = 100
	var all sync.WaitGroup
	for i := range pods {
		all.Go(func() {
			r := newRig(onePod())
			r.ShortWait = time.Minute // nothing is left to an agent that is only slow here
			args := cmdArgs(netns[i%len(netns)].Path(), podArgs, conf("1.1.0", agent.socket, map[string]any{"timeout": "2m"}))
			args.ContainerID = "c" + string(rune('0'+i/10)) + string(rune('0'+i%10))
			for range 2 {
				if err := r.Add(args); err != nil {
					t.Errorf("pod %d: ADD: %v", i, err)
				}
				if agent.get("net", args.ContainerID, "eth0") == nil {
					t.Errorf("pod %d: not attached after ADD", i)
				}
				if err := r.Del(args); err != nil {
					t.Errorf("pod %d: DEL: %v", i, err)
				}
				if r.stderr.Len() != 0 {
					t.Errorf("pod %d: %s", i, r.stderr.Bytes())
				}
			}
		})
	}
	all.Wait()
	if n := agent.count(); n != 0 {
		t.Errorf("%d attachments left", n)
	}
	if calls := agent.called(); len(calls) != 4*pods {
		t.Errorf("%d calls, want %d", len(calls), 4*pods)
	}
}

func TestCheckComparesWithTheAgentAndTheResult(t *testing.T) {
	netns := testutil.NewNetns(t)
	agent, stop := startAgent(t)
	r := newRig(onePod())
	stdin := conf("1.1.0", agent.socket, map[string]any{"prevResult": prevResult("1.1.0")})
	if err := r.Add(cmdArgs(netns.Path(), podArgs, stdin)); err != nil {
		t.Fatal(err)
	}
	check := func(result any) error {
		return r.Check(cmdArgs(netns.Path(), podArgs, conf("1.1.0", agent.socket, map[string]any{"prevResult": result})))
	}
	added := r.printed(t)
	if err := check(added); err != nil {
		t.Errorf("after ADD: %v", err)
	}
	e := wantCode(t, check(prevResult("1.1.0")), codeNotInForce)
	if !strings.Contains(e.Msg, "does not list eth1") {
		t.Errorf("got %q", e.Msg)
	}
	wantCode(t, check(nil), types.ErrInvalidNetworkConfig)

	agent.failWith(status.Error(codes.FailedPrecondition, "eth1: the XDP program is not ours"))
	if e := wantCode(t, check(added), codeNotInForce); !strings.Contains(e.Msg, "not ours") {
		t.Errorf("got %q", e.Msg)
	}
	agent.failWith(status.Error(codes.NotFound, "no lease"))
	wantCode(t, check(added), codeNotInForce)
	agent.failWith(status.Error(codes.Internal, "netlink"))
	wantCode(t, check(added), types.ErrInternal)
	stop()
	wantCode(t, check(added), types.ErrTryAgainLater)
	if r.stdout.Len() != 0 {
		t.Errorf("CHECK printed %s", r.stdout.Bytes())
	}
}

func TestCheckPassesPodsWithoutDevices(t *testing.T) {
	r := newRig(nil)
	if err := r.Check(cmdArgs("/nowhere", podArgs, conf("1.1.0", "/nowhere/agent.sock", nil))); err != nil {
		t.Error(err)
	}
}

// Field case 42: what is not in the list is released.
func TestGCReleasesWhatIsNotListed(t *testing.T) {
	netns := testutil.NewNetns(t)
	agent, _ := startAgent(t)
	r := newRig(onePod())
	args := cmdArgs(netns.Path(), podArgs, conf("1.1.0", agent.socket, nil))
	for _, c := range []string{"old", "kept"} {
		args.ContainerID = c
		if err := r.Add(args); err != nil {
			t.Fatal(err)
		}
	}
	other := conf("1.1.0", agent.socket, map[string]any{"name": "other"})
	if err := r.Add(cmdArgs(netns.Path(), podArgs, other)); err != nil {
		t.Fatal(err)
	}
	r.stdout.Reset()
	gc := func(valid any) error {
		return r.GC(cmdArgs("", "", conf("1.1.0", agent.socket, map[string]any{"cni.dev/valid-attachments": valid})))
	}
	if err := gc([]any{map[string]any{"containerID": "kept", "ifname": "eth0"}}); err != nil {
		t.Fatal(err)
	}
	if agent.get("net", "old", "eth0") != nil || agent.get("net", "kept", "eth0") == nil ||
		agent.get("other", "c1", "eth0") == nil {
		t.Errorf("want only net/old released, %d attachments left", agent.count())
	}
	if err := gc([]any{}); err != nil || agent.get("net", "kept", "eth0") != nil {
		t.Errorf("an empty list releases all of the network: %v", err)
	}
	if r.stdout.Len() != 0 {
		t.Errorf("GC printed %s", r.stdout.Bytes())
	}
}

func TestGCWithoutAListReleasesNothing(t *testing.T) {
	agent, _ := startAgent(t)
	r := newRig(nil)
	wantCode(t, r.GC(cmdArgs("", "", conf("1.1.0", agent.socket, nil))), types.ErrInvalidNetworkConfig)
	if calls := agent.called(); len(calls) != 0 {
		t.Errorf("the agent was asked: %v", calls)
	}
}

func TestGCWithoutTheAgentFailsOnlyStandalone(t *testing.T) {
	agent, stop := startAgent(t)
	list := map[string]any{"cni.dev/valid-attachments": []any{}}
	agent.failWith(status.Error(codes.Internal, "half of it failed"))
	r := newRig(nil)
	wantCode(t, r.GC(cmdArgs("", "", conf("1.1.0", agent.socket, list))), types.ErrInternal)
	stop()
	if err := r.GC(cmdArgs("", "", conf("1.1.0", agent.socket, list))); err != nil {
		t.Errorf("in a chain: %v", err)
	}
	if !strings.Contains(r.stderr.String(), "left to the agent") {
		t.Errorf("stderr %q", r.stderr.Bytes())
	}
	list["standalone"] = true
	wantCode(t, r.GC(cmdArgs("", "", conf("1.1.0", agent.socket, list))), types.ErrTryAgainLater)
}

// Field case 40: 50 only when configured standalone.
func TestStatusFailsOnlyStandaloneWithoutTheAgent(t *testing.T) {
	agent, stop := startAgent(t)
	r := newRig(nil)
	ask := func(standalone any) error {
		return r.Status(cmdArgs("", "", conf("1.1.0", agent.socket, map[string]any{"standalone": standalone})))
	}
	for _, standalone := range []any{nil, false} {
		if err := ask(standalone); err != nil || len(agent.called()) != 0 {
			t.Errorf("standalone %v: %v, or the agent was asked", standalone, err)
		}
	}
	if err := ask(true); err != nil {
		t.Errorf("standalone with the agent: %v", err)
	}
	agent.failWith(status.Error(codes.FailedPrecondition, "bpffs is not mounted"))
	if e := wantCode(t, ask(true), types.ErrPluginNotAvailable); !strings.Contains(e.Msg, "bpffs") {
		t.Errorf("got %q", e.Msg)
	}
	if err := ask(false); err != nil {
		t.Errorf("in a chain with an agent that cannot serve: %v", err)
	}
	stop()
	wantCode(t, ask(true), types.ErrPluginNotAvailable)
	if err := ask(false); err != nil {
		t.Errorf("in a chain without the agent: %v", err)
	}
	if r.stdout.Len() != 0 {
		t.Errorf("STATUS printed %s", r.stdout.Bytes())
	}
}

func TestAgentMustBeRootsOrOurOwn(t *testing.T) {
	testutil.NeedKernel(t)
	socket := filepath.Join(tempDir(t), "agent.sock")
	l := listenAs(t, socket, 12345)
	defer func() { _ = l.Close() }()
	r := newRig(nil)
	err := r.Status(cmdArgs("", "", conf("1.1.0", socket, map[string]any{"standalone": true})))
	if e := wantCode(t, err, types.ErrPluginNotAvailable); !strings.Contains(e.Msg, "served by uid 12345, not by root") {
		t.Errorf("got %q", e.Msg)
	}
}

// listenAs listens with the credentials of a user: they are those of the thread that calls listen.
func listenAs(t *testing.T, socket string, uid int) net.Listener {
	t.Helper()
	type result struct {
		l   net.Listener
		err error
	}
	if err := os.Chmod(filepath.Dir(socket), 0o777); err != nil {
		t.Fatal(err)
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		// The raw call changes this thread only; Go's would change all.
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); errno != 0 {
			done <- result{err: errno}
			return
		}
		l, err := net.Listen("unix", socket)
		done <- result{l, err}
	}()
	r := <-done
	if r.err != nil {
		t.Fatal(r.err)
	}
	return r.l
}
