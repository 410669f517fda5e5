package xsk

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
)

// nearWrap is an index from which a test soon passes 2^32.
const nearWrap = math.MaxUint32 - 100

func forSizes(t *testing.T, f func(t *testing.T, size int)) {
	for _, size := range []int{1, 2, 8, 64, 512} {
		t.Run(fmt.Sprint(size), func(t *testing.T) { f(t, size) })
	}
}

// Run with -race: the detector sees an entry that is written before the other side has given it up, or read before it
// was published.
func TestProducerPassesEverythingInOrderOverTheWrap(t *testing.T) {
	const total = 20000
	forSizes(t, func(t *testing.T, size int) {
		k := newModel[uint64](size, nearWrap)
		r := FillRing{newProducer(k.header(), k.entries)}
		bad := make(chan error, 1)
		go func() {
			defer close(bad)
			for want := uint64(0); want < total; {
				v, ok := k.take()
				switch {
				case !ok:
					runtime.Gosched()
				case v != want:
					bad <- fmt.Errorf("kernel took %d, want %d", v, want)
					return
				default:
					want++
				}
			}
		}()
		rng := rand.New(rand.NewPCG(1, uint64(size)))
		batch := make([]uint64, 40)
		for next := uint64(0); next < total; {
			select {
			case err := <-bad:
				t.Fatal(err)
			default:
			}
			want := min(1+rng.IntN(len(batch)), int(total-next))
			var n int
			if rng.IntN(2) == 0 {
				for i := range batch[:want] {
					batch[i] = next + uint64(i)
				}
				n = r.Refill(batch[:want])
			} else if n = r.Reserve(want); n > 0 {
				for i := range n {
					r.Set(i, next+uint64(i))
				}
				r.Submit(n)
			}
			if next += uint64(n); n == 0 {
				runtime.Gosched()
			}
		}
		if err := <-bad; err != nil {
			t.Fatal(err)
		}
	})
}

func TestConsumerGetsEverythingInOrderOverTheWrap(t *testing.T) {
	const total = 20000
	forSizes(t, func(t *testing.T, size int) {
		k := newModel[Desc](size, nearWrap)
		r := RXRing{newConsumer(k.header(), k.entries)}
		go func() {
			for i := uint64(0); i < total; {
				if k.give(Desc{Addr: i, Len: uint32(i)}) {
					i++
				} else {
					runtime.Gosched()
				}
			}
		}()
		rng := rand.New(rand.NewPCG(2, uint64(size)))
		batch := make([]Desc, 40)
		for next := uint64(0); next < total; {
			want := 1 + rng.IntN(len(batch))
			var n int
			if rng.IntN(2) == 0 {
				n = r.Receive(batch[:want])
			} else {
				n = r.Peek(want)
				for i := range n {
					batch[i] = r.At(i)
				}
				r.Release(n)
			}
			for _, d := range batch[:n] {
				if d != (Desc{Addr: next, Len: uint32(next)}) {
					t.Fatalf("received %v, want number %d", d, next)
				}
				next++
			}
			if n == 0 {
				runtime.Gosched()
			}
		}
	})
}

func TestRingInUseIsTakenOverWhereItStands(t *testing.T) {
	k := newModel[uint64](8, math.MaxUint32-2)
	first := FillRing{newProducer(k.header(), k.entries)}
	first.Refill([]uint64{1, 2, 3, 4, 5})
	k.take()
	k.take()
	// A process that goes away has reserved more than it has submitted.
	first.Reserve(2)
	first.Set(0, 99)

	second := FillRing{newProducer(k.header(), k.entries)}
	if n := second.Refill([]uint64{6, 7, 8, 9, 10, 11}); n != 5 {
		t.Errorf("a ring of 8 with 3 entries took %d more, want 5", n)
	}
	if got, want := k.inside(), []uint64{3, 4, 5, 6, 7, 8, 9, 10}; !slices.Equal(got, want) {
		t.Errorf("ring has %v, want %v", got, want)
	}

	k = newModel[uint64](4, math.MaxUint32-1)
	for v := range uint64(4) {
		k.give(v)
	}
	before := CompletionRing{newConsumer(k.header(), k.entries)}
	got := make([]uint64, 8)
	before.Complete(got[:1])
	before.Peek(3) // not released: still there for the next
	after := CompletionRing{newConsumer(k.header(), k.entries)}
	if n := after.Complete(got); n != 3 || !slices.Equal(got[:n], []uint64{1, 2, 3}) {
		t.Errorf("completed %v after taking over, want [1 2 3]", got[:n])
	}
}

// Field case 19: a batch reserved for 64 and submitted with 51 leaks nothing.
func TestSubmitOfFewerThanReservedGivesUpTheRest(t *testing.T) {
	k := newModel[uint64](64, nearWrap)
	r := FillRing{newProducer(k.header(), k.entries)}
	for round := range 100 {
		if n := r.Reserve(64); n != 64 {
			t.Fatalf("round %d: reserved %d of an empty ring of 64", round, n)
		}
		for i := range 64 {
			r.Set(i, uint64(i))
		}
		r.Submit(51)
		if got := k.inside(); len(got) != 51 || got[50] != 50 {
			t.Fatalf("round %d: ring has %v, want 0 to 50", round, got)
		}
		if n := r.Reserve(64); n != 13 {
			t.Fatalf("round %d: reserved %d more, want 13", round, n)
		}
		r.Cancel()
		for range 51 {
			k.take()
		}
	}
}

func TestReserveAddsUp(t *testing.T) {
	k := newModel[uint64](8, nearWrap)
	r := FillRing{newProducer(k.header(), k.entries)}
	if a, b, c := r.Reserve(3), r.Reserve(4), r.Reserve(4); a != 3 || b != 4 || c != 1 {
		t.Errorf("reserved %d, %d, %d of 8; want 3, 4, 1", a, b, c)
	}
	for i := range 8 {
		r.Set(i, uint64(i))
	}
	if got := k.inside(); got != nil {
		t.Errorf("the kernel sees %v before Submit", got)
	}
	r.Submit(100) // no more than what is reserved
	k.take()
	if n := r.Pending(); n != 7 {
		t.Errorf("%d of 8 entries are pending after the kernel took 1", n)
	}
	if got, want := k.inside(), []uint64{1, 2, 3, 4, 5, 6, 7}; !slices.Equal(got, want) {
		t.Errorf("ring has %v, want %v", got, want)
	}
}

func TestReleaseOfFewerThanPeekedKeepsTheRest(t *testing.T) {
	k := newModel[Desc](8, nearWrap)
	r := RXRing{newConsumer(k.header(), k.entries)}
	for i := range uint64(5) {
		k.give(Desc{Addr: i})
	}
	if n := r.Peek(8); n != 5 {
		t.Fatalf("peeked %d, want 5", n)
	}
	r.Release(2)
	if n := r.Peek(8); n != 3 || r.At(0).Addr != 2 {
		t.Errorf("after releasing 2 of 5: %d entries from %d; want 3 from 2", n, r.At(0).Addr)
	}
	r.Release(100) // no more than what is there
	if n := r.Peek(8); n != 0 || len(k.inside()) != 0 {
		t.Errorf("%d entries after all were released", n)
	}
}

func TestNeedsWakeupFollowsTheKernelsFlag(t *testing.T) {
	k := newModel[Desc](8, 0)
	r := TXRing{newProducer(k.header(), k.entries)}
	for _, flags := range []uint32{0, needWakeup, 2, needWakeup | 2, 0} {
		atomic.StoreUint32(k.flags, flags)
		if got, want := r.NeedsWakeup(), flags&needWakeup != 0; got != want {
			t.Errorf("flags %#x: needs wakeup %v, want %v", flags, got, want)
		}
	}
}
