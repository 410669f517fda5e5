package xsk

import (
	"errors"
	"fmt"
	"math/bits"

	"golang.org/x/sys/unix"
)

// Desc describes a packet, or with PacketContinued in Options a part of one, in the UMEM (struct xdp_desc).
type Desc struct {
	Addr    uint64 // byte offset in the UMEM; see UMEMConfig.Offset for unaligned mode
	Len     uint32 // bytes
	Options uint32
}

// PacketContinued in a descriptor's Options says that the packet goes on in the next descriptor (XDP_PKT_CONTD).
const PacketContinued = unix.XDP_PKT_CONTD

// Continued reports whether the packet goes on in the next descriptor.
func (d Desc) Continued() bool { return d.Options&PacketContinued != 0 }

// FillRing hands free frames to the kernel for reception.
type FillRing struct{ producer[uint64] }

// Refill hands over as many of the frames addrs as the ring takes and returns how many.
func (r *FillRing) Refill(addrs []uint64) int { return r.push(addrs) }

// CompletionRing brings back the frames of packets that were sent.
type CompletionRing struct{ consumer[uint64] }

// Complete takes up to len(dst) frames back and returns how many.
func (r *CompletionRing) Complete(dst []uint64) int { return r.pull(dst) }

// RXRing brings received packets.
type RXRing struct{ consumer[Desc] }

// Receive takes up to len(dst) descriptors and returns how many. Their frames are the caller's until Refill.
func (r *RXRing) Receive(dst []Desc) int { return r.pull(dst) }

// TXRing takes packets to be sent.
type TXRing struct{ producer[Desc] }

// Transmit queues as many of the packets as the ring takes and returns how many. The kernel sends them after a wakeup
// (Socket.WakeTX); their frames come back on the completion ring. Parts of one packet must be queued in one call, and
// the caller must not queue only some of them: when the count falls within a packet, ask for room with Reserve first.
func (r *TXRing) Transmit(descs []Desc) int { return r.push(descs) }

// RingSizes are the numbers of entries of a socket's rings, each 0 or a power of two. A socket needs rx or tx; the
// first one on a (device, queue) needs fill and completion, a further one on it has none.
type RingSizes struct{ Fill, Completion, RX, TX uint32 }

// MaxRingSize is the largest ring that this package makes, in entries. The kernel would take larger ones.
const MaxRingSize = 65536

// Validate checks the sizes against the kernel's rules and MaxRingSize.
func (s RingSizes) Validate() error {
	var errs []error
	for _, r := range []struct {
		name string
		size uint32
	}{{"fill", s.Fill}, {"completion", s.Completion}, {"rx", s.RX}, {"tx", s.TX}} {
		switch {
		case r.size > MaxRingSize:
			errs = append(errs, fmt.Errorf("%s ring size: %d is out of range: 0 to %d", r.name, r.size, MaxRingSize))
		case r.size != 0 && bits.OnesCount32(r.size) != 1:
			errs = append(errs, fmt.Errorf("%s ring size: %d is no power of two", r.name, r.size))
		}
	}
	if s.RX == 0 && s.TX == 0 {
		errs = append(errs, errors.New("rx and tx ring size: both 0; a socket needs one of them"))
	}
	if (s.Fill == 0) != (s.Completion == 0) {
		errs = append(errs, errors.New("fill and completion ring size: one is 0; a socket has both or neither"))
	}
	return errors.Join(errs...)
}

// Rings are a socket's rings, mapped into this process. A ring of size 0 is nil.
type Rings struct {
	Fill       *FillRing
	Completion *CompletionRing
	RX         *RXRing
	TX         *TXRing

	mappings [][]byte
}
