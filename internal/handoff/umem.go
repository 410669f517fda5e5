package handoff

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/wire"
	"github.com/afxdp-project/afxdp/pkg/xsk"
)

// registerUMEM checks the pod's memfd, registers it as the UMEM of a new AF_XDP socket and returns that. fd stays the
// caller's, to close at once: the kernel keeps the pages.
func registerUMEM(fd int, m *wire.UMEM, maxBytes uint64, maxFrames uint32) (*xsk.Socket, error) {
	config, err := checkUMEM(fd, m, maxBytes, maxFrames)
	if err != nil {
		return nil, err
	}
	// Without MAP_NORESERVE the huge pages that the memfd lacks would be reserved, on the agent's account, from what the
	// whole node has.
	mem, err := unix.Mmap(fd, 0, int(m.Length), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return nil, wire.Errorf(wire.CodeInvalid, "map the memfd: %v", err)
	}
	s, err := registerMapped(mem, config)
	if uerr := unix.Munmap(mem); uerr != nil && err == nil {
		return nil, errors.Join(fmt.Errorf("unmap the memfd: %w", uerr), s.Close())
	}
	return s, err
}

func registerMapped(mem []byte, config xsk.UMEMConfig) (*xsk.Socket, error) {
	// A page that is missing must not be made here, where it would be charged to the agent instead of the pod.
	guard, err := forbidMissingPages(mem)
	if err != nil {
		return nil, wire.Errorf(wire.CodeInternal, "guard the memfd against missing pages: %v", err)
	}
	defer func() { _ = unix.Close(guard) }()
	s, err := xsk.NewSocket()
	if err != nil {
		return nil, wire.Errorf(wire.CodeInternal, "%v", err)
	}
	if err := s.RegisterUMEM(mem, config); err != nil {
		return nil, errors.Join(refusedUMEM(err), s.Close())
	}
	return s, nil
}

// refusedUMEM tells what the kernel's refusal means. Of a missing page it says ENOMEM when there were others before it.
func refusedUMEM(err error) error {
	switch {
	case errors.Is(err, unix.EFAULT), errors.Is(err, unix.ENOMEM):
		return wire.Errorf(wire.CodeInvalid,
			"UMEM: not all pages of the memfd are present: allocate them (fallocate) before the memfd "+
				"is sent, and punch no holes (%v)", err)
	case errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.EPERM):
		return wire.Errorf(wire.CodeInternal, "%v", err)
	}
	return wire.Errorf(wire.CodeUnsupported, "%v", err)
}

// checkUMEM checks the memfd against its description and the limits. The seals are looked at first: only memfds and
// the like have them, and with F_SEAL_SHRINK and F_SEAL_GROW the size that is read next is the size for ever.
func checkUMEM(fd int, m *wire.UMEM, maxBytes uint64, maxFrames uint32) (xsk.UMEMConfig, error) {
	var c xsk.UMEMConfig
	bad := func(format string, args ...any) (xsk.UMEMConfig, error) {
		return c, wire.Errorf(wire.CodeInvalid, "UMEM: "+format, args...)
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return bad("the descriptor is no memfd (reading its seals: %v)", err)
	}
	if seals&unix.F_SEAL_SHRINK == 0 || seals&unix.F_SEAL_GROW == 0 {
		return bad("the memfd must be sealed with F_SEAL_SHRINK and F_SEAL_GROW; its seals are %#x", seals)
	}
	if seals&(unix.F_SEAL_WRITE|unix.F_SEAL_FUTURE_WRITE) != 0 {
		return bad("the memfd is sealed against writing (seals %#x), so no packet can be received into it", seals)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return bad("fstat: %v", err)
	}
	if st.Size != int64(m.Length) {
		return bad("the memfd has %d bytes, the message says %d", st.Size, m.Length)
	}
	if m.Length > maxBytes {
		return c, wire.Errorf(wire.CodeLimit, "UMEM: %d bytes are more than the pool's limit of %d", m.Length, maxBytes)
	}
	page := uint64(os.Getpagesize())
	if m.Length == 0 || m.Length%page != 0 {
		return bad("%d bytes are no multiple of the page size of %d", m.Length, page)
	}
	if m.FrameSize < xsk.MinFrameSize || uint64(m.FrameSize) > page {
		return bad("frame size %d is out of range: %d to %d", m.FrameSize, xsk.MinFrameSize, page)
	}
	// The kernel keeps a buffer of its own for each.
	if frames := m.Length / uint64(m.FrameSize); frames > uint64(maxFrames) {
		return c, wire.Errorf(wire.CodeLimit, "UMEM: %d frames are more than the pool's limit of %d", frames, maxFrames)
	}
	// As many as never cross a page; with huge pages the client may lay more, which is no concern of ours.
	frames := m.Length / page * (page / uint64(m.FrameSize))
	c = xsk.UMEMConfig{
		Frames: uint32(frames), FrameSize: m.FrameSize, Headroom: m.Headroom, Unaligned: m.Flags&wire.UMEMUnaligned != 0,
	}
	if err := c.Validate(); err != nil {
		return bad("%v", err)
	}
	return c, nil
}
