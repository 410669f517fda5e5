package deviceplugin

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Field case 29: kubelet restarts and wipes its directory.
func TestKubeletRestartsAndWipes(t *testing.T) {
	n := newNode(t, Config{})
	n.update(queues(2))
	n.waitHealthy(fast, 2)
	for range 3 {
		if err := n.kubelet.Restart(true); err != nil {
			t.Fatal(err)
		}
		n.waitHealthy(fast, 2)
		n.waitRegistered("fast", "")
	}
	if err := n.kubelet.Restart(false); err != nil {
		t.Fatal(err)
	}
	n.waitHealthy(fast, 2)
}

// Field case 29, with some time between.
func TestKubeletIsDownForAWhile(t *testing.T) {
	n := newNode(t, Config{})
	n.update(queues(1))
	n.waitHealthy(fast, 1)
	if err := n.kubelet.Stop(); err != nil {
		t.Fatal(err)
	}
	n.waitRegistered("fast", "kubelet.sock is not there")
	n.update(queues(3))
	if err := n.kubelet.Resume(true); err != nil {
		t.Fatal(err)
	}
	n.waitHealthy(fast, 3)
	n.waitRegistered("fast", "")
}

func TestAgentIsThereBeforeKubelet(t *testing.T) {
	n := &node{T: t, root: tempRoot(t)}
	n.runManager(Config{})
	n.update(queues(2))
	n.waitRegistered("fast", "kubelet does not run, or its root directory is not "+n.root)
	n.kubelet = startKubelet(t, n.root)
	n.waitHealthy(fast, 2)
}

func TestKubeletsDirectoryIsMadeAnew(t *testing.T) {
	n := newNode(t, Config{})
	n.update(queues(2))
	n.waitHealthy(fast, 2)
	if err := n.kubelet.Stop(); err != nil {
		t.Fatal(err)
	}
	// Not removed in place, where the plugin would make its socket again meanwhile.
	away := filepath.Join(n.root, "away")
	if err := os.Rename(n.kubelet.PluginDir(), away); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(away); err != nil {
		t.Fatal(err)
	}
	n.waitRegistered("fast", "does not run")
	if err := n.kubelet.Resume(true); err != nil {
		t.Fatal(err)
	}
	n.waitHealthy(fast, 2)
	// The watch is on the new directory: a restart is noticed again.
	if err := n.kubelet.Restart(true); err != nil {
		t.Fatal(err)
	}
	n.waitHealthy(fast, 2)
}

func TestSocketThatVanishedIsMadeAgain(t *testing.T) {
	n := newNode(t, Config{})
	n.update(queues(1))
	n.waitHealthy(fast, 1)
	socket := filepath.Join(n.kubelet.PluginDir(), "afxdp-fast.sock")
	if err := os.Remove(socket); err != nil {
		t.Fatal(err)
	}
	ctx := n.within()
	for _, err := os.Stat(socket); err != nil; _, err = os.Stat(socket) {
		if ctx.Err() != nil {
			t.Fatal("the socket did not come back")
		}
		time.Sleep(10 * time.Millisecond)
	}
	// kubelet kept its connection and needs no registration, which would only disturb it.
	n.update(queues(2))
	n.waitHealthy(fast, 2)
	if got := n.kubelet.Registrations(fast); got != 1 {
		t.Errorf("registered %d times, want once", got)
	}
	if err := n.kubelet.AddPod(n.within(), podOf(map[string]int{fast: 1})); err != nil {
		t.Error(err)
	}
}

// kubelet takes a plugin down by its name when a stream ends: a registration that came just before is lost with it.
func TestConnectionThatKubeletDropsIsRegisteredAgain(t *testing.T) {
	n := newNode(t, Config{})
	n.update(queues(2))
	n.waitHealthy(fast, 2)
	n.kubelet.DropConnection(fast)
	n.waitHealthy(fast, 0)
	n.waitHealthy(fast, 2)
	n.waitRegistered("fast", "")

	n.manager.mu.Lock()
	p := n.manager.pools["fast"]
	n.manager.mu.Unlock()
	for range 5 {
		n.kubelet.DropConnection(fast)
		_ = p.callRegister(filepath.Join(n.kubelet.PluginDir(), kubeletSocket)) // may be lost, and may say so
	}
	ctx := n.within()
	for {
		err := n.kubelet.AddPod(ctx, podOf(map[string]int{fast: 2}))
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("%v; registered: %v", err, n.manager.Registered())
		}
		time.Sleep(50 * time.Millisecond)
	}
	n.waitRegistered("fast", "")
}
