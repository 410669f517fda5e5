package busypoll

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/testutil"
	"github.com/afxdp-project/afxdp/pkg/xsk"
)

func TestEverythingIsForwardedAndNoFrameLost(t *testing.T) {
	const queues, each = 2, 5000
	r := newRig(t, queues, 0)
	var near, far [queues]*Queue
	var sources [queues]source
	var sinks [queues]sink
	for i := range near {
		near[i], far[i] = r.queue(&r.near, i, 256, false), r.queue(&r.far, i, 256, false)
		near[i].Handle = forward
		sources[i] = source{count: each, window: 100, back: &sinks[i].got, size: 60 + 100*i}
		far[i].Generate, far[i].Handle = sources[i].generate, sinks[i].handle
	}
	nearLoop, farLoop := r.loop(Config{}, near[:]...), r.loop(Config{}, far[:]...)
	r.round(nearLoop) // so that there are frames to receive into
	r.until("the return of all packets", func() bool { return sinks[0].got+sinks[1].got == queues*each }, farLoop, nearLoop)
	for i := range near {
		if sinks[i].got != each || sinks[i].wrong != 0 {
			t.Errorf("queue %d: %d packets came back, %d out of order; want %d", i, sinks[i].got, sinks[i].wrong, each)
		}
	}
	for _, l := range []*Loop{nearLoop, farLoop} {
		if left, err := l.Drain(patience); left != 0 || err != nil {
			t.Errorf("%d descriptors did not come back, %v", left, err)
		}
	}
	for i, q := range near {
		r.conserved(q)
		r.conserved(far[i])
		c, bytes := q.Counters(), uint64(each*(60+100*i))
		if c.RXPackets != each || c.TXPackets != each || c.Completed != each || c.RXBytes != bytes || c.TXBytes != bytes {
			t.Errorf("queue %d: counters %+v; want %d packets, %d bytes each way", i, c, each, bytes)
		}
		// A veth never asks for a wakeup to receive.
		if c.RXCalls*64 > c.RXPackets {
			t.Errorf("queue %d: %d system calls to receive %d packets", i, c.RXCalls, c.RXPackets)
		}
		t.Logf("queue %d: %+v", i, c)
	}
}

func TestDroppedPacketsFreeTheirFrames(t *testing.T) {
	const count = 3000
	r := newRig(t, 1, 0)
	near, far := r.queue(&r.near, 0, 256, false), r.queue(&r.far, 0, 256, false)
	handled := 0
	near.Handle = func(_ *Queue, packets []xsk.Desc) int { // sends every other one on
		kept := 0
		for i := range packets {
			if handled++; handled%2 == 0 {
				packets[kept], packets[i] = packets[i], packets[kept]
				kept++
			}
		}
		return kept
	}
	var back sink
	out := source{count: count, window: 100, back: &handled, size: 60}
	far.Generate, far.Handle = out.generate, back.handle
	nearLoop, farLoop := r.loop(Config{Batch: 32}, near), r.loop(Config{}, far)
	r.round(nearLoop)
	r.until("the return of half of the packets", func() bool { return back.got == count/2 }, farLoop, nearLoop)
	for _, l := range []*Loop{nearLoop, farLoop} {
		if left, err := l.Drain(patience); left != 0 || err != nil {
			t.Errorf("%d descriptors did not come back, %v", left, err)
		}
	}
	r.conserved(near)
	r.conserved(far)
	if c := near.Counters(); c.RXPackets != count || c.TXPackets != count/2 {
		t.Errorf("counters %+v", c)
	}
}

// Field cases 17 and 27: a load that only sends completes by itself, also one that is larger than the ring.
func TestTransmitOnlyLoadCompletes(t *testing.T) {
	for _, ring := range []uint32{64, 512} {
		t.Run(fmt.Sprintf("ring of %d", ring), func(t *testing.T) {
			const count = 2000
			r := newRig(t, 1, 0)
			near, far := r.queue(&r.near, 0, ring, false), r.queue(&r.far, 0, 512, false)
			var in sink
			out := source{count: count, size: 200, window: 200, back: &in.got}
			near.Generate, far.Handle = out.generate, in.handle
			nearLoop, farLoop := r.loop(Config{}, near), r.loop(Config{}, far)
			r.round(farLoop)
			r.until("the arrival of all packets", func() bool { return in.got == count }, nearLoop, farLoop)
			r.until("completion of all packets", func() bool { return near.InFlight() == 0 }, nearLoop)
			if in.wrong != 0 {
				t.Errorf("%d packets arrived out of order", in.wrong)
			}
			r.conserved(near)
			nearLoop.publish()
			c := near.Counters()
			if c.Completed != count || c.TXCalls < count/32 || c.TXCalls > count {
				t.Errorf("counters %+v; in copy mode one call sends up to 32", c)
			}
			t.Logf("%+v", c)
		})
	}
}

// Field case 18: one packet is sent by the round that made it.
func TestSinglePacketLeavesAtOnce(t *testing.T) {
	r := newRig(t, 1, 0)
	near, far := r.queue(&r.near, 0, 64, false), r.queue(&r.far, 0, 64, false)
	var in sink
	out := source{count: 1, size: 60}
	near.Generate, far.Handle = out.generate, in.handle
	nearLoop, farLoop := r.loop(Config{}, near), r.loop(Config{}, far)
	r.round(farLoop)
	r.round(nearLoop)
	r.until("its arrival", func() bool { return in.got == 1 }, farLoop)
}

// Whatever the mode, a frame that was put on the ring is on the wire within 10 ms: nearly always, that is, on a machine
// that others use too, and so it is the median that counts, and no frame may take longer than patience.
func TestFrameOnTheRingIsOnTheWireWithin10ms(t *testing.T) {
	for name, c := range map[string]struct {
		busy bool
		also Handler // the loop receives, too
	}{
		"sends only":                      {},
		"receives and sends":              {also: forward},
		"sends only, busy-polling":        {busy: true},
		"receives and sends, busypolling": {busy: true, also: forward},
	} {
		t.Run(name, func(t *testing.T) {
			const count = 21
			r := newRig(t, 1, 0)
			near, far := r.queue(&r.near, 0, 64, false), r.queue(&r.far, 0, 64, false)
			var in sink
			out := source{count: count, size: 60}
			var given time.Time // when the frame that is under way was put on the ring
			near.Generate = func(q *Queue, frames []xsk.Desc) int {
				if !given.IsZero() {
					return 0
				}
				given = time.Now()
				return out.generate(q, frames[:1])
			}
			near.Handle = c.also
			near.SetBusyPolling(c.busy)
			far.Handle = in.handle
			nearLoop, farLoop := r.loop(Config{}, near), r.loop(Config{IdleRounds: 1 << 30}, far) // which only looks
			r.round(farLoop)
			var took []time.Duration
			for i := range count {
				r.until("the arrival of a frame", func() bool { return in.got == i+1 }, nearLoop, farLoop)
				took = append(took, time.Since(given))
				given = time.Time{}
			}
			slices.Sort(took)
			if median := took[count/2]; median > 10*time.Millisecond {
				t.Errorf("half of the frames took more than %v, all: %v", median, took)
			}
			t.Logf("%v to %v", took[0], took[count-1])
		})
	}
}

// Field case 14: a packet of several descriptors comes whole and goes whole.
func TestJumboPacketsAreForwardedWhole(t *testing.T) {
	const count = 200
	r := newRig(t, 1, 9000)
	near, far := r.queue(&r.near, 0, 64, true), r.queue(&r.far, 0, 64, true)
	parts := 0
	near.Handle = func(_ *Queue, packets []xsk.Desc) int {
		if packets[len(packets)-1].Continued() {
			t.Error("a packet came in part")
		}
		parts += len(packets)
		return len(packets)
	}
	sent, got, wrong := 0, 0, 0
	payload := bytes.Repeat([]byte("0123456789abcdef"), 500)
	far.Generate = func(q *Queue, frames []xsk.Desc) int {
		if len(frames) < 2 || sent == count || sent-got > 8 {
			return 0
		}
		frames[0].Len, frames[0].Options, frames[1].Len = 4096, xsk.PacketContinued, uint32(len(payload)-4096)
		copy(q.UMEM.Packet(frames[0]), payload)
		copy(q.UMEM.Packet(frames[1]), payload[4096:])
		sent++
		return 2
	}
	far.Handle = func(q *Queue, packets []xsk.Desc) int {
		var whole []byte
		for _, d := range packets {
			whole = append(whole, q.UMEM.Packet(d)...)
			if !d.Continued() {
				if got++; !bytes.Equal(whole, payload) {
					wrong++
				}
				whole = nil
			}
		}
		return 0
	}
	nearLoop, farLoop := r.loop(Config{Batch: 32}, near), r.loop(Config{Batch: 32}, far)
	r.round(nearLoop)
	r.until("the return of all packets", func() bool { return got == count }, farLoop, nearLoop)
	if wrong != 0 || parts < 2*count {
		t.Errorf("%d of %d packets came back otherwise; %d descriptors were forwarded", wrong, count, parts)
	}
	nearLoop.publish()
	if c := near.Counters(); c.RXPackets != count || c.TXPackets != count {
		t.Errorf("counters %+v; want %d packets", c, count)
	}
}

func TestNothingIsAllocatedInARound(t *testing.T) {
	const rounds = 2000
	r := newRig(t, 1, 0)
	near, far := r.queue(&r.near, 0, 256, false), r.queue(&r.far, 0, 256, false)
	var in sink
	out := source{count: 1 << 30, window: 100, back: &in.got, size: 60}
	near.Handle, far.Generate, far.Handle = forward, out.generate, in.handle
	nearLoop, farLoop := r.loop(Config{}, near), r.loop(Config{}, far)
	r.round(nearLoop)
	// The far end's queue is idle at times, and sleeps then for as long as the kernel can: its own sleep is measured, too.
	farLoop.config.IdleRounds, farLoop.config.MaxSleep = 1, time.Nanosecond
	var allocs float64
	for range 3 {
		allocs = testing.AllocsPerRun(1, func() {
			for range rounds {
				if _, err := farLoop.Round(); err != nil {
					t.Fatal(err)
				}
				if _, err := nearLoop.Round(); err != nil {
					t.Fatal(err)
				}
			}
		})
		if allocs == 0 {
			break
		}
	}
	if allocs != 0 {
		t.Errorf("%v allocations in %d rounds", allocs, rounds)
	}
	farLoop.publish()
	if c := far.Counters(); in.got < rounds {
		t.Errorf("only %d packets came back: this shows nothing; counters %+v", in.got, c)
	}
}

// running runs l in a goroutine and returns where its end is told.
func running(ctx context.Context, l *Loop) <-chan error {
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	return ended
}

func wait(t *testing.T, ended <-chan error) error {
	t.Helper()
	select {
	case err := <-ended:
		return err
	case <-time.After(patience):
		t.Fatal("the loop goes on")
		return nil
	}
}

func TestIdleLoopSleepsAndWakesForAPacket(t *testing.T) {
	r := newRig(t, 1, 0)
	near, far := r.queue(&r.near, 0, 64, false), r.queue(&r.far, 0, 64, false)
	near.Handle = forward
	var in sink
	out := source{count: 20, window: 1, back: &in.got, size: 60}
	far.Generate, far.Handle = out.generate, in.handle
	farLoop := r.loop(Config{}, far)
	l := r.loop(Config{MaxSleep: time.Hour}, near) // only a packet can wake it
	ended := running(t.Context(), l)
	for deadline := time.Now().Add(patience); near.Counters().Sleeps == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("an idle loop does not sleep")
		}
	}
	r.until("the return of the packets", func() bool { return in.got == out.count }, farLoop)
	if c := near.Counters(); c.RXCalls > 1 {
		t.Errorf("counters %+v: system calls to receive on a veth, which needs none", c)
	}
	l.Stop()
	out.count++ // one more packet, to wake it
	r.until("the end of the loop, or the return of one more packet", func() bool { return in.got == out.count || len(ended) > 0 }, farLoop)
	if err := wait(t, ended); err != nil {
		t.Error(err)
	}
}

func TestContextEndsTheLoop(t *testing.T) {
	r := newRig(t, 1, 0)
	for _, busy := range []bool{false, true} {
		near := r.queue(&r.near, 0, 64, false)
		near.Handle = forward
		near.SetBusyPolling(busy)
		ctx, cancel := context.WithCancel(t.Context())
		ended := running(ctx, r.loop(Config{}, near))
		for deadline := time.Now().Add(patience); near.Counters() == (Counters{}) && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond)
		}
		c := near.Counters()
		if slept, called := c.Sleeps > 0, c.RXCalls > c.Sleeps; slept == busy || called != busy {
			t.Errorf("busy polling %v: counters %+v", busy, c)
		}
		cancel()
		if err := wait(t, ended); err != nil {
			t.Errorf("busy polling %v: %v", busy, err)
		}
		_ = near.Rings.Close()
		_ = near.Socket.Close()
		time.Sleep(200 * time.Millisecond)
	}
}

// Field case 21: the device goes away while the loop runs.
func TestLoopEndsWhenTheDeviceIsRemoved(t *testing.T) {
	for name, set := range map[string]func(*Queue){
		"idle":          func(q *Queue) { q.Handle = forward },
		"busy-polling":  func(q *Queue) { q.Handle = forward; q.SetBusyPolling(true) },
		"sending":       func(q *Queue) { q.Generate = (&source{count: 1 << 30, size: 60}).generate },
		"done sending":  func(q *Queue) { q.Generate = (&source{count: 10, size: 60}).generate },
		"busy and done": func(q *Queue) { q.Generate = (&source{count: 10, size: 60}).generate; q.SetBusyPolling(true) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1, 0)
			q := r.queue(&r.near, 0, 64, false)
			set(q)
			ended := running(t.Context(), r.loop(Config{MaxSleep: 20 * time.Millisecond}, q))
			time.Sleep(50 * time.Millisecond)
			if err := testutil.DelLink(r.near.name); err != nil {
				t.Fatal(err)
			}
			if err := wait(t, ended); !isGone(err) || !strings.Contains(err.Error(), "queue bpnear") || !strings.Contains(err.Error(), "device is") {
				t.Errorf("the loop ended with: %v", err)
			}
		})
	}
}

func TestKicksGoToTheSecondSocket(t *testing.T) {
	r := newRig(t, 1, 0)
	q := r.queue(&r.near, 0, 64, false)
	q.Generate = (&source{count: 1, size: 60}).generate
	q.KickTX = newSocket(t) // not bound: the kernel refuses
	if _, err := r.loop(Config{}, q).Round(); err == nil || !strings.Contains(err.Error(), unix.ENXIO.Error()) {
		t.Errorf("sending by way of an unbound socket: %v, want ENXIO", err)
	}
}

func TestBusyPollingQueuePollsOncePerRound(t *testing.T) {
	r := newRig(t, 1, 0)
	q := r.queue(&r.near, 0, 64, false)
	out := source{count: 10 * 64, size: 60}
	q.Handle, q.Generate = forward, out.generate
	q.SetBusyPolling(true)
	l := r.loop(Config{}, q)
	const rounds = 2000
	for range rounds {
		r.round(l)
	}
	l.publish()
	if c := q.Counters(); c.RXCalls+c.TXCalls < rounds || c.RXCalls+c.TXCalls > rounds+2 || c.Sleeps != 0 || c.TXCalls == 0 {
		t.Errorf("counters after %d rounds: %+v; want one call a round, no sleep", rounds, c)
	}
}

func TestFillRingIsFilledInOneRound(t *testing.T) {
	r := newRig(t, 1, 0)
	q := r.queue(&r.near, 0, 256, false)
	q.Handle = new(sink).handle
	r.round(r.loop(Config{Batch: 32}, q))
	if n := q.Rings.Fill.Pending(); n != 256 || q.onFill != 256 || q.Frames.Free() != frames-256 {
		t.Errorf("%d frames in the fill ring, %d counted, %d free; want 256, 256, %d", n, q.onFill, q.Frames.Free(), frames-256)
	}
}

func TestPollsOnlyWhenTheRingIsEmptied(t *testing.T) {
	const count, batch = 192, 32
	r := newRig(t, 1, 0)
	near, far := r.queue(&r.near, 0, 256, false), r.queue(&r.far, 0, 256, false)
	var in sink
	out := source{count: count, size: 60}
	near.Handle, far.Generate = in.handle, out.generate
	near.SetBusyPolling(true)
	nearLoop, farLoop := r.loop(Config{Batch: batch}, near), r.loop(Config{}, far)
	r.round(nearLoop) // so that there are frames to receive into
	r.until("transmission", func() bool { return out.sent == count && far.InFlight() == 0 }, farLoop)
	before := near.current.RXCalls
	r.until("reception", func() bool {
		if in.got == 0 {
			before = near.current.RXCalls // the packets are still on their way
		}
		return in.got == count
	}, nearLoop)
	if calls := near.current.RXCalls - before; calls != 0 {
		t.Errorf("%d polls in %d rounds that received a batch each, want none", calls, count/batch)
	}
	r.round(nearLoop)
	if calls := near.current.RXCalls - before; calls != 1 {
		t.Errorf("%d polls in a round that received nothing, want one", calls)
	}
}

// What came between the loop's calls is not put down to its polls. That what came by them is, the virtual machine's tests
// show: veth's sockets poll nothing.
func TestPacketsBetweenPollsAreNotPolled(t *testing.T) {
	const count = 2000
	r := newRig(t, 1, 0)
	near, far := r.queue(&r.near, 0, 256, false), r.queue(&r.far, 0, 256, false)
	var in sink
	out := source{count: count, window: 50, back: &in.got, size: 60}
	near.Handle, far.Generate = in.handle, out.generate
	near.SetBusyPolling(true)
	nearLoop, farLoop := r.loop(Config{}, near), r.loop(Config{}, far)
	r.round(nearLoop)
	r.until("the arrival of all packets", func() bool { return in.got == count }, farLoop, nearLoop)
	nearLoop.publish()
	c := near.Counters()
	if c.RXPackets != count || c.RXDescs != count || c.RXPolled > count/10 || c.RXCalls == 0 {
		t.Errorf("counters %+v; want %d packets, nearly none of them polled", c, count)
	}
}

func TestUnfitQueuesAreRefused(t *testing.T) {
	testutil.NeedKernel(t)
	whole := func() *Queue {
		return &Queue{Socket: &xsk.Socket{}, UMEM: &xsk.UMEM{}, Frames: &xsk.Frames{}, Handle: forward, Rings: &xsk.Rings{
			Fill: &xsk.FillRing{}, Completion: &xsk.CompletionRing{}, RX: &xsk.RXRing{}, TX: &xsk.TXRing{},
		}}
	}
	if _, err := NewLoop([]*Queue{whole()}, Config{}); err != nil {
		t.Fatal(err)
	}
	for what, spoil := range map[string]func(*Queue){
		"must be set":                func(q *Queue) { q.Frames = nil },
		"neither Handle":             func(q *Queue) { q.Handle = nil },
		"needs an rx and":            func(q *Queue) { q.Rings.RX = nil },
		"to send, it needs":          func(q *Queue) { q.Handle, q.Generate, q.Rings.TX = nil, forward, nil },
		"tx ring needs a completion": func(q *Queue) { q.Rings.Completion = nil },
	} {
		q := whole()
		spoil(q)
		if _, err := NewLoop([]*Queue{q}, Config{}); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%v; want %q", err, what)
		}
	}
	for _, c := range []Config{{Batch: 16}, {IdleRounds: -1}, {MaxSleep: -1}} {
		if _, err := NewLoop([]*Queue{whole()}, c); err == nil {
			t.Errorf("%+v is taken", c)
		}
	}
	if _, err := NewLoop(nil, Config{}); err == nil {
		t.Error("a loop without queues is taken")
	}
}

func BenchmarkForwardVeth(b *testing.B) {
	r := newRig(b, 1, 0)
	near, far := r.queue(&r.near, 0, 256, false), r.queue(&r.far, 0, 256, false)
	var in sink
	out := source{count: 1 << 40, window: 64, back: &in.got, size: 60}
	near.Handle, far.Generate, far.Handle = forward, out.generate, in.handle
	nearLoop, farLoop := r.loop(Config{}, near), r.loop(Config{}, far)
	r.round(nearLoop)
	b.ReportAllocs()
	for in.got < b.N {
		r.round(farLoop)
		r.round(nearLoop)
	}
	b.ReportMetric(float64(in.got)/b.Elapsed().Seconds()/1e6, "Mpps")
}
