package install

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// BPFFS mounts a BPF filesystem at dir, which exists, unless there is one. It needs CAP_SYS_ADMIN. In a container it is
// the node's only if dir is a mount with bidirectional propagation.
func BPFFS(dir string) (mounted bool, err error) {
	is, err := isBPFFS(dir)
	if err != nil {
		return false, fmt.Errorf("look for a BPF filesystem at %s: %w (the kernel makes /sys/fs/bpf if it has "+
			"CONFIG_BPF_SYSCALL)", dir, err)
	}
	if is {
		return false, nil
	}
	// Flags and mode are those with which systemd mounts it.
	if err := unix.Mount("bpf", dir, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700"); err != nil {
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
			return false, fmt.Errorf("mount a BPF filesystem at %s: %w (only a privileged container may; or mount it on the "+
				"node: mount -t bpf bpf %s)", dir, err, dir)
		}
		return false, fmt.Errorf("mount a BPF filesystem at %s: %w", dir, err)
	}
	return true, nil
}

func isBPFFS(dir string) (bool, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return false, err
	}
	return st.Type == unix.BPF_FS_MAGIC, nil
}
