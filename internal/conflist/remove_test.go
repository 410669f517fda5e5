package conflist

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestRemoveTakesThePluginOutOfEveryList(t *testing.T) {
	r := newRig(t)
	plain := conflist("a", "1.0.0")
	r.write("10-a.conflist", plain)
	r.look(time.Now())
	r.rename("10-a.conflist", "10-a.conflist.main_bak") // by a main network that wants to be alone
	r.write("20-b.conflist", conflist("b", "1.0.0", `{ "timeout": "5s", "type": "afxdp-cni" }`, `{"type": "mesh"}`))
	r.write("30-c.conflist", conflist("c", "1.0.0"))
	r.write("notes", `"afxdp-cni" is chained here`)
	if err := unix.Mkfifo(filepath.Join(r.dir, "40-fifo.conflist"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := Remove(r.dir); err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]string{
			"10-a.conflist.main_bak": plain,
			"20-b.conflist":          conflist("b", "1.0.0", `{"type": "mesh"}`),
			"30-c.conflist":          conflist("c", "1.0.0"),
			"notes":                  `"afxdp-cni" is chained here`,
		} {
			if got := r.read(name); got != want {
				t.Errorf("%s: got %s", name, got)
			}
		}
	}
	if err := Remove(filepath.Join(r.dir, "none")); err != nil {
		t.Errorf("a directory that is not there: %v", err)
	}
}

func TestRemoveNamesWhatStillCallsThePlugin(t *testing.T) {
	r := newRig(t)
	files := map[string]string{
		"10-alone.conflist": `{"name": "a", "plugins": [{"type": "afxdp-cni"}]}`,
		"20-single.conf":    `{"name": "a", "type": "afxdp-cni"}`,
		"30-torn.conflist":  `{"name": "a", "plugins": [{"type": "afxdp-cni"`,
	}
	for name, text := range files {
		r.write(name, text)
	}
	err := Remove(r.dir)
	for name := range files {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("got %v, want %s in it", err, name)
		}
	}
	r.want(files)
}

func TestRemoveOwnLeavesWhatOthersWrote(t *testing.T) {
	r := newRig(t)
	plain := conflist("a", "1.0.0")
	r.write("10-a.conflist", plain)
	r.look(time.Now())
	others := map[string]string{
		"20-more.conflist":  conflist("b", "1.0.0", `{"type": "afxdp-cni", "timeout": "5s"}`),
		"30-place.conflist": conflist("c", "1.0.0", `{"type": "afxdp-cni"}`, `{"type": "mesh"}`),
		"40-torn.conflist":  `{"name": "a", "plugins": [{"type": "afxdp-cni"`,
	}
	for name, text := range others {
		r.write(name, text)
	}
	if err := RemoveOwn(r.dir); err != nil {
		t.Fatal(err)
	}
	others["10-a.conflist"] = plain
	r.want(others)
}
