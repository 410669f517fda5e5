package main

import (
	"encoding/binary"
	"net"

	"github.com/afxdp-project/afxdp/pkg/busypoll"
	"github.com/afxdp-project/afxdp/pkg/xsk"
)

// drop is the handler of rxdrop.
func drop(*busypoll.Queue, []xsk.Desc) int { return 0 }

// newForwarder returns the handler of l2fwd.
func newForwarder() busypoll.Handler {
	return func(q *busypoll.Queue, packets []xsk.Desc) int {
		first := true // a batch begins with a packet's begin
		for i := range packets {
			if first {
				swapMACs(q.UMEM.Packet(packets[i]))
			}
			first = !packets[i].Continued()
		}
		return len(packets)
	}
}

// swapMACs swaps the destination and the source of an Ethernet frame.
func swapMACs(p []byte) {
	if len(p) < 12 {
		return
	}
	var target [6]byte
	copy(target[:], p[:6])
	copy(p[:6], p[6:12])
	copy(p[6:12], target[:])
}

const (
	ethHeader = 14
	ipHeader  = 20
	udpHeader = 8
	firstPort = 49152
	flows     = 256
)

// generator makes the packets of txonly.
type generator struct {
	packet []byte
	left   uint64 // packets still to be made
	flow   uint16
}

// newGenerator makes packets of size bytes: UDP to the discard port between two addresses of the range for benchmarks
// (198.18.0.0/15), over so many source ports that receive-side scaling spreads them.
func newGenerator(source, target net.HardwareAddr, size int, packets uint64) *generator {
	p := make([]byte, size)
	copy(p, target)
	copy(p[6:], source)
	binary.BigEndian.PutUint16(p[12:], 0x0800)
	ip := p[ethHeader:]
	ip[0] = 0x45
	binary.BigEndian.PutUint16(ip[2:], uint16(size-ethHeader))
	ip[8], ip[9] = 64, 17 // time to live, UDP
	copy(ip[12:], []byte{198, 18, 0, 1, 198, 18, 0, 2})
	binary.BigEndian.PutUint16(ip[10:], checksum(ip[:ipHeader]))
	udp := ip[ipHeader:]
	binary.BigEndian.PutUint16(udp[2:], 9)
	binary.BigEndian.PutUint16(udp[4:], uint16(size-ethHeader-ipHeader)) // its checksum is 0: none
	return &generator{packet: p, left: packets}
}

func (g *generator) generate(q *busypoll.Queue, frames []xsk.Desc) int {
	n := int(min(uint64(len(frames)), g.left))
	for i := range frames[:n] {
		frames[i].Len = uint32(len(g.packet))
		p := q.UMEM.Packet(frames[i])
		copy(p, g.packet)
		binary.BigEndian.PutUint16(p[ethHeader+ipHeader:], firstPort+g.flow)
		g.flow = (g.flow + 1) % flows
	}
	g.left -= uint64(n)
	return n
}

// checksum is the Internet checksum of an IPv4 header whose own checksum is 0.
func checksum(header []byte) uint16 {
	var sum uint32
	for i := 0; i < len(header); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(header[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
