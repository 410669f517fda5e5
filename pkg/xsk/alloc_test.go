package xsk_test

import (
	"errors"
	"testing"

	"github.com/afxdp-project/afxdp/pkg/xsk"
)

// loop sends packets from one port to another and takes all frames back on both sides.
type loop struct {
	near, far *port
	descs     [64]xsk.Desc
	addrs     [64]uint64
	received  int
	completed int
}

func newLoop(tb testing.TB) *loop {
	w := newWire(tb, wireConfig{})
	c := portConfig{bind: xsk.BindConfig{NeedWakeup: true}}
	return &loop{near: w.near.open(tb, c), far: w.far.open(tb, c)}
}

// round sends up to a batch and takes what has arrived and what is completed. Both wakeups are made each time.
func (l *loop) round(batch int) error {
	n := l.far.frames.Get(l.addrs[:batch])
	for i, a := range l.addrs[:n] {
		l.descs[i] = xsk.Desc{Addr: a, Len: 60}
	}
	sent := l.far.rings.TX.Transmit(l.descs[:n])
	l.far.frames.Put(l.addrs[sent:n])
	if err := l.far.socket.WakeTX(); err != nil && !errors.Is(err, xsk.ErrAgain) {
		return err
	}
	if err := l.near.socket.WakeRX(); err != nil && !errors.Is(err, xsk.ErrAgain) {
		return err
	}
	n = l.far.rings.Completion.Complete(l.addrs[:])
	l.far.frames.Put(l.addrs[:n])
	l.completed += n

	n = l.near.rings.RX.Receive(l.descs[:])
	l.near.frames.PutPackets(l.descs[:n])
	l.received += n
	n = l.near.frames.Get(l.addrs[:n])
	taken := l.near.rings.Fill.Refill(l.addrs[:n])
	l.near.frames.Put(l.addrs[taken:n])
	return nil
}

func TestNothingIsAllocatedWhilePacketsMove(t *testing.T) {
	const rounds = 1000
	l := newLoop(t)
	// One run of many rounds: the average that AllocsPerRun returns is then their exact sum. The runtime may allocate in
	// between for itself, but not each time.
	var allocs float64
	for range 3 {
		allocs = testing.AllocsPerRun(1, func() {
			for range rounds {
				if err := l.round(32); err != nil {
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
	if l.received < rounds || l.completed < rounds {
		t.Errorf("only %d packets were received, %d sent: this shows nothing", l.received, l.completed)
	}
	t.Logf("%d received, %d completed", l.received, l.completed)
}

func BenchmarkVeth(b *testing.B) {
	l := newLoop(b)
	b.ReportAllocs()
	for l.received < b.N {
		if err := l.round(32); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(l.received)/b.Elapsed().Seconds()/1e6, "Mpps")
}
