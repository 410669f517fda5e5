package main

import (
	"bytes"
	"encoding/binary"
)

// A packet is the smallest Ethernet frame, of an experimental type, which says who sent it:
//
//	0 destination, 6 source, 12 type, 14 mark, 20 kind, 24 tag, 32 queue, 36 number, 44 filling
const (
	packetSize = 60
	question   = 1
	answer     = 2
)

var (
	etherType = []byte{0x88, 0xb5}
	mark      = []byte("afxe2e")
)

// label is what a packet says of itself.
type label struct {
	kind   byte
	tag    uint64 // of the sender
	queue  uint32 // of the NIC that it was sent from
	number uint64
}

// write makes a packet of b, which has room for packetSize bytes.
func (l label) write(b []byte) {
	b = b[:packetSize]
	copy(b, []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1})
	copy(b[12:], etherType)
	copy(b[14:], mark)
	b[20], b[21], b[22], b[23] = l.kind, 0, 0, 0
	binary.BigEndian.PutUint64(b[24:], l.tag)
	binary.BigEndian.PutUint32(b[32:], l.queue)
	binary.BigEndian.PutUint64(b[36:], l.number)
	for i := 44; i < packetSize; i++ {
		b[i] = filling(l.number, i)
	}
}

func filling(number uint64, i int) byte { return byte(number)*31 + byte(i) }

// read returns what a packet says; ok is false for one that is none of ours or is not whole.
func read(b []byte) (l label, ok bool) {
	if len(b) != packetSize || !bytes.Equal(b[12:14], etherType) || !bytes.Equal(b[14:20], mark) {
		return label{}, false
	}
	l = label{
		kind: b[20], tag: binary.BigEndian.Uint64(b[24:]), queue: binary.BigEndian.Uint32(b[32:]),
		number: binary.BigEndian.Uint64(b[36:]),
	}
	for i := 44; i < packetSize; i++ {
		if b[i] != filling(l.number, i) {
			return label{}, false
		}
	}
	return l, true
}
