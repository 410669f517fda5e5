package xsk_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/afxdp-project/afxdp/pkg/xsk"
)

func sameInOrder(t *testing.T, got, want [][]byte) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d packets arrived, want %d", len(got), len(want))
	}
	for i := range got {
		if !bytes.Equal(got[i], want[i]) {
			t.Fatalf("packet %d arrived as\n%x, want\n%x", i, got[i], want[i])
		}
	}
}

func TestEachQueueReceivesWhatItsPeerSends(t *testing.T) {
	for _, needWakeup := range []bool{false, true} {
		t.Run(fmt.Sprintf("need-wakeup=%v", needWakeup), func(t *testing.T) {
			w := newWire(t, wireConfig{})
			var near, far [queues]*port
			for q := range near {
				c := portConfig{queue: uint32(q), bind: xsk.BindConfig{NeedWakeup: needWakeup}}
				near[q], far[q] = w.near.open(t, c), w.far.open(t, c)
			}
			for q := range near {
				for _, ends := range [][2]*port{{far[q], near[q]}, {near[q], far[q]}} {
					out := packets(50, 60+100*q)
					ends[0].send(out...)
					sameInOrder(t, ends[1].receive(len(out)), out)
				}
			}
			for q := range near {
				for _, p := range []*port{near[q], far[q]} {
					if n := p.rings.RX.Peek(1); n != 0 {
						t.Errorf("queue %d got packets of another one", q)
					}
					if lost := p.statistics().Lost(); lost != 0 {
						t.Errorf("queue %d lost %d packets", q, lost)
					}
				}
			}
		})
	}
}

func TestFrameLayoutsOnTheKernel(t *testing.T) {
	for _, c := range []xsk.UMEMConfig{
		{Frames: 64, FrameSize: 2048},
		{Frames: 64, FrameSize: 4096},
		{Frames: 64, FrameSize: 2048, Headroom: 200},
		{Frames: 64, FrameSize: 2048, Unaligned: true},
		{Frames: 64, FrameSize: 3000, Headroom: 64, Unaligned: true},
	} {
		t.Run(fmt.Sprintf("%d+%d,unaligned=%v", c.FrameSize, c.Headroom, c.Unaligned), func(t *testing.T) {
			w := newWire(t, wireConfig{})
			near, far := w.near.open(t, portConfig{umem: c}), w.far.open(t, portConfig{umem: c})
			for round := range 5 { // each frame is used more than once
				out := packets(32, 1514)
				far.send(out...)
				i := 0
				near.receiveDescs(len(out), func(d xsk.Desc) {
					if !bytes.Equal(near.umem.Packet(d), out[i]) {
						t.Fatalf("round %d: packet %d arrived otherwise", round, i)
					}
					offset := near.umem.Config.Offset(d.Addr) - near.umem.Config.FrameOf(d.Addr)
					if want := uint64(xsk.PacketHeadroom + c.Headroom); offset != want {
						t.Fatalf("packet begins %d bytes into its frame, want %d", offset, want)
					}
					i++
				})
				near.refill(32)
			}
			if st := near.statistics(); st.RXInvalid != 0 || st.Lost() != 0 {
				t.Errorf("statistics: %+v", st)
			}
		})
	}
}

func TestPacketGoesBackFromTheFrameItCameIn(t *testing.T) {
	for _, unaligned := range []bool{false, true} {
		t.Run(fmt.Sprintf("unaligned=%v", unaligned), func(t *testing.T) { packetGoesBack(t, unaligned) })
	}
}

func packetGoesBack(t *testing.T, unaligned bool) {
	w := newWire(t, wireConfig{})
	c := portConfig{umem: xsk.UMEMConfig{Frames: 64, FrameSize: 2048, Unaligned: unaligned}}
	near, far := w.near.open(t, c), w.far.open(t, c)
	free := near.frames.Free()
	out := packets(20, 200)
	far.send(out...)
	descs := make([]xsk.Desc, len(out))
	got := 0
	within(t, func() bool { got += near.rings.RX.Receive(descs[got:]); return got == len(out) })
	if n := near.rings.TX.Transmit(descs[:got]); n != len(out) {
		t.Fatalf("tx ring took %d of %d received packets", n, got)
	}
	near.flush(len(out))
	if near.frames.Free() != free+len(out) {
		t.Errorf("%d frames came back, want %d", near.frames.Free()-free, len(out))
	}
	near.refill(len(out)) // by their frames' addresses, whatever the completion ring said
	sameInOrder(t, far.receive(len(out)), out)
	far.send(out...)
	near.receive(len(out))
	if st := near.statistics(); st.RXInvalid != 0 || st.TXInvalid != 0 {
		t.Errorf("statistics: %+v", st)
	}
}

// Field case 17: a transmit burst of 256 in copy mode arrives and completes whole.
func TestBurstOf256ArrivesAndCompletes(t *testing.T) {
	w := newWire(t, wireConfig{})
	near, far := w.near.open(t, portConfig{}), w.far.open(t, portConfig{})
	out := packets(256, 64)
	far.queuePackets(out...)
	kicks := far.flush(len(out))
	t.Logf("%d system calls", kicks)
	if kicks < 256/32 {
		t.Errorf("%d system calls sent 256 packets; the kernel's budget is 32 a call, so this test shows nothing", kicks)
	}
	sameInOrder(t, near.receive(len(out)), out)
}

// Field case 18: one frame, one call: the peer sees it at once.
func TestSingleFrameReachesThePeerByOneCall(t *testing.T) {
	w := newWire(t, wireConfig{})
	near, far := w.near.open(t, portConfig{}), w.far.open(t, portConfig{})
	best := patience
	for i := range 20 {
		out := packet(uint32(i), 64)
		far.queuePackets(out)
		start := time.Now()
		if err := far.socket.WakeTX(); err != nil {
			t.Fatal(err)
		}
		var d [1]xsk.Desc
		if !within(t, func() bool { return near.rings.RX.Receive(d[:]) == 1 }) {
			t.Fatal("the frame stayed in the ring")
		}
		best = min(best, time.Since(start))
		if got := near.umem.Packet(d[0]); !bytes.Equal(got, out) {
			t.Fatalf("frame %d arrived as %x", i, got)
		}
	}
	t.Logf("the fastest took %v", best)
	if best > 10*time.Millisecond {
		t.Errorf("the fastest of 20 frames took %v, want less than 10ms", best)
	}
}

// Field case 14: a jumbo frame arrives whole as chained descriptors when both program and socket are multi-buffer.
func TestJumboFrameArrivesWhole(t *testing.T) {
	w := newWire(t, wireConfig{mtu: 9000, multiBuffer: true})
	c := portConfig{bind: xsk.BindConfig{MultiBuffer: true}}
	near, far := w.near.open(t, c), w.far.open(t, c)
	for i, size := range []int{60, 3000, 4096, 5000, 9014} {
		out := packet(uint32(i), size)
		far.queuePackets(out)
		far.flush((size + 4095) / 4096)
		var in []byte
		parts := 0
		for done := false; !done; parts++ {
			near.receiveDescs(1, func(d xsk.Desc) {
				in, done = append(in, near.umem.Packet(d)...), !d.Continued()
			})
		}
		t.Logf("%d bytes: %d descriptors", size, parts)
		if !bytes.Equal(in, out) {
			t.Errorf("%d bytes arrived as %d, or otherwise", len(out), len(in))
		}
		if single := size <= near.umem.Config.MaxPacket(); single != (parts == 1) {
			t.Errorf("%d bytes in %d descriptors; one takes %d bytes", size, parts, near.umem.Config.MaxPacket())
		}
	}
}

// Field case 14: where only the program is multi-buffer the jumbo frame is lost, but not silently.
func TestJumboFrameForASingleBufferSocketIsCounted(t *testing.T) {
	w := newWire(t, wireConfig{mtu: 9000, multiBuffer: true})
	near := w.near.open(t, portConfig{})
	far := w.far.open(t, portConfig{bind: xsk.BindConfig{MultiBuffer: true}})
	far.queuePackets(packet(0, 9000), packet(1, 100))
	far.flush(4)
	if got := near.receive(1); len(got[0]) != 100 {
		t.Errorf("%d bytes arrived, want the packet of 100", len(got[0]))
	}
	if st := near.statistics(); st.RXDropped != 1 {
		t.Errorf("statistics: %+v; want 1 dropped", st)
	}
}
