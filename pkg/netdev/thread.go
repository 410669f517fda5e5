package netdev

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

var (
	// ErrNoThread: the NAPI has no thread (any more).
	ErrNoThread = errors.New("the NAPI has no thread")
	// ErrThreadHidden: under the number that the kernel gives there is another process here, or none. The number is that
	// of the host's PID namespace.
	ErrThreadHidden = errors.New("the NAPI's thread cannot be seen: that needs the host's PID namespace")
)

// isKernelThread is the bit PF_KTHREAD of a thread's flags.
const isKernelThread = 0x00200000

// ThreadAffinity returns on which of the CPUs that are online the thread of a NAPI may run (sched_getaffinity). n is as
// [Handle.NAPI] returned it. [ErrNoThread] when it has none, [ErrThreadHidden] outside the host's PID namespace.
func (h *Handle) ThreadAffinity(n NAPI) (CPUs, error) {
	cpus, err := h.threadAffinity(n)
	if err != nil {
		return "", fmt.Errorf("read affinity of the thread of NAPI %d: %w", n.ID, err)
	}
	return cpus, nil
}

// SetThreadAffinity has the thread of a NAPI run on the given CPUs only (sched_setaffinity), and reads that back. When
// one of them is not online nothing is changed. The errors are those of [Handle.ThreadAffinity]; also, it needs
// CAP_SYS_NICE (EPERM).
func (h *Handle) SetThreadAffinity(n NAPI, cpus CPUs) error {
	if err := h.setThreadAffinity(n, cpus); err != nil {
		return fmt.Errorf("set affinity of the thread of NAPI %d to %s: %w", n.ID, cpus, err)
	}
	return nil
}

func (h *Handle) setThreadAffinity(n NAPI, cpus CPUs) error {
	before, err := h.threadAffinity(n)
	if err != nil {
		return err
	}
	if err := h.writeThreadAffinity(n, cpus); err != nil {
		return err
	}
	now, err := h.threadAffinity(n)
	if err == nil && now != cpus {
		// The kernel leaves out what is not online.
		err = errors.Join(fmt.Errorf("%s of these are online", now), h.writeThreadAffinity(n, before))
	}
	return err
}

func (h *Handle) threadAffinity(n NAPI) (CPUs, error) {
	if err := h.checkThread(n); err != nil {
		return "", err
	}
	set := unix.NewCPUSet(maxCPU + 1)
	if err := unix.SchedGetaffinityDynamic(n.PID, set); err != nil {
		return "", noThread(err)
	}
	var all []int
	for cpu := range maxCPU + 1 {
		if set.IsSet(cpu) {
			all = append(all, cpu)
		}
	}
	return makeCPUs(all), nil
}

func (h *Handle) writeThreadAffinity(n NAPI, cpus CPUs) error {
	all, err := cpus.numbers()
	if err != nil {
		return err
	}
	set := unix.NewCPUSet(maxCPU + 1)
	for _, cpu := range all {
		set.Set(cpu)
	}
	if err := h.checkThread(n); err != nil {
		return err
	}
	switch err := unix.SchedSetaffinityDynamic(n.PID, set); {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w (CAP_SYS_NICE is needed)", err)
	case errors.Is(err, unix.EINVAL):
		return fmt.Errorf("%w (none of these CPUs is online?)", err)
	default:
		return noThread(err)
	}
}

func noThread(err error) error {
	if errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("%w: %w", ErrNoThread, err)
	}
	return err
}

// checkThread returns an error unless the kernel's number of a NAPI's thread is that thread here. A number is another
// process's in another PID namespace, and may become one when the thread has ended; no process but the kernel's own
// threads has PF_KTHREAD, and only those of NAPIs such a name.
func (h *Handle) checkThread(n NAPI) error {
	if n.PID == 0 {
		return ErrNoThread
	}
	stat, err := os.ReadFile(filepath.Join(h.procfs, strconv.Itoa(n.PID), "stat"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("%w: no process here has its number %d", ErrThreadHidden, n.PID)
	}
	if err != nil {
		return err
	}
	// "7 (napi/ens1-12) S 2 ...": number, name, which may have any character in it, state, and the flags as the seventh.
	line := string(stat)
	open, end := strings.IndexByte(line, '('), strings.LastIndexByte(line, ')')
	if open < 0 || end < open {
		return fmt.Errorf("%q is no status of a process", line)
	}
	name, fields := line[open+1:end], strings.Fields(line[end+1:])
	if len(fields) < 7 {
		return fmt.Errorf("%q is no status of a process", line)
	}
	flags, err := strconv.ParseUint(fields[6], 10, 64)
	if err != nil {
		return fmt.Errorf("%q is no status of a process", line)
	}
	if flags&isKernelThread == 0 || !isThreadName(name, n.ID) {
		return fmt.Errorf("%w: the number %d is that of %q here", ErrThreadHidden, n.PID, name)
	}
	return nil
}

// isThreadName reports whether a kernel thread's name is that of a NAPI's, napi/<device>-<id>. The device may have had
// another name when the thread was made, and the NAPI no id yet.
func isThreadName(name string, id uint32) bool {
	of, is := strings.CutPrefix(name, "napi/")
	dash := strings.LastIndexByte(of, '-')
	return is && dash > 0 && (of[dash+1:] == strconv.FormatUint(uint64(id), 10) || of[dash+1:] == "0")
}
