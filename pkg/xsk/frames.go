package xsk

// Frames is a stack of free frame addresses: frames that are in no ring. It has one owner, like a ring.
type Frames struct {
	free []uint64
	mask uint64 // what of an address tells the frame
}

// NewFrames returns the frames first to first+count-1 of a UMEM, all free. Queues that share a UMEM each take a range
// of their own, since a packet's frame comes back on the queue that it went out on.
func NewFrames(c UMEMConfig, first, count uint32) *Frames {
	f := &Frames{free: make([]uint64, 0, count), mask: c.frameMask()}
	for i := first + count; i > first; i-- {
		f.free = append(f.free, c.FrameAddr(i-1))
	}
	return f
}

// Free returns how many frames are free.
func (f *Frames) Free() int { return len(f.free) }

// Get takes up to len(dst) frames and returns how many.
func (f *Frames) Get(dst []uint64) int {
	left := max(0, len(f.free)-len(dst))
	n := copy(dst, f.free[left:])
	f.free = f.free[:left]
	return n
}

// Put gives frames back, each by any address within it (in unaligned mode: that [UMEMConfig.FrameOf] knows), such as
// those that the completion ring brings. Each must have come from Get or, by way of a ring, from the kernel.
func (f *Frames) Put(addrs []uint64) {
	for _, a := range addrs {
		f.free = append(f.free, a&f.mask)
	}
}

// PutPackets gives back the frames of packets that are not sent on.
func (f *Frames) PutPackets(descs []Desc) {
	for i := range descs {
		f.free = append(f.free, descs[i].Addr&f.mask)
	}
}
