package xsk_test

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/afxdp-project/afxdp/pkg/xsk"
)

// driverDrops returns what the device's own counters of lost packets say.
func driverDrops(t *testing.T, names ...string) (sum uint64) {
	t.Helper()
	for _, name := range names {
		for _, counter := range []string{"rx_dropped", "tx_dropped", "rx_missed_errors"} {
			b, err := os.ReadFile("/sys/class/net/" + name + "/statistics/" + counter)
			if err != nil {
				t.Fatal(err)
			}
			n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			sum += n
		}
	}
	return sum
}

// Field case 16: what was sent is received or in a counter that says why.
func TestEveryLostPacketIsCounted(t *testing.T) {
	const sent = 64
	for _, tc := range []struct {
		name string
		near portConfig
		want func(xsk.Statistics) bool
	}{
		{"rx ring full", portConfig{sizes: xsk.RingSizes{Fill: 128, Completion: 8, RX: 8}},
			func(s xsk.Statistics) bool { return s.RXRingFull == sent-8 && s.RXDropped == 0 }},
		{"fill ring empty", portConfig{fill: 8},
			func(s xsk.Statistics) bool { return s.FillRingEmpty > 0 && s.RXDropped == sent-8 && s.RXRingFull == 0 }},
		{"none lost", portConfig{}, func(s xsk.Statistics) bool { return s == xsk.Statistics{} }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWire(t, wireConfig{})
			near, far := w.near.open(t, tc.near), w.far.open(t, portConfig{})
			out := packets(sent, 100)
			far.send(out...)
			var st xsk.Statistics
			within(t, func() bool {
				st = near.statistics()
				return uint64(near.rings.RX.Peek(sent))+st.Lost()+driverDrops(t, w.near.name, w.far.name) >= sent
			})
			received := uint64(near.rings.RX.Peek(sent))
			drops := driverDrops(t, w.near.name, w.far.name)
			t.Logf("received %d, driver dropped %d, %+v", received, drops, st)
			// The driver's counter may repeat what the socket counted.
			if received+st.Lost() != sent && received+st.Lost()+drops != sent {
				t.Errorf("sent %d, received %d, lost %d and %d", sent, received, st.Lost(), drops)
			}
			if !tc.want(st) {
				t.Errorf("statistics do not say %q: %+v", tc.name, st)
			}
		})
	}
}

func TestInvalidDescriptorsAreCounted(t *testing.T) {
	w := newWire(t, wireConfig{})
	far := w.far.open(t, portConfig{})
	length := far.umem.Config.Length()
	bad := []xsk.Desc{
		{Addr: length, Len: 64},                              // beyond the UMEM
		{Addr: 4096 - 10, Len: 64},                           // across two frames
		{Addr: 0, Len: 0},                                    // empty
		{Addr: 0, Len: 64, Options: 1 << 20},                 // unknown option
		{Addr: 1 << 50, Len: 64}, {Addr: ^uint64(0), Len: 1}, // no address
	}
	if n := far.rings.TX.Transmit(bad); n != len(bad) {
		t.Fatalf("tx ring took %d of %d descriptors", n, len(bad))
	}
	// Each ends the system call that finds it. Whether its address comes back on the completion ring depends on the
	// kernel's version.
	within(t, func() bool {
		if err := far.socket.WakeTX(); err != nil && !errors.Is(err, xsk.ErrAgain) {
			t.Fatal(err)
		}
		return far.statistics().TXInvalid == uint64(len(bad))
	})
	if st := far.statistics(); st.TXInvalid != uint64(len(bad)) {
		t.Errorf("%d tx descriptors were invalid; statistics: %+v", len(bad), st)
	}
	far.rings.Completion.Release(far.rings.Completion.Peek(len(bad)))
}

// The kernel skips fill ring entries that are no frame and, at least up to Linux 6.18, does not say so.
func TestInvalidFillEntriesDoNotStopReception(t *testing.T) {
	w := newWire(t, wireConfig{})
	near, far := w.near.open(t, portConfig{fill: -1}), w.far.open(t, portConfig{})
	near.rings.Fill.Refill([]uint64{near.umem.Config.Length(), ^uint64(0)})
	near.refill(1)
	far.send(packet(2, 64))
	near.receive(1)
	if st := near.statistics(); st.Lost() != 0 {
		t.Errorf("the packet arrived and yet: %+v", st)
	}
}
