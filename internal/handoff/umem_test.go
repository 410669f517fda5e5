package handoff_test

import (
	"net"
	"os"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/handoff/handofftest"
	"github.com/afxdp-project/afxdp/internal/wire"
)

// What a pod sends as its UMEM is refused with the reason, is not charged to the agent, and leaves the connection
// usable.
func TestBadUMEMIsRefusedWithTheReason(t *testing.T) {
	n := handofftest.New(t)
	p := n.NewPod("a")
	p.Add(handofftest.DefaultSettings, 0)
	path := n.Serve("x", 0)
	c := connect(t, p, path)

	opened := func(f *os.File, err error) int {
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		return int(f.Fd())
	}
	good := func() int { return memfd(t, umemSize, umemSize, goodSeals) }
	punched := func(offset int64) int {
		fd := good()
		if err := unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, offset, 4096); err != nil {
			t.Fatal(err)
		}
		return fd
	}
	pipe, pipeEnd, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer pipeEnd.Close()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: t.TempDir() + "/s", Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	const holes = "not all pages of the memfd are present"
	for _, test := range []struct {
		title string
		fd    int
		m     wire.UMEM
		code  wire.Code
		words string
	}{
		{"no seals", memfd(t, umemSize, umemSize, 0), goodUMEM, wire.CodeInvalid, "must be sealed with F_SEAL_SHRINK and F_SEAL_GROW"},
		{"may shrink", memfd(t, umemSize, umemSize, unix.F_SEAL_GROW), goodUMEM, wire.CodeInvalid, "its seals are 0x4"},
		{"may grow", memfd(t, umemSize, umemSize, unix.F_SEAL_SHRINK), goodUMEM, wire.CodeInvalid, "its seals are 0x2"},
		{"sealed against writing", memfd(t, umemSize, umemSize, goodSeals|unix.F_SEAL_WRITE), goodUMEM, wire.CodeInvalid, "sealed against writing"},
		{"sealed against later writing", memfd(t, umemSize, umemSize, goodSeals|unix.F_SEAL_FUTURE_WRITE), goodUMEM, wire.CodeInvalid, "sealed against writing"},
		{"smaller than claimed", memfd(t, 8192, 8192, goodSeals), goodUMEM, wire.CodeInvalid, "the memfd has 8192 bytes, the message says 1048576"},
		{"larger than claimed", memfd(t, 2*umemSize, 2*umemSize, goodSeals), goodUMEM, wire.CodeInvalid, "the memfd has 2097152 bytes"},
		{"claims all there is", good(), wire.UMEM{Length: 1 << 63, FrameSize: 4096}, wire.CodeInvalid, "message says 9223372036854775808"},
		{"claims and has a terabyte", memfd(t, 1<<40, 0, goodSeals), wire.UMEM{Length: 1 << 40, FrameSize: 4096}, wire.CodeLimit, "more than the pool's limit of 67108864"},
		{"nothing", memfd(t, 0, 0, goodSeals), wire.UMEM{FrameSize: 4096}, wire.CodeInvalid, "0 bytes are no multiple of the page size"},
		{"part of a page", memfd(t, 5000, 5000, goodSeals), wire.UMEM{Length: 5000, FrameSize: 4096}, wire.CodeInvalid, "no multiple of the page size"},
		{"regular file", opened(os.Create(t.TempDir() + "/f")), goodUMEM, wire.CodeInvalid, "no memfd"},
		{"tmpfs file", opened(os.Create("/run/f")), goodUMEM, wire.CodeInvalid, "must be sealed"},
		{"directory", opened(os.Open("/run")), goodUMEM, wire.CodeInvalid, "no memfd"},
		{"device", opened(os.Open("/dev/zero")), goodUMEM, wire.CodeInvalid, "no memfd"},
		{"pipe", opened(pipe, nil), goodUMEM, wire.CodeInvalid, "no memfd"},
		{"socket", opened(l.File()), goodUMEM, wire.CodeInvalid, "no memfd"},
		{"not populated", memfd(t, umemSize, 0, goodSeals), goodUMEM, wire.CodeInvalid, holes},
		{"half populated", memfd(t, umemSize, umemSize/2, goodSeals), goodUMEM, wire.CodeInvalid, holes},
		{"first page punched", punched(0), goodUMEM, wire.CodeInvalid, holes},
		{"last page punched", punched(umemSize - 4096), goodUMEM, wire.CodeInvalid, holes},
		{"frame size too small", good(), wire.UMEM{Length: umemSize, FrameSize: 1024}, wire.CodeInvalid, "frame size 1024 is out of range: 2048 to 4096"},
		{"frame size 0", good(), wire.UMEM{Length: umemSize}, wire.CodeInvalid, "frame size 0 is out of range"},
		{"frame size above a page", good(), wire.UMEM{Length: umemSize, FrameSize: 8192}, wire.CodeInvalid, "frame size 8192 is out of range"},
		{"frame size no power of two", good(), wire.UMEM{Length: umemSize, FrameSize: 3000}, wire.CodeInvalid, "no power of two"},
		{"headroom", good(), wire.UMEM{Length: umemSize, FrameSize: 4096, Headroom: 4000}, wire.CodeInvalid, "headroom: 4000 leaves no room"},
		{"headroom that overflows", good(), wire.UMEM{Length: umemSize, FrameSize: 4096, Headroom: 1<<32 - 1}, wire.CodeInvalid, "leaves no room"},
		{"zero-copy required", good(), wire.UMEM{Length: umemSize, FrameSize: 4096, Flags: wire.UMEMZeroCopyRequire}, wire.CodeUnsupported, "not all devices of the pod have it: hnear"},
	} {
		before := bytesOf(t, test.fd)
		answer, _ := c.ask(&test.m, test.fd)
		t.Run(test.title, func(t *testing.T) {
			(&conn{tb: t}).isError(answer, test.code, test.words)
			if after := bytesOf(t, test.fd); after != before {
				t.Errorf("the file had %d bytes in memory, now %d: the agent has made pages", before, after)
			}
		})
	}
	c.umem()
	c.open(0)
}

// Huge pages that a memfd lacks are not taken from the node for it: neither made nor reserved.
func TestMissingHugePagesAreNotReserved(t *testing.T) {
	n := handofftest.New(t)
	p := n.NewPod("a")
	p.Add(handofftest.DefaultSettings, 0)
	c := connect(t, p, n.Serve("x", 0))
	fd, err := unix.MemfdCreate("huge", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_HUGETLB|unix.MFD_HUGE_2MB)
	if err != nil {
		t.Skipf("not run: the kernel has no huge pages of 2 MiB: %v", err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, 2<<20); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, goodSeals); err != nil {
		t.Fatal(err)
	}
	// Where none is free a reservation would fail, with another error; where some are it would show.
	before := reservedHugePages(t)
	c.refused(&wire.UMEM{Length: 2 << 20, FrameSize: 4096}, fd, wire.CodeInvalid, "not all pages of the memfd are present")
	if after := reservedHugePages(t); after != before {
		t.Errorf("reserved huge pages: %s, now %s", before, after)
	}
}

func reservedHugePages(t *testing.T) string {
	b, err := os.ReadFile("/sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Field case 15: the number of frames is the pool's to limit, as the kernel keeps a buffer of its own for each.
func TestFramesAreLimited(t *testing.T) {
	n := handofftest.New(t)
	p := n.NewPod("a")
	settings := handofftest.DefaultSettings
	settings.MaxFrames = 511
	p.Add(settings, 0)
	c := connect(t, p, n.Serve("x", 0))
	c.refused(&wire.UMEM{Length: umemSize, FrameSize: 2048}, memfd(t, umemSize, umemSize, goodSeals), wire.CodeLimit,
		"512 frames are more than the pool's limit of 511")
	// Packed as close as unaligned frames can be, not as few as fit into pages.
	c.refused(&wire.UMEM{Length: 2 * umemSize, FrameSize: 3000, Flags: wire.UMEMUnaligned},
		memfd(t, 2*umemSize, 2*umemSize, goodSeals), wire.CodeLimit, "699 frames are more")
	c.umem()
}

// While the agent registers a UMEM the pod punches holes into it. Whatever comes of it, the agent makes no page.
func TestRacingHolesAreNeverFilledByTheAgent(t *testing.T) {
	n := handofftest.New(t)
	p := n.NewPod("a")
	p.Add(handofftest.DefaultSettings, 0)
	path := n.Serve("x", 0)
	var taken, refused int
	for round := range 40 {
		fd := memfd(t, umemSize, umemSize, goodSeals)
		c := connect(t, p, path)
		var punching atomic.Bool
		done := make(chan struct{})
		go func() {
			defer close(done)
			for offset := int64(0); offset < umemSize; offset += 4096 {
				punching.Store(true)
				if err := unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, umemSize-4096-offset, 4096); err != nil {
					t.Error(err)
				}
			}
		}()
		for round%2 == 0 && !punching.Load() {
		}
		answer, _ := c.ask(&goodUMEM, fd)
		if _, ok := answer.(*wire.UMEMOK); ok {
			taken++
		} else {
			refused++
			c.isError(answer, wire.CodeInvalid, "not all pages")
		}
		<-done
		if left := bytesOf(t, fd); left != 0 {
			t.Fatalf("all was punched out, yet %d bytes are in memory: the agent has made pages", left)
		}
		_, _ = c.Close(), unix.Close(fd)
	}
	t.Logf("%d were registered, %d refused", taken, refused)
}
