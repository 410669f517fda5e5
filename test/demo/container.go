package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"
)

// containerSpec is what a container runtime is told: what Allocate answered, and where the pod's network is.
type containerSpec struct {
	Netns  string
	Mounts []containerMount
	Env    []string
	Args   []string // the program's, with its name first
}

type containerMount struct {
	From, To string
	ReadOnly bool
}

// memlock is the memory-lock limit that pods usually have, in bytes. UMEM must not need more.
const memlock = 64 << 10

// containerMain turns this process, which the node has started in mount, PID and IPC namespaces of their own, into the
// container's program. It returns only on failure.
func containerMain() error {
	// Namespaces and rights are a thread's; the program takes those of the thread that starts it.
	runtime.LockOSThread()
	unix.CloseOnExec(3)
	var spec containerSpec
	if err := json.NewDecoder(os.NewFile(3, "spec")).Decode(&spec); err != nil {
		return fmt.Errorf("read what to do: %w", err)
	}
	if err := enterNetns(spec.Netns); err != nil {
		return err
	}
	if err := changeRoot(&spec); err != nil {
		return err
	}
	limit := &unix.Rlimit{Cur: memlock, Max: memlock}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, limit); err != nil {
		return fmt.Errorf("limit locked memory: %w", err)
	}
	if err := dropRights(); err != nil {
		return err
	}
	err := unix.Exec(spec.Args[0], spec.Args, spec.Env)
	return fmt.Errorf("run %s: %w", spec.Args[0], err)
}

func enterNetns(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		err = errors.Join(unix.Setns(fd, unix.CLONE_NEWNET), unix.Close(fd))
	}
	if err != nil {
		return fmt.Errorf("enter the pod's network namespace: %w", err)
	}
	return nil
}

// changeRoot makes a root of nothing but the program, /dev/null, /proc and the mounts that were asked for, and lets go
// of the node's.
func changeRoot(spec *containerSpec) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("tmpfs", rootfs, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755,size=64k"); err != nil {
		return fmt.Errorf("mount the container's root: %w", err)
	}
	program := spec.Args[0]
	mounts := append([]containerMount{
		{From: filepath.Join(binDir, filepath.Base(program)), To: program, ReadOnly: true},
		{From: "/dev/null", To: "/dev/null"},
	}, spec.Mounts...)
	for _, m := range mounts {
		if err := m.mount(); err != nil {
			return err
		}
	}
	proc := filepath.Join(rootfs, "proc")
	if err := os.Mkdir(proc, 0o555); err != nil {
		return err
	}
	if err := unix.Mount("proc", proc, "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc in the container: %w", err)
	}
	// The new root is put over the old one, which is then taken from below.
	if err := unix.Chdir(rootfs); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("change the root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("let go of the node's root: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return err
	}
	flags := uintptr(unix.MS_REMOUNT | unix.MS_BIND | unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV)
	if err := unix.Mount("", "/", "", flags, ""); err != nil {
		return fmt.Errorf("make the container's root read-only: %w", err)
	}
	return nil
}

func (m containerMount) mount() error {
	info, err := os.Stat(m.From)
	if err != nil {
		return err
	}
	to := filepath.Join(rootfs, m.To)
	parent, flags := to, uintptr(0)
	if !info.IsDir() {
		parent = filepath.Dir(to)
	}
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	if !info.IsDir() {
		if err := os.WriteFile(to, nil, 0o444); err != nil {
			return err
		}
	}
	if m.ReadOnly {
		flags = unix.MS_RDONLY
	}
	return bind(m.From, to, flags)
}

// dropRights makes the calling thread one of an ordinary user's without any capability, for good.
func dropRights() error {
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("clear ambient capabilities: %w", err)
	}
	if err := boundCapabilities(); err != nil {
		return err
	}
	if err := unix.Setgroups(nil); err != nil {
		return fmt.Errorf("clear groups: %w", err)
	}
	if err := unix.Setresgid(podUID, podUID, podUID); err != nil {
		return fmt.Errorf("set gid: %w", err)
	}
	if err := unix.Setresuid(podUID, podUID, podUID); err != nil {
		return fmt.Errorf("set uid: %w", err)
	}
	// The change of the uid clears the effective and the permitted set, not the inheritable one.
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if err := unix.Capset(&header, &none[0]); err != nil {
		return fmt.Errorf("clear capabilities: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	return nil
}

// boundCapabilities drops all capabilities but those in keep from the calling thread's bounding set.
func boundCapabilities(keep ...uintptr) error {
	for c := uintptr(0); ; c++ {
		if slices.Contains(keep, c) {
			continue
		}
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) && c > 0 {
			return nil // beyond the last one
		}
		if err != nil {
			return fmt.Errorf("drop capability %d from the bounding set: %w", c, err)
		}
	}
}
