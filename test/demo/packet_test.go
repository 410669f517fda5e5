package main

import (
	"net"
	"testing"
)

func TestOnlyTheAnswerIsTakenForOne(t *testing.T) {
	near, far := net.HardwareAddr{2, 0, 0, 0, 0, 1}, net.HardwareAddr{2, 0, 0, 0, 0, 2}
	p := newPackets(far, near, 2)
	const number = 0x0102030405060708
	answer := func() []byte { // what l2fwd makes of it
		b := make([]byte, packetSize)
		p.write(b, number)
		return append(append(append([]byte(nil), b[6:12]...), b[:6]...), b[12:]...)
	}
	if got, err := p.read(answer()); err != nil || got != number {
		t.Fatalf("answer: %#x, %v", got, err)
	}
	question := make([]byte, packetSize)
	p.write(question, number)
	if _, err := p.read(question); err == nil {
		t.Error("a question, whose addresses nobody has swapped, passes")
	}
	if _, err := newPackets(far, near, 1).read(answer()); err == nil {
		t.Error("the answer of another queue passes")
	}
	if _, err := p.read(append(answer(), 0)); err == nil {
		t.Error("an answer that is too long passes")
	}
	if _, err := p.read(answer()[:packetSize-1]); err == nil {
		t.Error("an answer that is too short passes")
	}
	for i := range packetSize {
		b := answer()
		b[i] ^= 1
		got, err := p.read(b)
		if inNumber := i >= 24 && i < 32; inNumber && got == number || !inNumber && err == nil {
			t.Errorf("an answer with another byte %d passes", i)
		}
	}
}
