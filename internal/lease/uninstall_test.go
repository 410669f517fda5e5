package lease

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const agentID = "agent-1"

// uninstall does what an agent does.
func uninstall(m *Manager) error {
	if err := m.BeginUninstall(agentID); err != nil {
		return err
	}
	if _, err := m.EndAll("uninstalled"); err != nil {
		return err
	}
	if err := maintain(m); err != nil {
		return err
	}
	return m.Dismantle()
}

// wantGone checks that neither journal nor pins are left.
func (n *node) wantGone(when string) {
	n.tb.Helper()
	for _, dir := range []string{n.state, n.pins} {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			n.tb.Errorf("%s %s is left: %v, %v", when, dir, list(n.tb, dir), err)
		}
	}
}

func TestUninstallLeavesNothing(t *testing.T) {
	t.Parallel()
	n := emptyNode(t)
	n.setKnobs(1, 5000)
	before := n.now()
	n.start()
	n.add(alice, 0, 1)
	n.add(bob, 2)
	revoked := make(chan string, 1)
	socket, _ := n.open(alice, 0, func(reason string) { revoked <- reason })
	ended, err := n.EndAll("the node agent was uninstalled")
	n.ok(err)
	var whose []string
	for _, l := range ended {
		whose = append(whose, l.Device+" "+l.Pod.Name+" "+string(l.State))
	}
	if want := []string{deviceID(0) + " alice active", deviceID(1) + " alice active", deviceID(2) + " bob active"}; !slices.Equal(whose, want) {
		t.Errorf("ended: %q, want %q", whose, want)
	}
	n.wantState("after all leases were ended", before)
	if reason := <-revoked; !strings.Contains(reason, "the node agent was uninstalled") {
		t.Errorf("the connection was told %q", reason)
	}
	wantError(t, "a lease after that", n.Activate(n.request(bob, 2)), "is being uninstalled")
	if again, err := n.EndAll("again"); err != nil || len(again) > 0 {
		t.Errorf("the second time %v was ended, %v", again, err)
	}
	// A pod's socket cannot be taken away: its lease is forgotten all the same.
	if pending, err := n.Maintain(); err != nil || !pending {
		t.Errorf("a queue that is held is not known as such: %v", err)
	}
	n.ok(n.Dismantle())
	n.wantGone("afterwards")
	n.ok(n.Dismantle())
	n.ok(n.Close())
	socket.close()
}

func TestUninstallKeepsWhatIsToBePutBack(t *testing.T) {
	t.Parallel()
	n := emptyNode(t)
	n.setKnobs(1, 5000)
	before := n.now()
	n.start()
	n.add(alice, 0)
	broken := errors.New("broken")
	n.fault = func(step string) error {
		if strings.HasPrefix(step, "restore ") {
			return broken
		}
		return nil
	}
	n.ok(n.BeginUninstall(agentID))
	ended, err := n.EndAll("uninstalled")
	if !errors.Is(err, broken) || len(ended) != 1 {
		t.Errorf("ended %v, %v", ended, err)
	}
	wantError(t, "dismantle", n.Dismantle(), near, n.state)
	n.fault = nil
	_, err = n.EndAll("uninstalled")
	n.ok(err)
	n.ok(maintain(n.Manager))
	n.ok(n.Dismantle())
	n.wantState("the second time", before)
	n.wantGone("the second time")
	n.ok(n.Close())
}

// What is not known to have been put back, of NICs that are out of reach, is kept.
func TestUninstallKeepsDocumentsOfOtherNamespaces(t *testing.T) {
	n := newNode(t)
	path := filepath.Join(n.state, "nic-1-2.json")
	n.ok(os.WriteFile(path, []byte("{}"), 0o600))
	_, err := n.EndAll("uninstalled")
	n.ok(err)
	wantError(t, "dismantle", n.Dismantle(), "in another network namespace")
	n.ok(os.Remove(path))
}

func TestUninstallOfAnotherAgentIsForgotten(t *testing.T) {
	n := newNode(t)
	n.ok(n.BeginUninstall("other"))
	for _, want := range []struct {
		id    string
		begun bool
	}{{"other", true}, {agentID, false}, {"other", false}} {
		if begun, err := n.UninstallBegun(want.id); err != nil || begun != want.begun {
			t.Errorf("begun by %s: %t (%v), want %t", want.id, begun, err, want.begun)
		}
	}
}

// An agent that is killed while it uninstalls knows that when it is started anew, and goes on to the same end.
func TestUninstallKilledAtEveryStep(t *testing.T) {
	t.Parallel()
	n := emptyNode(t)
	before := n.now()
	steps, _ := n.run("uninstall", 0)
	n.wantState("after the story", before)
	n.wantGone("after the story")
	begin := slices.Index(steps, "write uninstall")
	done := slices.Index(steps, "remove uninstall-"+agentID+".json")
	if begin < 0 || done < begin+10 {
		t.Fatalf("steps: %v", steps)
	}
	for at := begin; at < len(steps) && !t.Failed(); at++ {
		when := fmt.Sprintf("killed at step %d, %s:", at+1, steps[at])
		n.setKnobs(1, 5000)
		before := n.now()
		if _, killed := n.run("uninstall", at+1); !killed {
			t.Fatal(when, "it was not")
		}
		n.start()
		begun, err := n.UninstallBegun(agentID)
		n.ok(err)
		if want := at > begin && at <= done; begun != want {
			t.Errorf("%s the next agent knows of the uninstallation: %t, want %t", when, begun, want)
		}
		n.ok(uninstall(n.Manager))
		n.ok(n.Close())
		n.wantState(when, before)
		n.wantGone(when)
		n.setKnobs(0, 0)
	}
}
