package netdev

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/testutil"
)

// threadedNAPI returns a NAPI that has a thread.
func threadedNAPI(t *testing.T, h *Handle) NAPI {
	t.Helper()
	_, n := vethNAPI(t, h)
	must(t, h.SetNAPI(n.ID, NAPISettings{Threaded: new(ThreadedOn)}))
	n, err := h.NAPI(n.ID)
	must(t, err)
	return n
}

func TestThreadOfANAPIIsPinned(t *testing.T) {
	h := open(t)
	n := threadedNAPI(t, h)
	before, err := h.ThreadAffinity(n)
	must(t, err)
	all, err := before.numbers()
	must(t, err)
	if len(all) < 2 {
		t.Skipf("not run: there is one CPU only (%s), to which every thread is pinned", before)
	}
	one := CPUs(strconv.Itoa(all[len(all)-1]))
	must(t, h.SetThreadAffinity(n, one))
	if got, err := h.ThreadAffinity(n); err != nil || got != one {
		t.Errorf("pinned to %s it shows %s, %v", one, got, err)
	}
	var set unix.CPUSet
	must(t, unix.SchedGetaffinity(n.PID, &set))
	if set.Count() != 1 || !set.IsSet(all[len(all)-1]) {
		t.Errorf("pinned to %s the kernel says %v", one, set)
	}
	// The kernel would leave out what is not online and call that a success.
	for _, bad := range []CPUs{one + ",8191", "8191"} {
		if err := h.SetThreadAffinity(n, bad); err == nil || !strings.Contains(err.Error(), "online") {
			t.Errorf("pinning to %s: %v", bad, err)
		}
		if got, err := h.ThreadAffinity(n); err != nil || got != one {
			t.Errorf("after a refusal it runs on %s, %v; want %s", got, err, one)
		}
	}
	must(t, h.SetThreadAffinity(n, before))
	if got, err := h.ThreadAffinity(n); err != nil || got != before {
		t.Errorf("put back to %s it shows %s, %v", before, got, err)
	}
}

// The device's name in that of a thread is the one that it had when the thread was made.
func TestThreadOfARenamedDeviceIsFound(t *testing.T) {
	h := open(t)
	n := threadedNAPI(t, h)
	ip(t, "link", "set", "nvnear", "name", "nvother")
	defer ip(t, "link", "set", "nvother", "name", "nvnear")
	if cpus, err := h.ThreadAffinity(n); err != nil || cpus == "" {
		t.Errorf("affinity %q, %v", cpus, err)
	}
}

func TestThreadThatHasEnded(t *testing.T) {
	h := open(t)
	n := threadedNAPI(t, h)
	must(t, h.SetNAPI(n.ID, NAPISettings{Threaded: new(ThreadedOff)}))
	now, err := h.NAPI(n.ID)
	must(t, err)
	if err := secondOf(h.ThreadAffinity(now)); now.PID == 0 && !errors.Is(err, ErrNoThread) {
		t.Errorf("a NAPI without a thread: %v, want ErrNoThread", err)
	}
	must(t, testutil.SetDown("nvnear"))
	if err := secondOf(h.ThreadAffinity(n)); !errors.Is(err, ErrThreadHidden) {
		t.Errorf("the number of a thread that has ended: %v, want ErrThreadHidden", err)
	}
}

func secondOf(_ CPUs, err error) error { return err }

// A thread's number can be another process's: in another PID namespace, or when the thread has ended.
func TestNoOtherThreadIsTouched(t *testing.T) {
	h := open(t)
	// This thread has the name of a NAPI's, and is none of the kernel's. It ends with the test.
	runtime.LockOSThread()
	own := unix.Gettid()
	must(t, os.WriteFile(fmt.Sprintf("/proc/self/task/%d/comm", own), []byte("napi/ens1-12"), 0))
	var before, after unix.CPUSet
	must(t, unix.SchedGetaffinity(own, &before))
	for name, n := range map[string]NAPI{
		"a thread that is not the kernel's":   {ID: 12, PID: own},
		"kthreadd, which has another name":    {ID: 12, PID: 2},
		"a number that nobody has":            {ID: 12, PID: 1<<22 + 1},
		"a number that cannot be a process's": {ID: 12, PID: -1},
	} {
		if err := secondOf(h.ThreadAffinity(n)); !errors.Is(err, ErrThreadHidden) {
			t.Errorf("%s: read: %v, want ErrThreadHidden", name, err)
		}
		if err := h.SetThreadAffinity(n, "0"); !errors.Is(err, ErrThreadHidden) {
			t.Errorf("%s: set: %v, want ErrThreadHidden", name, err)
		}
		if err := h.writeThreadAffinity(n, "0"); !errors.Is(err, ErrThreadHidden) {
			t.Errorf("%s: written without a look: %v, want ErrThreadHidden", name, err)
		}
	}
	must(t, unix.SchedGetaffinity(own, &after))
	if before != after {
		t.Errorf("a foreign thread's affinity changed from %v to %v", before, after)
	}
}

func TestNamesOfNAPIThreads(t *testing.T) {
	proc := t.TempDir()
	h := &Handle{procfs: proc}
	must(t, os.Mkdir(filepath.Join(proc, "7"), 0o700))
	check := func(stat string) error {
		must(t, os.WriteFile(filepath.Join(proc, "7", "stat"), []byte(stat), 0o600))
		return h.checkThread(NAPI{ID: 12, PID: 7})
	}
	const rest = " S 2 0 0 0 -1 2129984 0 0"
	for _, name := range []string{"napi/ens1-12", "napi/a-b) 1-12", "napi/ens1-0"} {
		if err := check("7 (" + name + ")" + rest); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, stat := range []string{
		"7 (napi/ens1-13)" + rest, "7 (napi/ens1-112)" + rest, "7 (napi/-12)" + rest, "7 (xnapi/ens1-12)" + rest,
		"7 (napi/ens1-12) S 2 0 0 0 -1 4194304 0 0", "7 (napi/ens1-12) S 2", "7 (napi/ens1-12) S 2 0 0 0 -1 x", "", ")(",
	} {
		if err := check(stat); err == nil {
			t.Errorf("%q is taken for the thread of NAPI 12", stat)
		}
	}
}

func TestNumbersOfCPUs(t *testing.T) {
	if got, err := CPUs("0-2,5").numbers(); err != nil || !slices.Equal(got, []int{0, 1, 2, 5}) {
		t.Errorf("numbers of 0-2,5: %v, %v", got, err)
	}
}
