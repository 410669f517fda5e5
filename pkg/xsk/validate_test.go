package xsk_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/pkg/xsk"
)

// Field case 15: a bad frame size, ring size or headroom is refused before the kernel sees it, with the rule.
func TestBadUMEMIsRefusedWithTheRule(t *testing.T) {
	for _, tc := range []struct {
		name string
		c    xsk.UMEMConfig
		rule string
	}{
		{"no frames", xsk.UMEMConfig{FrameSize: 4096}, "at least 1"},
		{"frame too small", xsk.UMEMConfig{Frames: 1, FrameSize: 1024}, "2048 to 4096"},
		{"frame too large", xsk.UMEMConfig{Frames: 1, FrameSize: 8192}, "2048 to 4096"},
		{"frame above the page size on huge pages", xsk.UMEMConfig{Frames: 1, FrameSize: 8192, HugePageSize: 2 << 20}, "page size"},
		{"frame no power of two", xsk.UMEMConfig{Frames: 1, FrameSize: 3000}, "power of two"},
		{"unaligned frame too small", xsk.UMEMConfig{Frames: 1, FrameSize: 2047, Unaligned: true}, "2048 to 4096"},
		{"headroom eats the frame", xsk.UMEMConfig{Frames: 1, FrameSize: 2048, Headroom: 2048 - 256}, "leaves no room"},
		{"headroom overflows", xsk.UMEMConfig{Frames: 1, FrameSize: 2048, Headroom: 1<<32 - 1}, "leaves no room"},
		{"huge page no power of two", xsk.UMEMConfig{Frames: 1, FrameSize: 2048, HugePageSize: 3 << 20}, "power of two"},
		{"huge page not huge", xsk.UMEMConfig{Frames: 1, FrameSize: 2048, HugePageSize: 4096}, "above the page size"},
		{"huge page negative", xsk.UMEMConfig{Frames: 1, FrameSize: 2048, HugePageSize: -1 << 21}, "power of two"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := noSocket()
			for what, err := range map[string]error{
				"Validate": tc.c.Validate(), "RegisterUMEM": s.RegisterUMEM(nil, tc.c), "NewUMEM": newUMEM(tc.c),
			} {
				if err == nil || !strings.Contains(err.Error(), tc.rule) {
					t.Errorf("%s: %v; want the rule %q", what, err, tc.rule)
				}
			}
		})
	}
	for _, c := range []xsk.UMEMConfig{
		{Frames: 1, FrameSize: 2048}, {Frames: 1, FrameSize: 4096, Headroom: 4096 - 257},
		{Frames: 1, FrameSize: 3000, Unaligned: true}, {Frames: 1, FrameSize: 4096, Unaligned: true, HugePageSize: 1 << 30},
	} {
		if err := c.Validate(); err != nil {
			t.Errorf("%+v is refused: %v", c, err)
		}
	}
}

func newUMEM(c xsk.UMEMConfig) error {
	u, err := xsk.NewUMEM(c)
	if err == nil {
		err = u.Close()
	}
	return err
}

// noSocket returns a Socket whose descriptor is standard input, so that the kernel would answer ENOTSOCK.
func noSocket() *xsk.Socket { return &xsk.Socket{} }

func TestBadRingSizesAreRefusedWithTheRule(t *testing.T) {
	for _, tc := range []struct {
		name  string
		sizes xsk.RingSizes
		rules []string
	}{
		{"none", xsk.RingSizes{}, []string{"rx and tx ring size: both 0"}},
		{"only fill and completion", xsk.RingSizes{Fill: 8, Completion: 8}, []string{"rx and tx ring size: both 0"}},
		{"fill alone", xsk.RingSizes{Fill: 8, RX: 8}, []string{"has both or neither"}},
		{"completion alone", xsk.RingSizes{Completion: 8, TX: 8}, []string{"has both or neither"}},
		{"no power of two", xsk.RingSizes{Fill: 100, Completion: 64, RX: 3, TX: 64},
			[]string{"fill ring size: 100 is no power of two", "rx ring size: 3 is no power of two"}},
		{"too large", xsk.RingSizes{Fill: 64, Completion: 1 << 17, RX: 64, TX: 1 << 31},
			[]string{"completion ring size: 131072 is out of range: 0 to 65536", "tx ring size"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := noSocket()
			_, mapErr := s.Map(tc.sizes)
			for what, err := range map[string]error{
				"Validate": tc.sizes.Validate(), "SetRings": s.SetRings(tc.sizes), "Map": mapErr,
			} {
				for _, rule := range tc.rules {
					if err == nil || !strings.Contains(err.Error(), rule) {
						t.Errorf("%s: %v; want the rule %q", what, err, rule)
					}
				}
			}
		})
	}
	for _, sizes := range []xsk.RingSizes{
		{RX: 1}, {TX: 65536}, {Fill: 65536, Completion: 1, RX: 2, TX: 4}, {RX: 64, TX: 64},
	} {
		if err := sizes.Validate(); err != nil {
			t.Errorf("%+v is refused: %v", sizes, err)
		}
	}
}

func TestMemoryShorterThanTheUMEMIsRefused(t *testing.T) {
	err := noSocket().RegisterUMEM(make([]byte, 4096), xsk.UMEMConfig{Frames: 4, FrameSize: 2048})
	if err == nil || !strings.Contains(err.Error(), "need 8192 bytes, there are 4096") {
		t.Errorf("4 frames of 2048 in 4096 bytes: %v", err)
	}
}

func TestFramesDoNotOverlapNorCrossAPage(t *testing.T) {
	for _, c := range []xsk.UMEMConfig{
		{Frames: 100, FrameSize: 2048},
		{Frames: 100, FrameSize: 4096},
		{Frames: 100, FrameSize: 2049, Unaligned: true},
		{Frames: 100, FrameSize: 3000, Unaligned: true},
		{Frames: 5000, FrameSize: 3000, Unaligned: true, HugePageSize: 2 << 20},
		{Frames: 1, FrameSize: 2048, HugePageSize: 2 << 20},
	} {
		page := uint64(os.Getpagesize())
		if c.HugePageSize != 0 {
			page = uint64(c.HugePageSize)
		}
		size := uint64(c.FrameSize)
		if c.Length()%page != 0 {
			t.Errorf("%+v: length %d is no multiple of the page size", c, c.Length())
		}
		for i := range c.Frames {
			addr := c.FrameAddr(i)
			if i > 0 && addr < c.FrameAddr(i-1)+size {
				t.Fatalf("%+v: frame %d at %d overlaps the one before", c, i, addr)
			}
			if addr/page != (addr+size-1)/page || addr+size > c.Length() {
				t.Fatalf("%+v: frame %d at %d crosses a page or the end %d", c, i, addr, c.Length())
			}
			packet := c.PacketAddr(addr, 300)
			if c.FrameOf(packet) != addr || c.Offset(packet) != addr+300 {
				t.Fatalf("%+v: packet at %#x: frame %#x, offset %#x; want %#x, %#x",
					c, packet, c.FrameOf(packet), c.Offset(packet), addr, addr+300)
			}
		}
	}
}

func TestDefaultFrameIsAPageOfAtMost4096(t *testing.T) {
	if c := (xsk.UMEMConfig{Frames: 1}).WithDefaults(); int(c.FrameSize) != min(os.Getpagesize(), 4096) {
		t.Errorf("default frame size: %d", c.FrameSize)
	}
}

func TestMissingHugePagesAreExplained(t *testing.T) {
	// More than any machine that runs tests has free.
	err := newUMEM(xsk.UMEMConfig{Frames: 1 << 28, FrameSize: 4096, HugePageSize: 1 << 30})
	var e *xsk.Error
	if !errors.As(err, &e) || !strings.Contains(e.Advice, "huge pages of 1073741824 bytes") {
		t.Errorf("a tebibyte of huge pages: %v; want advice", err)
	}
	err = newUMEM(xsk.UMEMConfig{Frames: 1, FrameSize: 2048, HugePageSize: 8192})
	if !errors.Is(err, unix.ENODEV) || !strings.Contains(err.Error(), "no huge pages of 8192 bytes") {
		t.Errorf("huge pages of a size that no machine has: %v; want advice", err)
	}
}

func TestUMEMIsSealedAndPresent(t *testing.T) {
	u, err := xsk.NewUMEM(xsk.UMEMConfig{Frames: 9, FrameSize: 2048})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		for range 2 { // closing twice is harmless
			if err := u.Close(); err != nil {
				t.Error(err)
			}
		}
	}()
	seals, err := unix.FcntlInt(uintptr(u.FD()), unix.F_GET_SEALS, 0)
	if err != nil || seals&(unix.F_SEAL_SHRINK|unix.F_SEAL_GROW) != unix.F_SEAL_SHRINK|unix.F_SEAL_GROW || seals&unix.F_SEAL_WRITE != 0 {
		t.Errorf("seals %#x, %v; want shrink and grow, not write", seals, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(u.FD(), &st); err != nil {
		t.Fatal(err)
	}
	if st.Size != 5*4096 || st.Blocks*512 < st.Size {
		t.Errorf("9 frames of 2048 bytes: file of %d bytes, %d of them there; want 20480", st.Size, st.Blocks*512)
	}
	if len(u.Bytes()) != 5*4096 {
		t.Errorf("%d bytes are mapped, want 20480", len(u.Bytes()))
	}
}
