package xsk

import (
	"sync/atomic"
	"testing"
)

const benchBatch = 64

// The other side of the ring is as quick as can be: it sets its index.

func BenchmarkRefill(b *testing.B) {
	k := newModel[uint64](2048, 0)
	r := FillRing{newProducer(k.header(), k.entries)}
	addrs := make([]uint64, benchBatch)
	b.ReportAllocs()
	for b.Loop() {
		if r.Refill(addrs) != benchBatch {
			atomic.StoreUint32(k.consumer, atomic.LoadUint32(k.producer))
		}
	}
	perPacket(b)
}

func BenchmarkReserveSetSubmit(b *testing.B) {
	k := newModel[Desc](2048, 0)
	r := TXRing{newProducer(k.header(), k.entries)}
	b.ReportAllocs()
	for b.Loop() {
		n := r.Reserve(benchBatch)
		if n == 0 {
			atomic.StoreUint32(k.consumer, atomic.LoadUint32(k.producer))
		}
		for i := range n {
			r.Set(i, Desc{Addr: uint64(i), Len: 60})
		}
		r.Submit(n)
	}
	perPacket(b)
}

func BenchmarkTransmit(b *testing.B) {
	k := newModel[Desc](2048, 0)
	r := TXRing{newProducer(k.header(), k.entries)}
	descs := make([]Desc, benchBatch)
	b.ReportAllocs()
	for b.Loop() {
		if r.Transmit(descs) != benchBatch {
			atomic.StoreUint32(k.consumer, atomic.LoadUint32(k.producer))
		}
	}
	perPacket(b)
}

func BenchmarkReceive(b *testing.B) {
	k := newModel[Desc](2048, 0)
	r := RXRing{newConsumer(k.header(), k.entries)}
	descs := make([]Desc, benchBatch)
	b.ReportAllocs()
	for b.Loop() {
		if r.Receive(descs) != benchBatch {
			atomic.StoreUint32(k.producer, atomic.LoadUint32(k.consumer)+2048)
		}
	}
	perPacket(b)
}

func BenchmarkComplete(b *testing.B) {
	k := newModel[uint64](2048, 0)
	r := CompletionRing{newConsumer(k.header(), k.entries)}
	addrs := make([]uint64, benchBatch)
	b.ReportAllocs()
	for b.Loop() {
		if r.Complete(addrs) != benchBatch {
			atomic.StoreUint32(k.producer, atomic.LoadUint32(k.consumer)+2048)
		}
	}
	perPacket(b)
}

func perPacket(b *testing.B) {
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/benchBatch, "ns/packet")
}
