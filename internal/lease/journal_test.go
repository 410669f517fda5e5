package lease

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/afxdp-project/afxdp/pkg/netdev"
)

// edit changes a document of the journal, which has one with the prefix.
func (n *node) edit(prefix string, change func(string) string) (path string) {
	n.tb.Helper()
	for _, name := range n.documents() {
		if strings.HasPrefix(name, prefix) {
			path = filepath.Join(n.state, name)
		}
	}
	b, err := os.ReadFile(path)
	n.ok(err)
	after := change(string(b))
	if after == string(b) {
		n.tb.Fatalf("nothing to change in %s: %s", path, b)
	}
	n.ok(os.WriteFile(path, []byte(after), 0o600))
	return path
}

func replace(from, to string) func(string) string {
	return func(s string) string { return strings.ReplaceAll(s, from, to) }
}

func half(s string) string { return s[:len(s)/2] }

func TestStateDirectoryIsPrivateAndHasOneOwner(t *testing.T) {
	n := newNode(t)
	_, _, err := New(n.config())
	wantError(t, "a second agent", err, n.state, "another running agent")
	n.add(alice, 0)
	for _, path := range append(n.documents(), ".") {
		st, err := os.Stat(filepath.Join(n.state, path))
		n.ok(err)
		if st.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v, want it closed to others", path, st.Mode())
		}
	}
	n.ok(os.Chmod(n.state, 0o755))
	n.restart()
	if st, err := os.Stat(n.state); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("state directory after a restart: %v, %v", st.Mode(), err)
	}
	n.del(alice)
}

// What the journal describes has died with the boot that it belongs to.
func TestDocumentsOfAnotherBootAreDropped(t *testing.T) {
	n := newNode(t)
	before := n.now()
	n.add(alice, 0)
	n.ok(n.SaveAllocation("a", []string{deviceID(0)}))
	n.ok(n.Close())
	n.throwOff()
	n.removePins()
	n.setKnobs(0, 0)
	for _, kind := range []string{"nic-", "lease-", "allocation-"} {
		n.edit(kind, replace(n.journal.bootID, "00000000-0000-0000-0000-000000000000"))
	}
	n.start()
	n.wantLeases("after the boot")
	n.ok(n.Allocations(func(id string, _ json.RawMessage) error { return errors.New("there is one: " + id) }))
	n.wantState("after the boot", before)
	n.wantNothingLeft()
}

func TestAllocationsAreKept(t *testing.T) {
	n := newNode(t)
	n.ok(n.SaveAllocation("a", map[string]int{"x": 1}))
	n.ok(n.SaveAllocation("b", map[string]int{"x": 2}))
	n.restart()
	n.ok(n.RemoveAllocation("a"))
	n.ok(n.RemoveAllocation("a"))
	got := ""
	n.ok(n.Allocations(func(id string, body json.RawMessage) error { got += id + string(body); return nil }))
	if got = strings.Join(strings.Fields(got), ""); got != `b{"x":2}` {
		t.Errorf("allocations %s", got)
	}
	n.ok(n.RemoveAllocation("b"))
}

func TestUnfinishedDocumentsAreRemoved(t *testing.T) {
	n := newNode(t)
	n.ok(os.WriteFile(filepath.Join(n.state, ".lease-lsnear-q0.json8123"), []byte("{"), 0o600))
	n.restart()
	n.wantNothingLeft()
}

func TestDocumentThatCannotBeReadIsReportedAndTheOthersKept(t *testing.T) {
	for what, damage := range map[string]func(string) string{
		"cut": half, "empty": func(string) string { return "" }, "of another shape": replace(`"queue": 0`, `"queue": "0"`),
	} {
		t.Run(what, func(t *testing.T) {
			n := newNode(t)
			n.setKnobs(1, 5000)
			before := n.now()
			n.add(alice, 0)
			n.add(bob, 1)
			n.ok(n.Close())
			path := n.edit("lease-"+deviceID(0), damage)
			findings := n.startReporting()
			if len(findings) != 1 || !strings.Contains(findings[0].Error(), path) {
				t.Errorf("findings %v, want one of %s", findings, path)
			}
			n.wantLeases("the other one", leaseOf(1, bob))
			n.wantAttached("for the other one")
			n.wantKnobs("for the other one", "2", "200000")
			n.del(bob)
			n.wantState("after its DEL", before)
			n.add(alice, 0) // in its place
			n.del(alice)
		})
	}
}

// Without the NIC's document its settings cannot be put back, but our program can be taken off and its leases ended.
func TestNICWhoseDocumentCannotBeRead(t *testing.T) {
	for what, damage := range map[string]func(string) string{
		"cut":             half,
		"without holders": replace(`"holders"`, `"owners"`),
		"with no knob":    replace(`"knobs": [`, `"knobs": [null,`),
	} {
		t.Run(what, func(t *testing.T) {
			n := newNode(t)
			before := n.now()
			n.add(alice, 0)
			process, _ := n.open(alice, 0, ignored)
			n.ok(n.Close())
			path := n.edit("nic-", damage)
			findings := errors.Join(n.startReporting()...)
			wantError(t, "findings", findings,
				path, "no document of the NIC of "+deviceID(0), "belongs to no NIC in the journal")
			if now := n.now(); now.XDP != before.XDP {
				t.Errorf("the NIC shows %+v", now.XDP)
			}
			n.wantLeases("after the start", deviceID(0)+" alice a1 held")
			process.close()
			n.ok(maintain(n.Manager))
			n.add(bob, 0)
			n.wantAttached("leased again")
			n.del(bob)
			n.wantNothingLeft()
		})
	}
}

func TestLeaseWithoutItsNICsDocument(t *testing.T) {
	n := newNode(t)
	n.add(alice, 0)
	n.ok(n.Close())
	n.ok(os.Remove(n.edit("nic-", half)))
	wantError(t, "findings", errors.Join(n.startReporting()...), "no document of the NIC of "+deviceID(0))
	n.wantLeases("after the start")
	n.wantNothingLeft()
}

// A later agent, in the other network namespace, may be able to put back what this one cannot reach.
func TestNICOfAnotherNetworkNamespaceIsLeftAlone(t *testing.T) {
	n := newNode(t)
	n.setKnobs(1, 5000)
	before := n.now()
	n.add(alice, 0)
	during, docs := n.now(), n.documents()
	n.ok(n.Close())

	other := emptyNode(t) // this goroutine is in its namespace now
	other.state, other.pins = n.state, n.pins
	wantError(t, "findings", errors.Join(other.startReporting()...), near+" is in another network namespace")
	other.wantLeases("of the other namespace")
	if got := other.documents(); len(got) != len(docs) {
		t.Errorf("documents %v, want %v", got, docs)
	}
	other.add(bob, 2)
	other.del(bob)
	if pins := list(t, n.pins); len(pins) != 1 {
		t.Errorf("pins %v, want those of the other namespace", pins)
	}
	other.ok(other.Close())

	n.inside()
	n.start()
	n.wantState("back again", during)
	n.wantLeases("back again", leaseOf(0, alice))
	n.del(alice)
	n.wantState("at the end", before)
}

func TestJournalOfAnotherVersionIsNotWorkedOn(t *testing.T) {
	n := newNode(t)
	n.add(alice, 0)
	during, docs := n.now(), n.documents()
	n.ok(n.Close())
	for _, kind := range []string{"nic-", "lease-"} {
		n.edit(kind, replace(`"version": 1`, `"version": 2`))
		_, _, err := New(n.config())
		wantError(t, "start", err, n.state, "version 2", "knows 1")
		n.edit(kind, replace(`"version": 2`, `"version": 1`))
	}
	n.wantState("after the refused starts", during)
	if got := n.documents(); len(got) != len(docs) {
		t.Errorf("documents %v, want %v", got, docs)
	}
	n.start()
	n.del(alice)
}

func TestPinDirectoryMustBeOnABPFFilesystem(t *testing.T) {
	n := newNode(t)
	c := n.config()
	c.PinDir = filepath.Join(t.TempDir(), "pins")
	_, _, err := New(c)
	wantError(t, "start", err, "not on a BPF filesystem")
}

// What is left of pins when the agent was killed between them is cleared away, or is a whole attachment.
func TestPinsThatAreNotWhole(t *testing.T) {
	pins := []string{"link", "xsks", "unclaimed"}
	for gone := range 1 << len(pins) {
		t.Run(strconv.Itoa(gone), func(t *testing.T) {
			n := newNode(t)
			before := n.now()
			n.add(alice, 0)
			n.ok(n.Close())
			dir := filepath.Join(n.pins, list(t, n.pins)[0])
			for i, pin := range pins {
				if gone>>i&1 == 1 {
					n.ok(os.Remove(filepath.Join(dir, pin)))
				}
			}
			if gone&1 == 1 { // the kernel detaches the program some time after the link's last pin is gone
				within(t, "the program is gone", func() bool { return n.now().XDP.Mode == netdev.XDPNone })
			}
			n.start()
			n.wantAttached("after the start")
			n.wantLeases("after the start", leaseOf(0, alice))
			n.del(alice)
			n.wantState("at the end", before)
		})
	}
}
