package xsk

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// RegisterUMEM registers mem, page-aligned and all present, as the socket's UMEM (XDP_UMEM_REG). The kernel pins the
// pages, so mem may be unmapped as soon as this returns.
func (s *Socket) RegisterUMEM(mem []byte, c UMEMConfig) error {
	if err := c.Validate(); err != nil {
		return fmt.Errorf("register UMEM: %w", err)
	}
	if uint64(len(mem)) < c.Length() {
		return fmt.Errorf("register UMEM: %d frames of %d bytes need %d bytes, there are %d", c.Frames, c.FrameSize, c.Length(), len(mem))
	}
	reg := unix.XDPUmemReg{
		Addr: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))), Len: c.Length(),
		Size: c.FrameSize, Headroom: c.Headroom, Flags: c.flags(),
	}
	_, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(s.fd), unix.SOL_XDP, unix.XDP_UMEM_REG,
		uintptr(unsafe.Pointer(&reg)), unsafe.Sizeof(reg), 0)
	if errno != 0 {
		return umemError(c, len(mem), errno)
	}
	return nil
}

// Statistics counts what a socket lost since it was made (struct xdp_statistics).
type Statistics struct {
	RXDropped     uint64 // packets dropped for another reason than a full rx ring
	RXInvalid     uint64 // invalid rx descriptors; Linux 6.18 skips bad fill ring entries without counting them here
	TXInvalid     uint64 // tx descriptors that are not within a frame
	RXRingFull    uint64 // packets dropped since the rx ring was full
	FillRingEmpty uint64 // times that a packet found the fill ring empty
	TXRingEmpty   uint64 // times that the driver found the tx ring empty: no loss
}

// Lost returns the packets that were not delivered for want of room: rx ring full, or no frame in the fill ring (which
// the kernel counts as dropped).
func (s Statistics) Lost() uint64 { return s.RXDropped + s.RXRingFull }

// Statistics reads the socket's counters (XDP_STATISTICS).
func (s *Socket) Statistics() (Statistics, error) {
	var st unix.XDPStatistics
	if _, err := s.getsockopt("statistics", unix.XDP_STATISTICS, unsafe.Pointer(&st), unsafe.Sizeof(st)); err != nil {
		return Statistics{}, err
	}
	return Statistics{
		RXDropped: st.Rx_dropped, RXInvalid: st.Rx_invalid_descs, TXInvalid: st.Tx_invalid_descs,
		RXRingFull: st.Rx_ring_full, FillRingEmpty: st.Rx_fill_ring_empty_descs, TXRingEmpty: st.Tx_ring_empty_descs,
	}, nil
}

// IsZeroCopy reports whether the bound socket is in zero-copy mode (XDP_OPTIONS). It says nothing of whether the XDP
// program runs natively.
func (s *Socket) IsZeroCopy() (bool, error) {
	var options uint32
	if _, err := s.getsockopt("options", unix.XDP_OPTIONS, unsafe.Pointer(&options), unsafe.Sizeof(options)); err != nil {
		return false, err
	}
	return options&unix.XDP_OPTIONS_ZEROCOPY != 0, nil
}

func (s *Socket) mmapOffsets() (unix.XDPMmapOffsets, error) {
	var off unix.XDPMmapOffsets
	n, err := s.getsockopt("ring offsets", unix.XDP_MMAP_OFFSETS, unsafe.Pointer(&off), unsafe.Sizeof(off))
	if err == nil && n != unsafe.Sizeof(off) {
		// Linux before 5.4 has no flags word in its rings.
		err = &Error{Op: "read ring offsets of AF_XDP socket", Err: ErrUnsupported, Advice: "the kernel is older than 5.4"}
	}
	return off, err
}

func (s *Socket) getsockopt(what string, opt int, p unsafe.Pointer, size uintptr) (uintptr, error) {
	n := uint32(size)
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(s.fd), unix.SOL_XDP, uintptr(opt), uintptr(p),
		uintptr(unsafe.Pointer(&n)), 0)
	if errno != 0 {
		return 0, &Error{Op: "read " + what + " of AF_XDP socket", Err: errno}
	}
	return uintptr(n), nil
}
