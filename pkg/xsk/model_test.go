package xsk

import "sync/atomic"

// kernelSide is a plain model of the kernel's side of a ring, over the same words in memory.
type kernelSide[T any] struct {
	producer, consumer, flags *uint32
	entries                   []T
}

// newModel makes a ring of size entries in ordinary memory, both of whose indexes are at start.
func newModel[T any](size int, start uint32) *kernelSide[T] {
	word := func(v uint32) *uint32 { return &v }
	return &kernelSide[T]{producer: word(start), consumer: word(start), flags: word(0), entries: make([]T, size)}
}

func (k *kernelSide[T]) header() header { return header{k.producer, k.consumer, k.flags} }

// take consumes one entry of a ring that the process fills.
func (k *kernelSide[T]) take() (v T, ok bool) {
	at := atomic.LoadUint32(k.consumer)
	if atomic.LoadUint32(k.producer) == at {
		return v, false
	}
	v = k.entries[int(at)%len(k.entries)]
	atomic.StoreUint32(k.consumer, at+1)
	return v, true
}

// give produces one entry of a ring that the process empties.
func (k *kernelSide[T]) give(v T) bool {
	at := atomic.LoadUint32(k.producer)
	if at-atomic.LoadUint32(k.consumer) == uint32(len(k.entries)) {
		return false
	}
	k.entries[int(at)%len(k.entries)] = v
	atomic.StoreUint32(k.producer, at+1)
	return true
}

// inside returns what is in the ring now.
func (k *kernelSide[T]) inside() []T {
	var vs []T
	for i := atomic.LoadUint32(k.consumer); i != atomic.LoadUint32(k.producer); i++ {
		vs = append(vs, k.entries[int(i)%len(k.entries)])
	}
	return vs
}
