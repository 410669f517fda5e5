package xsk

import (
	"errors"
	"fmt"
	"math/bits"
	"os"

	"golang.org/x/sys/unix"
)

const (
	// MinFrameSize is the smallest frame that the kernel takes, in bytes (XDP_UMEM_MIN_CHUNK_SIZE).
	MinFrameSize = 2048
	// PacketHeadroom is what the kernel keeps free for XDP at the start of each rx frame, in bytes, before the
	// configured headroom (XDP_PACKET_HEADROOM).
	PacketHeadroom = 256
	// UnalignedOffsetShift is where a descriptor's address carries its offset in unaligned mode
	// (XSK_UNALIGNED_BUF_OFFSET_SHIFT).
	UnalignedOffsetShift = 48

	unalignedAddrMask = 1<<UnalignedOffsetShift - 1
)

// UMEMConfig describes a UMEM: Frames frames of FrameSize bytes.
type UMEMConfig struct {
	// Frames is the number of frames, at least 1.
	Frames uint32
	// FrameSize is in bytes: a power of two from 2048 to the page size, or with Unaligned anything between these.
	// 0 means the page size or 4096, whichever is less.
	FrameSize uint32
	// Headroom is what stays free before a received packet, in bytes, beside PacketHeadroom; less than
	// FrameSize - PacketHeadroom.
	Headroom uint32
	// Unaligned allows frames at any address (XDP_UMEM_UNALIGNED_CHUNK_FLAG). None is laid across a page's end, so
	// with huge pages frames are packed closest.
	Unaligned bool
	// HugePageSize is the size of the pages behind the UMEM in bytes, a power of two such as 2<<20; 0 means normal
	// pages. The pages must have been reserved (vm.nr_hugepages).
	HugePageSize int
}

// WithDefaults returns c with its zero values replaced.
func (c UMEMConfig) WithDefaults() UMEMConfig {
	if c.FrameSize == 0 {
		c.FrameSize = uint32(min(os.Getpagesize(), 4096))
	}
	return c
}

// Validate checks c, after WithDefaults, against the rules that the kernel answers with a bare EINVAL.
func (c UMEMConfig) Validate() error {
	page := uint32(os.Getpagesize())
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.Frames == 0 {
		bad("frames: 0; at least 1 is needed")
	}
	switch {
	case c.FrameSize < MinFrameSize || c.FrameSize > page:
		bad("frame size: %d is out of range: %d to %d (the page size)", c.FrameSize, MinFrameSize, page)
	case !c.Unaligned && bits.OnesCount32(c.FrameSize) != 1:
		bad("frame size: %d is no power of two, which only unaligned mode allows", c.FrameSize)
	case c.Headroom >= c.FrameSize-PacketHeadroom:
		bad("headroom: %d leaves no room for packets: frame size %d less %d for XDP must be more", c.Headroom, c.FrameSize, PacketHeadroom)
	}
	if h := c.HugePageSize; h != 0 && (h < 0 || bits.OnesCount(uint(h)) != 1 || h <= int(page)) {
		bad("huge page size: %d is no power of two above the page size", h)
	}
	return errors.Join(errs...)
}

func (c UMEMConfig) pageSize() uint64 {
	if c.HugePageSize != 0 {
		return uint64(c.HugePageSize)
	}
	return uint64(os.Getpagesize())
}

// Length returns the size of the UMEM's memory in bytes, a multiple of its page size.
func (c UMEMConfig) Length() uint64 {
	page := c.pageSize()
	perPage := page / uint64(c.FrameSize)
	return (uint64(c.Frames) + perPage - 1) / perPage * page
}

// FrameAddr returns the address of frame i, its offset in the UMEM in bytes.
func (c UMEMConfig) FrameAddr(i uint32) uint64 {
	page := c.pageSize()
	perPage := page / uint64(c.FrameSize)
	return uint64(i)/perPage*page + uint64(i)%perPage*uint64(c.FrameSize)
}

// FrameOf returns the address of the frame in which addr, a descriptor's address, lies. In unaligned mode it knows the
// frame only of addresses that carry their offset apart, as those from the kernel and from PacketAddr do.
func (c UMEMConfig) FrameOf(addr uint64) uint64 { return addr & c.frameMask() }

func (c UMEMConfig) frameMask() uint64 {
	if c.Unaligned {
		return unalignedAddrMask
	}
	return ^(uint64(c.FrameSize) - 1)
}

// PacketAddr returns the address for the descriptor of a packet that begins offset bytes after the start of a frame.
func (c UMEMConfig) PacketAddr(frame uint64, offset uint32) uint64 {
	if c.Unaligned {
		return frame | uint64(offset)<<UnalignedOffsetShift
	}
	return frame + uint64(offset)
}

// Offset returns the byte offset in the UMEM that a descriptor's address means.
func (c UMEMConfig) Offset(addr uint64) uint64 {
	if !c.Unaligned {
		return addr
	}
	return addr&unalignedAddrMask + addr>>UnalignedOffsetShift
}

// MaxPacket returns how many bytes of a packet fit into one rx frame.
func (c UMEMConfig) MaxPacket() int { return int(c.FrameSize) - PacketHeadroom - int(c.Headroom) }

func (c UMEMConfig) flags() uint32 {
	if c.Unaligned {
		return unix.XDP_UMEM_UNALIGNED_CHUNK_FLAG
	}
	return 0
}

// UMEM is packet memory in a memfd that can be passed to the process that registers it.
type UMEM struct {
	Config UMEMConfig
	mem    []byte
	fd     int
}

// NewUMEM makes a UMEM whose pages are all present and whose size is sealed (F_SEAL_SHRINK, F_SEAL_GROW). The pages are
// charged to the calling process's memory cgroup.
func NewUMEM(c UMEMConfig) (_ *UMEM, err error) {
	c = c.WithDefaults()
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("make UMEM: %w", err)
	}
	flags := unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	if c.HugePageSize != 0 {
		flags |= unix.MFD_HUGETLB | bits.TrailingZeros(uint(c.HugePageSize))<<unix.MFD_HUGE_SHIFT
	}
	fd, err := unix.MemfdCreate("afxdp-umem", flags)
	if err != nil {
		e := &Error{Op: "make UMEM: memfd_create", Err: err}
		if c.HugePageSize != 0 {
			e.Advice = fmt.Sprintf("this machine has no huge pages of %d bytes; /sys/kernel/mm/hugepages lists those that it has",
				c.HugePageSize)
		}
		return nil, e
	}
	u := &UMEM{Config: c, fd: fd}
	defer func() {
		if err != nil {
			_ = u.Close()
		}
	}()
	length := int64(c.Length())
	if err := unix.Ftruncate(fd, length); err != nil {
		return nil, &Error{Op: fmt.Sprintf("make UMEM of %d bytes", length), Err: err}
	}
	// fallocate reports what the memory cgroup or the huge page pool lacks; a page fault would kill the process.
	if err := unix.Fallocate(fd, 0, 0, length); err != nil {
		e := &Error{Op: fmt.Sprintf("allocate UMEM of %d bytes", length), Err: err}
		if c.HugePageSize != 0 && errors.Is(err, unix.ENOSPC) {
			e.Advice = fmt.Sprintf("not enough free huge pages of %d bytes (vm.nr_hugepages, or the pod's hugepages limit)", c.HugePageSize)
		}
		return nil, e
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		return nil, &Error{Op: "seal UMEM", Err: err}
	}
	u.mem, err = unix.Mmap(fd, 0, int(length), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, &Error{Op: fmt.Sprintf("map UMEM of %d bytes", length), Err: err}
	}
	return u, nil
}

// FD lends the memfd, to be passed to the process that registers the UMEM.
func (u *UMEM) FD() int { return u.fd }

// Bytes returns the whole memory.
func (u *UMEM) Bytes() []byte { return u.mem }

// Packet returns the bytes that a descriptor describes. The descriptor must come from the kernel or be within the UMEM.
func (u *UMEM) Packet(d Desc) []byte {
	off := u.Config.Offset(d.Addr)
	end := off + uint64(d.Len)
	return u.mem[off:end:end]
}

// Close unmaps the memory and closes the memfd. Sockets with the UMEM keep the pages until they are closed.
func (u *UMEM) Close() error {
	var errs []error
	if u.mem != nil {
		errs = append(errs, unix.Munmap(u.mem))
		u.mem = nil
	}
	if u.fd >= 0 {
		errs = append(errs, unix.Close(u.fd))
		u.fd = -1
	}
	return errors.Join(errs...)
}
