package main

import "testing"

func TestPacketSaysWhoSentIt(t *testing.T) {
	want := label{kind: question, tag: 7, queue: 3, number: 1 << 40}
	b := make([]byte, 2048)
	want.write(b)
	if got, ok := read(b[:packetSize]); !ok || got != want {
		t.Errorf("read: %+v, %v; want %+v", got, ok, want)
	}
	for i := 12; i < packetSize; i++ {
		if i > 20 && i < 24 {
			continue // they say nothing
		}
		damaged := make([]byte, packetSize)
		copy(damaged, b)
		damaged[i] ^= 0x80
		if got, ok := read(damaged); ok && got == want {
			t.Errorf("byte %d changed: still read as %+v", i, got)
		}
	}
	for _, size := range []int{0, 14, packetSize - 1, packetSize + 1} {
		if _, ok := read(b[:size]); ok {
			t.Errorf("a packet of %d bytes was read", size)
		}
	}
}
