package conflist

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/afxdp-project/afxdp/internal/cni"
)

// rig is a node's CNI directories and a keeper for them.
type rig struct {
	*Keeper
	tb       testing.TB
	dir, bin string

	mu  sync.Mutex
	log []Status
}

func newRig(tb testing.TB) *rig {
	tb.Helper()
	r := &rig{tb: tb, dir: tb.TempDir(), bin: tb.TempDir()}
	r.Keeper = New(Config{
		Dir: r.dir, BinDir: r.bin, AgentSocket: "/run/afxdp/agent.sock", KubeletRoot: "/var/lib/kubelet",
		Changed: func(s Status) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.log = append(r.log, s)
		},
	})
	r.times = times{
		check: 100 * time.Millisecond, settle: 5 * time.Millisecond, calm: time.Minute, first: time.Second, last: 10 * time.Second,
	}
	r.install(0o755)
	return r
}

func (r *rig) install(mode fs.FileMode) {
	r.tb.Helper()
	if err := os.WriteFile(filepath.Join(r.bin, "afxdp-cni"), nil, mode); err != nil {
		r.tb.Fatal(err)
	}
}

func (r *rig) uninstall() {
	r.tb.Helper()
	if err := os.Remove(filepath.Join(r.bin, "afxdp-cni")); err != nil {
		r.tb.Fatal(err)
	}
}

func (r *rig) write(name, text string) {
	r.tb.Helper()
	if err := os.WriteFile(filepath.Join(r.dir, name), []byte(text), 0o600); err != nil {
		r.tb.Fatal(err)
	}
}

func (r *rig) rename(from, to string) {
	r.tb.Helper()
	if err := os.Rename(filepath.Join(r.dir, from), filepath.Join(r.dir, to)); err != nil {
		r.tb.Fatal(err)
	}
}

func (r *rig) read(name string) string {
	r.tb.Helper()
	text, err := os.ReadFile(filepath.Join(r.dir, name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.tb.Fatal(err)
	}
	return string(text)
}

// want checks the directory's content.
func (r *rig) want(files map[string]string) {
	r.tb.Helper()
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		r.tb.Fatal(err)
	}
	for _, e := range entries {
		if _, ok := files[e.Name()]; !ok {
			r.tb.Errorf("there is %s", e.Name())
		}
	}
	for name, text := range files {
		if got := r.read(name); got != text {
			r.tb.Errorf("%s: got\n%q, want\n%q", name, got, text)
		}
	}
}

func (r *rig) changes() []Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Status(nil), r.log...)
}

// keep runs the keeper until the test ends.
func (r *rig) keep() {
	r.tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); r.Keep(ctx) }()
	r.tb.Cleanup(func() { cancel(); <-done })
}

// eventually waits for a file to have a text.
func (r *rig) eventually(name, text string) {
	r.tb.Helper()
	for end := time.Now().Add(10 * time.Second); r.read(name) != text; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			r.tb.Fatalf("%s: got\n%q, want\n%q\nstatus %+v", name, r.read(name), text, r.Status())
		}
	}
}

func conflist(name, version string, more ...string) string {
	text := fmt.Sprintf("{\n  \"cniVersion\": %q,\n  \"name\": %q,\n  \"plugins\": [\n    {\"type\": \"main\"}", version, name)
	for _, m := range more {
		text += ",\n    " + m
	}
	return text + "\n  ]\n}\n"
}

func TestEntryIsInTheFirstListOnly(t *testing.T) {
	r := newRig(t)
	first, second := conflist("a", "0.3.1"), conflist("b", "1.0.0")
	r.write("10-a.conflist", first)
	r.write("20-b.conflist", second)
	r.write("00-readme.txt", "afxdp-cni")
	if err := os.Mkdir(filepath.Join(r.dir, "00-dir.conflist"), 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(r.dir, "10-a.conflist")
	if err := errors.Join(os.Chmod(path, 0o640), os.Chown(path, 12, 34)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		r.look(time.Now())
		if got := r.read("10-a.conflist"); got != conflist("a", "0.3.1", entryText) {
			t.Fatalf("got %s", got)
		}
		if got := r.read("20-b.conflist"); got != second {
			t.Errorf("got %s", got)
		}
		if s := r.Status(); s != (Status{File: "10-a.conflist", Chained: true}) {
			t.Errorf("status %+v", s)
		}
	}
	if log := r.changes(); len(log) != 1 {
		t.Errorf("told of %+v, want one change", log)
	}
	f, err := readFile(path)
	if err != nil || f.stat.Mode&0o7777 != 0o640 || f.stat.Uid != 12 || f.stat.Gid != 34 {
		t.Errorf("mode %o, uid %d, gid %d, %v", f.stat.Mode, f.stat.Uid, f.stat.Gid, err)
	}
	if err := r.Remove(); err != nil {
		t.Fatal(err)
	}
	r.look(time.Now())
	if got := r.read("10-a.conflist"); got != first || r.Status().Chained {
		t.Errorf("after Remove: %s, status %+v", got, r.Status())
	}
}

func TestWhatCannotBeChainedIsLeftAloneAndToldOnce(t *testing.T) {
	for name, tc := range map[string]struct {
		files map[string]string
		want  Status
	}{
		"no configuration": {nil, Status{Reason: "no network configuration yet"}},
		"a single plugin": {
			map[string]string{"10-a.conf": `{"type": "bridge", "name": "a"}`, "20-b.conflist": conflist("b", "1.0.0")},
			Status{File: "10-a.conf", Reason: "single plugin bridge"},
		},
		"Multus": {
			map[string]string{"00-multus.conf": `{"type": "multus-shim"}`, "10-a.conflist": conflist("a", "1.0.0", entryText)},
			Status{File: "00-multus.conf", Reason: "NetworkAttachmentDefinition"},
		},
		"Multus in a list": {
			map[string]string{"00-multus.conflist": `{"name": "m", "plugins": [{"type": "multus"}, {"type": "x"}]}`},
			Status{File: "00-multus.conflist", Reason: "first plugin is multus: have Multus call"},
		},
		"only invalid ones": {
			map[string]string{"10-a.conflist": `{"name": "a", "plugins": [{"type"`, "20-b.conf": conflist("b", "1.0.0")},
			Status{Reason: "10-a.conflist is not valid: it is not JSON: unexpected end of JSON input; 20-b.conf is not valid"},
		},
		"a version that the plugin refuses": {
			map[string]string{"10-a.conflist": conflist("a", "0.2.0")},
			Status{File: "10-a.conflist", Reason: "of CNI version 0.2.0, the plugin speaks 0.3.0"},
		},
		"no version": {
			map[string]string{"10-a.conflist": `{"name": "a", "plugins": [{"type": "main"}]}`},
			Status{File: "10-a.conflist", Reason: "of CNI version 0.1.0"},
		},
		"one of its versions": {
			map[string]string{"10-a.conflist": `{"name": "a", "cniVersions": ["1.0.0", "9.0.0"], "plugins": [{"type": "main"}]}`},
			Status{File: "10-a.conflist", Reason: "of CNI version 9.0.0"},
		},
		"plugins in a directory": {
			map[string]string{"10-a.conflist": `{"name": "a", "cniVersion": "1.1.0"}`},
			Status{File: "10-a.conflist", Reason: "no plugins array"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			for name, text := range tc.files {
				r.write(name, text)
			}
			for range 3 {
				r.look(time.Now())
			}
			r.want(tc.files)
			log := r.changes()
			if len(log) != 1 || log[0].Chained || log[0].File != tc.want.File || !strings.Contains(log[0].Reason, tc.want.Reason) {
				t.Errorf("told of %+v, want %+v once", log, tc.want)
			}
		})
	}
}

func TestLinkIsNotReplacedByAFile(t *testing.T) {
	r := newRig(t)
	target := filepath.Join(t.TempDir(), "real")
	if err := errors.Join(os.WriteFile(target, []byte(conflist("a", "1.0.0")), 0o600),
		os.Symlink(target, filepath.Join(r.dir, "10-a.conflist"))); err != nil {
		t.Fatal(err)
	}
	r.look(time.Now())
	if s := r.Status(); s.Chained || s.File != "10-a.conflist" || !strings.Contains(s.Reason, "symbolic link") {
		t.Errorf("status %+v", s)
	}
	if err := Remove(r.dir); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(target, []byte(conflist("a", "1.0.0", entryText)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Remove(r.dir); !errors.Is(err, errLink) {
		t.Errorf("got %v: the runtime still calls the plugin", err)
	}
	if info, err := os.Lstat(filepath.Join(r.dir, "10-a.conflist")); err != nil || info.Mode()&fs.ModeSymlink == 0 {
		t.Errorf("the link is gone: %v, %v", info, err)
	}
}

func TestInvalidConfigurationIsSkippedAsTheRuntimeDoes(t *testing.T) {
	r := newRig(t)
	r.write("05-torn.conflist", "{")
	r.write("10-a.conflist", conflist("a", "1.0.0"))
	r.look(time.Now())
	if s := r.Status(); !s.Chained || s.File != "10-a.conflist" || !strings.Contains(s.Reason, "05-torn.conflist is not valid") {
		t.Errorf("status %+v", s)
	}
}

// A chain with a plugin that is not there stops every pod of the node.
func TestEntryIsThereOnlyWithTheBinary(t *testing.T) {
	r := newRig(t)
	plain, chained := conflist("a", "1.0.0"), conflist("a", "1.0.0", entryText)
	r.write("10-a.conflist", plain)
	step := func(do func(), want, reason string) {
		t.Helper()
		do()
		r.look(time.Now())
		if got, s := r.read("10-a.conflist"), r.Status(); got != want || !strings.Contains(s.Reason, reason) || s.Chained != (want == chained) {
			t.Errorf("status %+v\n%s", s, got)
		}
	}
	step(r.uninstall, plain, "not installed")
	step(func() { r.install(0o644) }, plain, "not an executable file")
	r.uninstall()
	step(func() { r.install(0o755) }, chained, "")
	step(r.uninstall, plain, "the entry was taken out, since no pod could start")
	step(func() {}, plain, "not installed")
	step(func() { r.install(0o755) }, chained, "")
	if r.losses != 0 {
		t.Error("its own doing is taken for that of another program")
	}
	// One that was written by hand is the operator's to take out.
	own := conflist("a", "1.0.0", `{"type": "afxdp-cni", "timeout": "5s"}`)
	r.write("10-a.conflist", own)
	r.uninstall()
	r.look(time.Now())
	if s := r.Status(); s.Chained || !strings.Contains(s.Reason, "no pod can start") || r.read("10-a.conflist") != own {
		t.Errorf("status %+v\n%s", s, r.read("10-a.conflist"))
	}
}

func TestEntryOfAnEarlierAgentIsBroughtUpToDateAndOneByHandIsLeft(t *testing.T) {
	r := newRig(t)
	for before, after := range map[string]string{
		`{"type": "afxdp-cni", "kubeletRoot": "/wrong"}`:          entryText,
		"{\n\"kubeletRoot\":\"/wrong\",\n\"type\":\"afxdp-cni\"}": entryText,
		`{ "type" : "afxdp-cni" }`:                                `{ "type" : "afxdp-cni" }`,
		`{"type": "afxdp-cni", "timeout": "5s"}`:                  `{"type": "afxdp-cni", "timeout": "5s"}`,
		`{"type": "afxdp-cni", "standalone": true}`:               `{"type": "afxdp-cni", "standalone": true}`,
	} {
		r.write("10-a.conflist", conflist("a", "1.0.0", before))
		r.look(time.Now())
		if got := r.read("10-a.conflist"); got != conflist("a", "1.0.0", after) || !r.Status().Chained {
			t.Errorf("%s: got %s, status %+v", before, got, r.Status())
		}
	}
	r.entry = cni.NewEntry("/run/other.sock", "/data/kubelet")
	r.write("10-a.conflist", conflist("a", "1.0.0"))
	r.look(time.Now())
	if got, want := r.read("10-a.conflist"), conflist("a", "1.0.0",
		`{"type": "afxdp-cni", "agentSocket": "/run/other.sock", "kubeletRoot": "/data/kubelet"}`); got != want {
		t.Errorf("got %s", got)
	}
}

func TestEntryFollowsTheMainNetwork(t *testing.T) {
	r := newRig(t)
	if err := os.Remove(r.dir); err != nil {
		t.Fatal(err)
	}
	r.times.check = 20 * time.Millisecond // only a directory that is made late is found by looking
	r.keep()
	time.Sleep(50 * time.Millisecond)
	if err := os.Mkdir(r.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	chained := func(name string) string { return conflist(name, "0.3.1", entryText) }
	r.write("10-a.conflist", conflist("a", "0.3.1"))
	r.eventually("10-a.conflist", chained("a"))
	r.write("10-a.conflist", conflist("rewritten", "0.3.1")) // in place
	r.eventually("10-a.conflist", chained("rewritten"))
	r.write("temp", conflist("replaced", "0.3.1"))
	r.rename("temp", "10-a.conflist")
	r.eventually("10-a.conflist", chained("replaced"))
	r.rename("10-a.conflist", "20-a.conflist")
	r.write("10-b.conflist", conflist("b", "0.3.1")) // another becomes the first
	r.eventually("10-b.conflist", chained("b"))
	r.eventually("20-a.conflist", conflist("replaced", "0.3.1"))
	if err := os.Remove(filepath.Join(r.dir, "10-b.conflist")); err != nil {
		t.Fatal(err)
	}
	r.eventually("20-a.conflist", chained("replaced"))
}

func TestNotificationsAreEnough(t *testing.T) {
	r := newRig(t)
	r.times.check = time.Hour
	r.write("10-a.conflist", conflist("a", "1.0.0"))
	r.keep()
	r.eventually("10-a.conflist", conflist("a", "1.0.0", entryText))
	start := time.Now()
	r.write("10-a.conflist", conflist("b", "1.0.0"))
	r.eventually("10-a.conflist", conflist("b", "1.0.0", entryText))
	t.Logf("put back after %s", time.Since(start))
}

// An entry that a Multus calls through its main network stays: nothing of the agent's takes its place.
func TestEntryIsMovedOnlyToAListThatCanHaveIt(t *testing.T) {
	r := newRig(t)
	r.write("10-a.conflist", conflist("a", "1.0.0"))
	r.look(time.Now())
	r.write("00-multus.conf", `{"type": "multus"}`)
	r.look(time.Now())
	r.want(map[string]string{"00-multus.conf": `{"type": "multus"}`, "10-a.conflist": conflist("a", "1.0.0", entryText)})
	// What somebody else wrote into a list that is not the first stays too.
	own := conflist("own", "1.0.0", `{"type":"afxdp-cni"}`)
	r.write("90-own.conflist", own)
	r.rename("00-multus.conf", "00-multus.off")
	r.look(time.Now())
	if got := r.read("90-own.conflist"); got != own || r.Status() != (Status{File: "10-a.conflist", Chained: true}) {
		t.Errorf("got %s, status %+v", got, r.Status())
	}
}

func TestAProgramThatTakesTheEntryOutAgainAndAgainIsNotFought(t *testing.T) {
	r := newRig(t)
	plain, chained := conflist("a", "0.3.1"), conflist("a", "0.3.1", entryText)
	now := time.Now()
	added := 0
	r.write("10-a.conflist", plain)
	for end := now.Add(10 * time.Minute); now.Before(end); now = now.Add(100 * time.Millisecond) {
		r.look(now)
		if r.read("10-a.conflist") == chained {
			added++
			r.write("10-a.conflist", plain)
		}
	}
	// At once twice, then after 1, 2, 4, 8 s and every 10.
	if added < 50 || added > 70 {
		t.Errorf("added %d times in 10 minutes", added)
	}
	if s := r.Status(); s.Chained || !strings.Contains(s.Reason, "again and again") {
		t.Errorf("status %+v", s)
	}
	wait := r.look(now)
	now = now.Add(wait)
	if r.look(now); wait > r.times.last || !r.Status().Chained {
		t.Errorf("status %+v after %s", r.Status(), wait)
	}
	// A rewrite after calm is put back at once, and so is the first of another file.
	now = now.Add(2 * r.times.calm)
	r.look(now)
	r.write("10-a.conflist", plain)
	if r.look(now); !r.Status().Chained {
		t.Errorf("after calm: %+v", r.Status())
	}
	for range 3 {
		r.write("10-a.conflist", plain)
		r.look(now)
	}
	if r.Status().Chained {
		t.Error("put back at once three times")
	}
	r.rename("10-a.conflist", "05-a.conflist")
	if r.look(now); r.Status() != (Status{File: "05-a.conflist", Chained: true}) {
		t.Errorf("another file: %+v", r.Status())
	}
}

func TestAWriteThatCameBetweenIsNotLost(t *testing.T) {
	r := newRig(t)
	r.write("10-a.conflist", conflist("a", "1.0.0"))
	f, err := readFile(filepath.Join(r.dir, "10-a.conflist"))
	if err != nil {
		t.Fatal(err)
	}
	r.write("10-a.conflist", conflist("b", "1.0.0"))
	if err := f.replace([]byte("{}")); !errors.Is(err, errChanged) {
		t.Errorf("got %v", err)
	}
	r.want(map[string]string{"10-a.conflist": conflist("b", "1.0.0")})
}

func TestWhatAWriteThatWasCutShortHasLeftIsRemoved(t *testing.T) {
	r := newRig(t)
	r.write(".afxdp-cni-123.tmp", "{")
	r.look(time.Now())
	r.want(nil)
	r.write(".afxdp-cni-123.tmp", "{")
	if err := Remove(r.dir); err != nil {
		t.Fatal(err)
	}
	r.want(nil)
}
