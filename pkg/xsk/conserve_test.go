package xsk

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// world is a socket with its kernel, all in memory: every frame is in exactly one of its places.
type world struct {
	config UMEMConfig
	frames *Frames

	fill       FillRing
	completion CompletionRing
	rx         RXRing
	tx         TXRing

	kfill, kcompletion *kernelSide[uint64]
	krx, ktx           *kernelSide[Desc]

	held          []uint64 // with the user, as packet addresses
	toFill, toSet []uint64 // with the user: set in reserved entries, not yet submitted
	driver        []uint64 // with the driver: taken from fill or tx
	sending       []uint64
}

func newWorld(c UMEMConfig) *world {
	w := &world{
		config: c, frames: NewFrames(c, 0, c.Frames),
		kfill: newModel[uint64](32, nearWrap), kcompletion: newModel[uint64](16, nearWrap),
		krx: newModel[Desc](8, nearWrap), ktx: newModel[Desc](16, nearWrap),
	}
	w.fill = FillRing{newProducer(w.kfill.header(), w.kfill.entries)}
	w.completion = CompletionRing{newConsumer(w.kcompletion.header(), w.kcompletion.entries)}
	w.rx = RXRing{newConsumer(w.krx.header(), w.krx.entries)}
	w.tx = TXRing{newProducer(w.ktx.header(), w.ktx.entries)}
	return w
}

// check fails unless each frame is in one place.
func (w *world) check() error {
	places := map[uint64]string{}
	var err error
	put := func(place string, addrs ...uint64) {
		for _, a := range addrs {
			f := w.config.FrameOf(a)
			if other, twice := places[f]; twice && err == nil {
				err = fmt.Errorf("frame %#x is in %s and in %s", f, other, place)
			}
			places[f] = place
		}
	}
	descs := func(place string, ds []Desc) {
		for _, d := range ds {
			put(place, d.Addr)
		}
	}
	put("free", w.frames.free...)
	put("held", w.held...)
	put("reserved fill entries", w.toFill...)
	put("reserved tx entries", w.toSet...)
	put("driver rx", w.driver...)
	put("driver tx", w.sending...)
	put("fill ring", w.kfill.inside()...)
	put("completion ring", w.kcompletion.inside()...)
	descs("rx ring", w.krx.inside())
	descs("tx ring", w.ktx.inside())
	if err == nil && len(places) != int(w.config.Frames) {
		err = fmt.Errorf("%d of %d frames are left", len(places), w.config.Frames)
	}
	return err
}

// pop takes up to n from the end of s.
func pop(s *[]uint64, n int) []uint64 {
	at := len(*s) - min(n, len(*s))
	got := append([]uint64(nil), (*s)[at:]...)
	*s = (*s)[:at]
	return got
}

func (w *world) descs(addrs []uint64) []Desc {
	ds := make([]Desc, len(addrs))
	for i, a := range addrs {
		ds[i] = Desc{Addr: a, Len: 60}
	}
	return ds
}

func (w *world) step(op, n int) string {
	switch op {
	case 0: // Refill
		got := make([]uint64, n)
		got = got[:w.frames.Get(got)]
		w.frames.Put(got[w.fill.Refill(got):])
		return "Refill"
	case 1: // Reserve, Set, and Submit of fewer
		got := make([]uint64, w.fill.Reserve(n))
		set := w.frames.Get(got)
		for i, a := range got[:set] {
			w.fill.Set(i, a)
		}
		submit := set / 2
		w.fill.Submit(submit)
		w.frames.Put(got[submit:set])
		return "Reserve, Set, Submit of half on fill"
	case 2: // Reserve, Set, Cancel
		got := make([]uint64, w.tx.Reserve(n))
		set := w.frames.Get(got)
		for i, a := range got[:set] {
			w.tx.Set(i, Desc{Addr: a})
		}
		w.tx.Cancel()
		w.frames.Put(got[:set])
		return "Reserve, Set, Cancel on tx"
	case 3: // Receive
		ds := make([]Desc, n)
		for _, d := range ds[:w.rx.Receive(ds)] {
			w.held = append(w.held, d.Addr)
		}
		return "Receive"
	case 4: // Peek, Release of fewer
		for i := range w.rx.Peek(n) / 2 {
			w.held = append(w.held, w.rx.At(i).Addr)
		}
		w.rx.Release(w.rx.Peek(n) / 2)
		return "Peek, Release of half on rx"
	case 5: // Transmit
		ds := w.descs(pop(&w.held, n))
		for _, d := range ds[w.tx.Transmit(ds):] {
			w.held = append(w.held, d.Addr)
		}
		return "Transmit"
	case 6: // Complete
		got := make([]uint64, n)
		w.frames.Put(got[:w.completion.Complete(got)])
		return "Complete"
	case 7: // packets that are not sent on
		w.frames.PutPackets(w.descs(pop(&w.held, n)))
		return "PutPackets"
	case 8: // entries stay reserved while others act
		if len(w.toFill)+len(w.toSet) > 0 {
			w.fill.Submit(len(w.toFill))
			w.tx.Submit(len(w.toSet))
			w.toFill, w.toSet = nil, nil
			return "Submit of what was reserved"
		}
		return w.reserve(n)
	case 9:
		for range n {
			if a, ok := w.kfill.take(); ok {
				w.driver = append(w.driver, a)
			}
		}
		return "kernel takes from fill"
	case 10:
		for _, a := range pop(&w.driver, n) {
			if !w.krx.give(Desc{Addr: w.config.PacketAddr(a, PacketHeadroom+w.config.Headroom), Len: 60}) {
				w.driver = append(w.driver, a)
			}
		}
		return "kernel receives"
	case 11:
		for range n {
			if d, ok := w.ktx.take(); ok {
				w.sending = append(w.sending, d.Addr)
			}
		}
		return "kernel takes from tx"
	default:
		for _, a := range pop(&w.sending, n) {
			if !w.kcompletion.give(a) {
				w.sending = append(w.sending, a)
			}
		}
		return "kernel completes"
	}
}

func (w *world) reserve(n int) string {
	got := make([]uint64, w.fill.Reserve(n))
	w.toFill = got[:w.frames.Get(got)]
	for i, a := range w.toFill {
		w.fill.Set(i, a)
	}
	w.toSet = pop(&w.held, w.tx.Reserve(n))
	for i, a := range w.toSet {
		w.tx.Set(i, Desc{Addr: a})
	}
	return "Reserve, Set"
}

// Field case 19: whatever verbs are used, with whatever counts, no frame is in two places and none is lost.
func TestNoFrameIsInTwoPlacesOrLost(t *testing.T) {
	for _, c := range []UMEMConfig{
		{Frames: 48, FrameSize: 2048},
		{Frames: 48, FrameSize: 4096, Headroom: 128},
		{Frames: 48, FrameSize: 3000, Headroom: 64, Unaligned: true, HugePageSize: 2 << 20},
	} {
		for seed := range uint64(20) {
			rng := rand.New(rand.NewPCG(seed, 0))
			w := newWorld(c)
			var moved int
			for i := range 5000 {
				op, n := rng.IntN(13), rng.IntN(20)
				if len(w.toFill)+len(w.toSet) > 0 && op < 8 {
					op = 8 // the rings' other verbs would take the reservation for their own
				}
				what := w.step(op, n)
				if err := w.check(); err != nil {
					t.Fatalf("frame size %d, seed %d, step %d, %s %d: %v", c.FrameSize, seed, i, what, n, err)
				}
				moved += len(w.sending)
			}
			if moved == 0 {
				t.Fatalf("seed %d: nothing was ever sent", seed)
			}
		}
	}
}
