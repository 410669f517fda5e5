package main

import "sync/atomic"

// window is how many packets of a queue may be unanswered. A veth queue holds 256 packets each way, so with fewer none
// is lost for want of room.
const window = 224

// ledger keeps the books of one queue: packets are numbered from 0 in the order in which they are sent, and each must be
// answered once. Its methods are for one goroutine, except for tally.
type ledger struct {
	oldest uint64       // of those that are not answered; all before it are
	open   [window]bool // by number modulo window
	books  tally        // as of this moment

	shown [tallies]atomic.Uint64
}

// tally is what the ledger has counted.
type tally struct {
	Sent, Answered     uint64
	Duplicate, Unsent  uint64 // answers to what was answered already, or never sent
	Reordered, Corrupt uint64 // answers out of turn, or not what the answer should look like
}

const tallies = 6

func (t *tally) list() [tallies]*uint64 {
	return [tallies]*uint64{&t.Sent, &t.Answered, &t.Duplicate, &t.Unsent, &t.Reordered, &t.Corrupt}
}

// faults counts the answers that should not have come.
func (t tally) faults() uint64 { return t.Duplicate + t.Unsent + t.Reordered + t.Corrupt }

// missing counts what is not answered.
func (t tally) missing() uint64 { return t.Sent - min(t.Sent, t.Answered) }

// next returns the number of the next packet to send, unless too many are unanswered.
func (l *ledger) next() (number uint64, ok bool) {
	number = l.books.Sent
	if number-l.oldest >= window {
		return 0, false
	}
	l.open[number%window] = true
	l.books.Sent++
	return number, true
}

// answer notes the answer to a packet.
func (l *ledger) answer(number uint64) {
	switch {
	case number >= l.books.Sent:
		l.books.Unsent++
		return
	case number < l.oldest || !l.open[number%window]:
		l.books.Duplicate++
		return
	case number != l.oldest:
		l.books.Reordered++
	}
	l.open[number%window] = false
	l.books.Answered++
	for l.oldest < l.books.Sent && !l.open[l.oldest%window] {
		l.oldest++
	}
}

// corrupt notes a packet that is no answer.
func (l *ledger) corrupt() { l.books.Corrupt++ }

// publish shows the books to tally.
func (l *ledger) publish() {
	for i, v := range l.books.list() {
		l.shown[i].Store(*v)
	}
}

// tally returns what had been counted at the last publish. It may be called from any goroutine.
func (l *ledger) tally() (t tally) {
	for i, v := range t.list() {
		*v = l.shown[i].Load()
	}
	return t
}
