package xsk

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Map maps the socket's rings, whose sizes must be those that SetRings was given. The caller closes the Rings; they do
// not keep the socket's descriptor open, but the mappings keep the socket itself, and so its queue, in the kernel.
//
// Mapping the rings of a bound socket fails with EBUSY before Linux 6.4, and is then ErrUnsupported.
func (s *Socket) Map(sizes RingSizes) (_ *Rings, err error) {
	if err := sizes.Validate(); err != nil {
		return nil, fmt.Errorf("map rings: %w", err)
	}
	off, err := s.mmapOffsets()
	if err != nil {
		return nil, err
	}
	r := &Rings{}
	defer func() {
		if err != nil {
			_ = r.Close()
		}
	}()
	m := mapper{fd: s.fd, rings: r}
	if h, p := m.ring("fill", sizes.Fill, off.Fr, unix.XDP_UMEM_PGOFF_FILL_RING, unsafe.Sizeof(uint64(0))); p != nil {
		r.Fill = &FillRing{newProducer(h, unsafe.Slice((*uint64)(p), sizes.Fill))}
	}
	if h, p := m.ring("completion", sizes.Completion, off.Cr, unix.XDP_UMEM_PGOFF_COMPLETION_RING, unsafe.Sizeof(uint64(0))); p != nil {
		r.Completion = &CompletionRing{newConsumer(h, unsafe.Slice((*uint64)(p), sizes.Completion))}
	}
	if h, p := m.ring("rx", sizes.RX, off.Rx, unix.XDP_PGOFF_RX_RING, unsafe.Sizeof(Desc{})); p != nil {
		r.RX = &RXRing{newConsumer(h, unsafe.Slice((*Desc)(p), sizes.RX))}
	}
	if h, p := m.ring("tx", sizes.TX, off.Tx, unix.XDP_PGOFF_TX_RING, unsafe.Sizeof(Desc{})); p != nil {
		r.TX = &TXRing{newProducer(h, unsafe.Slice((*Desc)(p), sizes.TX))}
	}
	if m.err != nil {
		return nil, m.err
	}
	return r, nil
}

// mapper maps one ring after another and keeps the first error.
type mapper struct {
	fd    int
	rings *Rings
	err   error
}

func (m *mapper) ring(name string, size uint32, off unix.XDPRingOffset, pgoff int64, entry uintptr) (header, unsafe.Pointer) {
	if size == 0 || m.err != nil {
		return header{}, nil
	}
	length := int(off.Desc) + int(size)*int(entry)
	mem, err := unix.Mmap(m.fd, pgoff, length, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		e := &Error{Op: fmt.Sprintf("map %s ring of %d entries", name, size), Err: err}
		switch {
		case errors.Is(err, unix.EBUSY):
			e.Err = fmt.Errorf("%w: %w", ErrUnsupported, err)
			e.Advice = "kernels before 6.4 cannot map the rings of a bound socket"
		case errors.Is(err, unix.EINVAL):
			e.Advice = "the socket has no such ring, or one of another size"
		}
		m.err = e
		return header{}, nil
	}
	m.rings.mappings = append(m.rings.mappings, mem)
	at := func(o uint64) *uint32 { return (*uint32)(unsafe.Pointer(&mem[o])) }
	return header{producer: at(off.Producer), consumer: at(off.Consumer), flags: at(off.Flags)}, unsafe.Pointer(&mem[off.Desc])
}

// Close unmaps the rings.
func (r *Rings) Close() error {
	var errs []error
	for _, m := range r.mappings {
		errs = append(errs, unix.Munmap(m))
	}
	*r = Rings{}
	return errors.Join(errs...)
}
