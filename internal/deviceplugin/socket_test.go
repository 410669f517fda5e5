package deviceplugin

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSocketIsRootsAlone(t *testing.T) {
	path := filepath.Join(tempRoot(t), "s")
	l, own, err := listen(path)
	if err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(path)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	removeOwn(path, own)
	if _, err := os.Stat(path); err == nil {
		t.Error("the socket was left")
	}
}

func TestStaleSocketIsReplaced(t *testing.T) {
	path := filepath.Join(tempRoot(t), "s")
	old, own, err := listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := old.Close(); err != nil { // the file stays, as after a crash
		t.Fatal(err)
	}
	l, _, err := listen(path)
	if err != nil {
		t.Fatal(err)
	}
	removeOwn(path, own)
	if _, err := os.Stat(path); err != nil {
		t.Errorf("another's socket was removed: %v", err)
	}
	_ = l.Close()
}

func TestForeignFileIsNotTouched(t *testing.T) {
	dir := tempRoot(t)
	file, served, link := filepath.Join(dir, "file"), filepath.Join(dir, "served"), filepath.Join(dir, "link")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	other, err := net.Listen("unix", served)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{file: "not a socket", served: "another process", link: "not a socket"} {
		if _, _, err := listen(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", path, err, want)
		}
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("%s was removed", path)
		}
	}
}

// Field case 43: a path longer than 107 bytes is named with its length.
func TestLongPathIsNamedWithItsLength(t *testing.T) {
	dir := tempRoot(t)
	name := strings.Repeat("s", maxPath-len(dir)-1)
	l, own, err := listen(filepath.Join(dir, name))
	if err != nil {
		t.Fatalf("a path of %d bytes: %v", maxPath, err)
	}
	_ = l.Close()
	removeOwn(filepath.Join(dir, name), own)
	_, _, err = listen(filepath.Join(dir, name+"s"))
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%d bytes", maxPath+1)) {
		t.Errorf("got %v, want the length", err)
	}
}

func TestPoolThatCannotBeServedIsReportedAndComesWhenItCan(t *testing.T) {
	n := newNode(t, Config{})
	long := strings.Repeat("p", 63)
	blocked := filepath.Join(n.kubelet.PluginDir(), "afxdp-fast.sock")
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n.manager.Update(map[string][]Device{"fast": queues(1), "../fast": queues(1), long: queues(1), "bulk": queues(1)})
	n.waitHealthy("afxdp.io/bulk", 1)
	n.waitRegistered("fast", "not a socket")
	n.waitRegistered("../fast", "letters, digits")
	if err := os.Remove(blocked); err != nil {
		t.Fatal(err)
	}
	n.waitHealthy(fast, 1)
	if len(n.root)+len("/device-plugins/afxdp-.sock")+63 > maxPath {
		n.waitRegistered(long, "at most 107")
	} else {
		n.waitHealthy("afxdp.io/"+long, 1)
	}
}
