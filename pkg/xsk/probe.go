package xsk

import (
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// releaseTime is more than the kernel takes to let go of a queue after the last descriptor of its socket is closed.
const releaseTime = time.Second

// ProbeMapBound tells whether this kernel maps the rings of a socket that is already bound, as Linux does since 6.4. It
// tries, on a socket in copy mode on the loopback device, where it disturbs nothing: without an XDP program no packet
// goes to an AF_XDP socket. It needs the rights for that, and lo to be up.
//
// The error is ErrUnsupported when the kernel cannot; any other means that it could not be found out.
func ProbeMapBound() (err error) {
	fail := func(err error) error {
		return fmt.Errorf("probe whether rings of a bound AF_XDP socket can be mapped: %w", err)
	}
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		return fail(err)
	}
	if lo.Flags&net.FlagUp == 0 {
		return fail(fmt.Errorf("lo is down: %w", unix.ENETDOWN))
	}
	umem, err := NewUMEM(UMEMConfig{Frames: 2, FrameSize: MinFrameSize})
	if err != nil {
		return fail(err)
	}
	defer func() { err = errors.Join(err, umem.Close()) }()
	s, err := NewSocket()
	if err != nil {
		return fail(err)
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	sizes := RingSizes{Fill: 2, Completion: 2, RX: 2}
	if err := s.RegisterUMEM(umem.Bytes(), umem.Config); err != nil {
		return fail(err)
	}
	if err := s.SetRings(sizes); err != nil {
		return fail(err)
	}
	// lo's queue may be held by another probe, or by one that has just ended.
	for deadline := time.Now().Add(releaseTime); ; time.Sleep(10 * time.Millisecond) {
		err := s.Bind(BindConfig{Ifindex: lo.Index, Mode: ZeroCopyOff})
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return fail(err)
		}
	}
	r, err := s.Map(sizes)
	if err != nil {
		return fail(err)
	}
	return r.Close()
}
