package main

import (
	"math/rand/v2"
	"testing"
)

func send(l *ledger, n int) {
	for range n {
		l.next()
	}
}

func TestLedgerCountsWhatIsAnsweredInTurn(t *testing.T) {
	var l ledger
	for number := range uint64(5 * window) {
		if got, ok := l.next(); !ok || got != number {
			t.Fatalf("next packet: %d, %t; want %d", got, ok, number)
		}
		l.answer(number)
	}
	if want := (tally{Sent: 5 * window, Answered: 5 * window}); l.books != want {
		t.Errorf("%+v, want %+v", l.books, want)
	}
}

func TestNoMoreThanAWindowIsOnItsWay(t *testing.T) {
	var l ledger
	send(&l, window)
	if number, ok := l.next(); ok {
		t.Errorf("packet %d may be sent while %d are unanswered", number, window)
	}
	l.answer(0)
	if number, ok := l.next(); !ok || number != window {
		t.Errorf("next packet: %d, %t; want %d", number, ok, window)
	}
	l.answer(2) // 1 is still unanswered
	if _, ok := l.next(); ok {
		t.Error("a packet may be sent beyond the window of the oldest one")
	}
}

func TestLedgerNotesWhatShouldNotCome(t *testing.T) {
	for name, tc := range map[string]struct {
		answers []uint64
		want    tally
	}{
		"twice":             {[]uint64{0, 0}, tally{Answered: 1, Duplicate: 1}},
		"twice, much later": {[]uint64{0, 1, 2, 3, 0}, tally{Answered: 4, Duplicate: 1}},
		"twice, in between": {[]uint64{1, 1}, tally{Answered: 1, Reordered: 1, Duplicate: 1}},
		"never sent":        {[]uint64{4}, tally{Unsent: 1}},
		"never sent by far": {[]uint64{1 << 63}, tally{Unsent: 1}},
		"out of turn":       {[]uint64{1, 0, 2}, tally{Answered: 3, Reordered: 1}},
		"one missing":       {[]uint64{0, 2, 3}, tally{Answered: 3, Reordered: 2}},
	} {
		var l ledger
		send(&l, 4)
		for _, number := range tc.answers {
			l.answer(number)
		}
		tc.want.Sent = 4
		if l.books != tc.want || l.books.faults() == 0 {
			t.Errorf("%s: %+v, want %+v", name, l.books, tc.want)
		}
	}
}

// The ledger agrees with a plain set of unanswered packets, whatever the network does to them.
func TestLedgerAgreesWithASet(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var l ledger
	open, answered := make(map[uint64]bool), uint64(0)
	for range 100_000 {
		if rng.IntN(2) == 0 {
			if number, ok := l.next(); ok {
				open[number] = true
			}
			continue
		}
		number := l.books.Sent - min(l.books.Sent, rng.Uint64N(2*window))
		if open[number] {
			answered++
			delete(open, number)
		}
		l.answer(number)
	}
	if l.books.Answered != answered || l.books.missing() != uint64(len(open)) {
		t.Errorf("%+v; the set has %d answered and %d missing", l.books, answered, len(open))
	}
	if l.books.Sent < 10*window || l.books.Duplicate == 0 || l.books.Unsent == 0 || l.books.Reordered == 0 {
		t.Errorf("the test shows little: %+v", l.books)
	}
}

func TestTallyShowsWhatWasPublished(t *testing.T) {
	var l ledger
	send(&l, 3)
	l.answer(0)
	l.corrupt()
	if got := l.tally(); got != (tally{}) {
		t.Errorf("before: %+v", got)
	}
	l.publish()
	if want := (tally{Sent: 3, Answered: 1, Corrupt: 1}); l.tally() != want {
		t.Errorf("%+v, want %+v", l.tally(), want)
	}
}
