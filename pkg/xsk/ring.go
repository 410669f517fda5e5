package xsk

import "sync/atomic"

// header is what both sides of a ring share. Indexes run freely over 32 bits; size is a power of two.
//
// Each side stores only its own index. sync/atomic's loads and stores are at least acquire and release, so what was
// written to entries before a store of producer is seen by whoever loads it, and likewise for consumer; the kernel
// pairs with smp_load_acquire and smp_store_release (net/xdp/xsk_queue.h).
type header struct {
	producer *uint32
	consumer *uint32
	flags    *uint32
}

const needWakeup = 1 // XDP_RING_NEED_WAKEUP

// producer is a ring that this process fills. T is the entry.
type producer[T any] struct {
	header
	entries   []T    // len is the ring's size
	submitted uint32 // the producer index as the kernel sees it
	reserved  uint32 // end of what is reserved; reserved-submitted entries are
	limit     uint32 // reserving may go up to here: last seen consumer index + size
}

func newProducer[T any](h header, entries []T) producer[T] {
	// A ring that is in use is taken over where it stands.
	at := atomic.LoadUint32(h.producer)
	return producer[T]{
		header: h, entries: entries, submitted: at, reserved: at,
		limit: atomic.LoadUint32(h.consumer) + uint32(len(entries)),
	}
}

// NeedsWakeup reports whether the kernel waits for a system call before it goes on with this ring
// (XDP_RING_NEED_WAKEUP). Only sockets bound with NeedWakeup have it set. A Submit before it is never overlooked: Go's
// atomics are sequentially consistent, so this load is not done before that store.
func (r *producer[T]) NeedsWakeup() bool { return atomic.LoadUint32(r.flags)&needWakeup != 0 }

// Pending returns how many submitted entries the kernel has not taken yet.
func (r *producer[T]) Pending() int { return int(r.submitted - atomic.LoadUint32(r.consumer)) }

// Taken returns how many entries the kernel has taken since the ring was made, modulo 2^32.
func (r *producer[T]) Taken() uint32 { return atomic.LoadUint32(r.consumer) }

// Size returns the ring's number of entries.
func (r *producer[T]) Size() int { return len(r.entries) }

// Reserve reserves up to n further entries and returns how many. Entries 0 to n-1 of all that is reserved are written
// with Set, then published with Submit or given up with Cancel.
func (r *producer[T]) Reserve(n int) int {
	if uint32(n) > r.limit-r.reserved {
		r.limit = atomic.LoadUint32(r.consumer) + uint32(len(r.entries))
		n = min(n, int(r.limit-r.reserved))
	}
	r.reserved += uint32(n)
	return n
}

// Set writes entry i of the reserved ones.
func (r *producer[T]) Set(i int, v T) {
	e := r.entries
	e[(r.submitted+uint32(i))&uint32(len(e)-1)] = v
}

// Submit publishes the first n reserved entries and gives up the rest. n must not exceed what is reserved.
func (r *producer[T]) Submit(n int) {
	r.submitted += min(uint32(n), r.reserved-r.submitted)
	r.reserved = r.submitted
	atomic.StoreUint32(r.producer, r.submitted)
}

// Cancel gives up all that is reserved.
func (r *producer[T]) Cancel() { r.reserved = r.submitted }

// push reserves, writes and publishes as many entries of vs as fit, in one batch, and returns how many.
func (r *producer[T]) push(vs []T) int {
	n := r.Reserve(len(vs))
	if n == 0 {
		return 0
	}
	at := int(r.submitted & uint32(len(r.entries)-1))
	if first := copy(r.entries[at:], vs[:n]); first < n {
		copy(r.entries, vs[first:n])
	}
	r.Submit(n)
	return n
}

// consumer is a ring that the kernel fills.
type consumer[T any] struct {
	header
	entries  []T
	released uint32 // the consumer index as the kernel sees it
	limit    uint32 // last seen producer index
}

func newConsumer[T any](h header, entries []T) consumer[T] {
	return consumer[T]{header: h, entries: entries, released: atomic.LoadUint32(h.consumer), limit: atomic.LoadUint32(h.producer)}
}

// Size returns the ring's number of entries.
func (r *consumer[T]) Size() int { return len(r.entries) }

// Pending returns how many entries the kernel has put on the ring that are not released.
func (r *consumer[T]) Pending() int { return int(atomic.LoadUint32(r.producer) - r.released) }

// Peek returns how many entries, up to n, can be read with At. They stay in the ring until Release.
func (r *consumer[T]) Peek(n int) int {
	if uint32(n) > r.limit-r.released {
		r.limit = atomic.LoadUint32(r.producer)
		n = min(n, int(r.limit-r.released))
	}
	return n
}

// At returns entry i of those that Peek counted.
func (r *consumer[T]) At(i int) T {
	e := r.entries
	return e[(r.released+uint32(i))&uint32(len(e)-1)]
}

// Release gives the first n entries that Peek counted back to the kernel.
func (r *consumer[T]) Release(n int) {
	r.released += min(uint32(n), r.limit-r.released)
	atomic.StoreUint32(r.consumer, r.released)
}

// pull reads and releases up to len(vs) entries, in one batch, and returns how many.
func (r *consumer[T]) pull(vs []T) int {
	n := r.Peek(len(vs))
	if n == 0 {
		return 0
	}
	at := int(r.released & uint32(len(r.entries)-1))
	if first := copy(vs[:n], r.entries[at:]); first < n {
		copy(vs[first:n], r.entries)
	}
	r.Release(n)
	return n
}
