//go:build vm

package vm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/afxdp-project/afxdp/test/vm/initramfs"
	"github.com/afxdp-project/afxdp/test/vm/report"
)

// kernel is one that hack/vm-setup.sh has got.
type kernel struct {
	class   string
	version string
	dir     string
}

// classes are the kernels of the matrix.
var classes = []string{"6.1", "6.12", "6.18", "newest"}

// modules are what the cards need.
var modules = []string{"virtio_pci", "virtio_net", "igb", "veth"}

// cacheDir is where hack/vm-setup.sh leaves what it gets.
func cacheDir() string {
	if dir := os.Getenv("AFXDP_VM_CACHE"); dir != "" {
		return dir
	}
	base := os.Getenv("XDG_CACHE_HOME")
	if base == "" {
		base = filepath.Join(os.Getenv("HOME"), ".cache")
	}
	return filepath.Join(base, "afxdp-vm")
}

func qemuPath() string { return filepath.Join(cacheDir(), "qemu/qemu") }

// have reports whether hack/vm-setup.sh has left something in the cache. missing is why it could not.
func have(name string) (missing string, err error) {
	path := filepath.Join(cacheDir(), name)
	if _, err := os.Stat(path); err == nil {
		return "", nil
	}
	reason, err := os.ReadFile(path + ".missing")
	if err != nil {
		return "", fmt.Errorf("neither %s is there nor why it is not; run hack/vm-setup.sh first", path)
	}
	return strings.TrimSpace(string(reason)), nil
}

// findKernel returns the kernel of a class. missing says why it could not be had.
func findKernel(class string) (k kernel, missing string, err error) {
	name := filepath.Join("kernels", class)
	if missing, err := have(name); missing != "" || err != nil {
		return kernel{}, missing, err
	}
	dir := filepath.Join(cacheDir(), name)
	version, err := os.ReadFile(filepath.Join(dir, "version"))
	if err != nil {
		return kernel{}, "", err
	}
	return kernel{class, strings.TrimSpace(string(version)), dir}, "", nil
}

// programs are what runs in the guests.
type programs struct{ guest, agent []byte }

// build builds the guests' programs into dir.
func build(ctx context.Context, dir string) (p programs, err error) {
	for _, b := range []struct {
		pkg  string
		data *[]byte
	}{{"./test/vm/guest", &p.guest}, {"./cmd/afxdp-deviceplugin", &p.agent}} {
		out := filepath.Join(dir, filepath.Base(b.pkg))
		cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", out, b.pkg)
		cmd.Dir = "../.."
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if text, err := cmd.CombinedOutput(); err != nil {
			return p, fmt.Errorf("build %s: %w\n%s", b.pkg, err, text)
		}
		if *b.data, err = os.ReadFile(out); err != nil {
			return p, err
		}
	}
	return p, nil
}

// taskOf is what the guest with a kernel is to do.
func taskOf(k kernel) report.Task {
	// Kernels before 6.4 cannot map the rings of a bound socket: there the agent must refuse, and say so.
	task := report.Task{Kernel: k.class, Queues: queues, Agent: k.class == "6.1"}
	for _, c := range cards {
		task.NICs = append(task.NICs, c.NIC)
	}
	return task
}

// writeInitramfsFor writes what a kernel boots into for a task.
func writeInitramfsFor(task report.Task, path string, k kernel, p programs) (err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	loaded, err := initramfs.Modules(filepath.Join(k.dir, "modules"), modules...)
	if err != nil {
		return err
	}
	data, err := json.Marshal(task)
	if err != nil {
		return err
	}
	w := initramfs.NewWriter(f)
	w.CharDevice("dev/console", 5, 1)
	w.CharDevice("dev/null", 1, 3)
	w.CharDevice(report.PortFile, 4, 65)
	w.File("init", 0o755, p.guest)
	w.File(report.TaskFile, 0o644, data)
	if task.Agent {
		w.File(report.AgentFile, 0o755, p.agent)
	}
	for i, m := range loaded {
		w.File(fmt.Sprintf("modules/%02d-%s.ko", i, m.Name), 0o644, m.Data)
	}
	return w.Close()
}
