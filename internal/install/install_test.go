package install

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/testutil"
)

// killedEnv has the test binary be an installer that is killed half-way through the file that it names.
const killedEnv = "AFXDP_INSTALL_KILLED"

func TestMain(m *testing.M) {
	if path := os.Getenv(killedEnv); path != "" {
		_ = write(path, io.MultiReader(strings.NewReader(strings.Repeat("x", 1<<16)), killer{}))
		os.Exit(1)
	}
	os.Exit(testutil.Main(m))
}

// killer ends the process that reads it.
type killer struct{}

func (killer) Read([]byte) (int, error) {
	_ = unix.Kill(os.Getpid(), unix.SIGKILL)
	select {}
}

func put(t *testing.T, path, content string, mode os.FileMode) {
	t.Helper()
	if err := errors.Join(os.WriteFile(path, []byte(content), mode), os.Chmod(path, mode)); err != nil {
		t.Fatal(err)
	}
}

func install(t *testing.T, source, dir string) (changed bool) {
	t.Helper()
	changed, err := Plugin(source, dir)
	if err != nil {
		t.Fatal(err)
	}
	return changed
}

// want checks that the plugin is whole and that nothing is beside it.
func want(t *testing.T, dir, content string) {
	t.Helper()
	path := filepath.Join(dir, PluginName)
	got, err := os.ReadFile(path)
	if err != nil || string(got) != content {
		t.Errorf("plugin: %q (%v), want %q", got, err, content)
	}
	if st, err := os.Lstat(path); err != nil || st.Mode() != 0o755 {
		t.Errorf("mode: %v (%v), want a regular file 0755", st.Mode(), err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("directory: %v (%v), want the plugin only", entries, err)
	}
}

func TestPluginIsInstalledOnce(t *testing.T) {
	src, dir := filepath.Join(t.TempDir(), "plugin"), t.TempDir()
	put(t, src, "one", 0o600)
	old := unix.Umask(0o077) // which must not take the mode away
	defer unix.Umask(old)
	if !install(t, src, dir) {
		t.Error("the first installation says that it changed nothing")
	}
	want(t, dir, "one")
	path := filepath.Join(dir, PluginName)
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if install(t, src, dir) {
		t.Error("an identical file was installed again")
	}
	if after, err := os.Stat(path); err != nil || !os.SameFile(before, after) {
		t.Errorf("the file is another one: %v", err)
	}
	put(t, path, "one", 0o644)
	if !install(t, src, dir) {
		t.Error("a file that cannot be executed was left")
	}
	want(t, dir, "one")
	put(t, src, "two", 0o600)
	install(t, src, dir)
	want(t, dir, "two")
	for range 2 {
		if err := RemovePlugin(dir); err != nil {
			t.Error(err)
		}
	}
	if entries, _ := os.ReadDir(dir); len(entries) > 0 {
		t.Errorf("left: %v", entries)
	}
	if err := RemovePlugin(filepath.Join(dir, "gone")); err != nil {
		t.Error(err)
	}
}

func TestPluginReplacesALinkNotItsTarget(t *testing.T) {
	src, dir, elsewhere := filepath.Join(t.TempDir(), "plugin"), t.TempDir(), filepath.Join(t.TempDir(), "other")
	put(t, src, "one", 0o755)
	put(t, elsewhere, "other", 0o755)
	if err := os.Symlink(elsewhere, filepath.Join(dir, PluginName)); err != nil {
		t.Fatal(err)
	}
	install(t, src, dir)
	want(t, dir, "one")
	if got, err := os.ReadFile(elsewhere); err != nil || string(got) != "other" {
		t.Errorf("the link's target is %q (%v)", got, err)
	}
}

func TestPluginRefusals(t *testing.T) {
	src, dir := filepath.Join(t.TempDir(), "plugin"), t.TempDir()
	for name, c := range map[string]struct {
		prepare func()
		say     string
	}{
		"no source":    {func() {}, "no such file"},
		"empty source": {func() { put(t, src, "", 0o755) }, "the source is empty"},
		"directory": {func() {
			put(t, src, "one", 0o755)
			if err := os.Mkdir(filepath.Join(dir, PluginName), 0o755); err != nil {
				t.Fatal(err)
			}
		}, "there is a directory of that name"},
	} {
		_ = os.Remove(src)
		c.prepare()
		if changed, err := Plugin(src, dir); err == nil || changed || !strings.Contains(err.Error(), c.say) {
			t.Errorf("%s: %v, want %q", name, err, c.say)
		}
	}
	if _, err := Plugin(src, filepath.Join(dir, "none")); err == nil {
		t.Error("installed into a directory that is not there")
	}
}

// A runtime that executes the plugin goes on with the old file; writing into it would fail (ETXTBSY).
func TestPluginIsReplacedWhileItRuns(t *testing.T) {
	self, err := os.ReadFile("/bin/sleep")
	if err != nil {
		t.Fatal(err)
	}
	src, dir := filepath.Join(t.TempDir(), "plugin"), t.TempDir()
	path := filepath.Join(dir, PluginName)
	put(t, path, string(self), 0o755)
	cmd := exec.Command(path, "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	defer func() { _ = cmd.Process.Kill() }()
	if err := os.WriteFile(path, nil, 0o755); !errors.Is(err, unix.ETXTBSY) {
		t.Fatalf("the plugin is not being executed: %v", err)
	}
	put(t, src, "new", 0o755)
	install(t, src, dir)
	want(t, dir, "new")
}

func TestKilledInstallationLeavesTheOldPlugin(t *testing.T) {
	src, dir := filepath.Join(t.TempDir(), "plugin"), t.TempDir()
	path := filepath.Join(dir, PluginName)
	put(t, src, "old", 0o755)
	install(t, src, dir)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), killedEnv+"="+path)
	var exit *exec.ExitError
	if err := cmd.Run(); !errors.As(err, &exit) || exit.ExitCode() != -1 {
		t.Fatalf("the installer was not killed: %v", err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "old" {
		t.Errorf("after the kill the plugin is %q (%v)", got, err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 2 {
		t.Errorf("the kill came too early or too late: %v", entries)
	}
	// The next one clears away what was left, also when the plugin itself need not be replaced.
	put(t, filepath.Join(dir, "."+PluginName+"-mine"), "", 0o600)
	if install(t, src, dir) {
		t.Error("an identical file was installed again")
	}
	if err := os.Remove(filepath.Join(dir, "."+PluginName+"-mine")); err != nil {
		t.Error("a file that is not ours was removed")
	}
	want(t, dir, "old")
}

func TestBPFFSIsMountedOnlyWhereThereIsNone(t *testing.T) {
	testutil.NeedKernel(t)
	const dir = "/sys/fs/bpf"
	if mounted, err := BPFFS(dir); err != nil || mounted {
		t.Errorf("on a BPF filesystem: mounted %t, %v", mounted, err)
	}
	if err := unix.Unmount(dir, 0); err != nil {
		t.Fatal(err)
	}
	if mounted, err := BPFFS(dir); err != nil || !mounted {
		t.Errorf("on the bare directory: mounted %t, %v", mounted, err)
	}
	if is, err := isBPFFS(dir); err != nil || !is {
		t.Errorf("is a BPF filesystem: %t, %v", is, err)
	}
	if mounted, err := BPFFS(dir); err != nil || mounted {
		t.Errorf("the second time: mounted %t, %v", mounted, err)
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(mounts, []byte(" "+dir+" bpf ")); n != 1 {
		t.Errorf("%d BPF filesystems are mounted at %s:\n%s", n, dir, mounts)
	}
	if _, err := BPFFS(filepath.Join(t.TempDir(), "none")); err == nil || !strings.Contains(err.Error(), "CONFIG_BPF_SYSCALL") {
		t.Errorf("without a directory: %v", err)
	}
}
