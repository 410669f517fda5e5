package netdev

import (
	"os"
	"testing"

	"github.com/afxdp-project/afxdp/internal/testutil"
)

func TestMain(m *testing.M) { os.Exit(testutil.Main(m)) }

// open opens the calling thread's network namespace for the length of a test.
func open(tb testing.TB) *Handle {
	tb.Helper()
	testutil.NeedKernel(tb)
	h, err := Open()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = h.Close() })
	return h
}

// veth makes the pair nvnear and nvfar and returns the near end.
func veth(tb testing.TB, h *Handle, queues int) Link {
	tb.Helper()
	testutil.Veth(tb, testutil.VethPair{Near: "nvnear", Far: "nvfar", Queues: queues})
	return byName(tb, h, "nvnear")
}

func byName(tb testing.TB, h *Handle, name string) Link {
	tb.Helper()
	l, err := h.LinkByName(name)
	if err != nil {
		tb.Fatal(err)
	}
	return l
}
