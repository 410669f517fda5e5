package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
)

// A packet is the smallest Ethernet frame, of an experimental type, with queue and number in it:
//
//	0 destination, 6 source, 12 type, 14 mark, 20 queue, 24 number, 32 filling
const (
	packetSize = 60
	macSize    = 6
)

var (
	etherType = []byte{0x88, 0xb5}
	mark      = []byte("afxdp ")
)

// packets writes the packets of one queue and reads their answers.
type packets struct {
	question, answer [packetSize]byte // without the number
}

func newPackets(source, destination net.HardwareAddr, queue int) *packets {
	fill := func(p *[packetSize]byte, to, from net.HardwareAddr) {
		copy(p[:], to)
		copy(p[macSize:], from)
		copy(p[2*macSize:], etherType)
		copy(p[14:], mark)
		binary.BigEndian.PutUint32(p[20:], uint32(queue))
		for i := 32; i < packetSize; i++ {
			p[i] = byte(i * 7)
		}
	}
	p := &packets{}
	fill(&p.question, destination, source)
	fill(&p.answer, source, destination)
	return p
}

// write writes a question into b, which has room for packetSize bytes.
func (p *packets) write(b []byte, number uint64) {
	copy(b, p.question[:])
	binary.BigEndian.PutUint64(b[24:], number)
}

var errNoAnswer = errors.New("not an answer")

// read returns the number of the question to which b is the answer: the same bytes, the addresses swapped.
func (p *packets) read(b []byte) (number uint64, err error) {
	if len(b) != packetSize || !bytes.Equal(b[:24], p.answer[:24]) || !bytes.Equal(b[32:], p.answer[32:]) {
		return 0, errNoAnswer
	}
	return binary.BigEndian.Uint64(b[24:]), nil
}
