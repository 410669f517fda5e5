package client

import (
	"errors"
	"fmt"
	"math"

	"github.com/afxdp-project/afxdp/pkg/xsk"
)

// AllConfig says how OpenAll opens all devices.
type AllConfig struct {
	FramesPerQueue uint32 // 0: as many as the queue's fill and tx ring hold together
	FrameSize      uint32 // bytes; 0: xsk.UMEMConfig's default
	Headroom       uint32 // bytes
	ZeroCopy       xsk.ZeroCopy
	Open           OpenConfig
}

// Set is all devices of an allocation, on one shared UMEM.
type Set struct {
	UMEM   *xsk.UMEM
	Queues []*Queue
	// Frames are the frames of each queue, all free. Queues do not share frames: what a queue sends comes back to it.
	Frames []*xsk.Frames
}

// OpenAll makes one UMEM and opens all leased devices on it. On error nothing stays open.
func (c *Client) OpenAll(config AllConfig) (_ *Set, err error) {
	var leased []Device
	for _, d := range c.devices {
		if d.Leased {
			leased = append(leased, d)
		}
	}
	perQueue := config.FramesPerQueue
	if perQueue == 0 {
		ring := min(DefaultRingSize, c.maxRing)
		fill, tx := config.Open.Rings.Fill, config.Open.Rings.TX
		if fill == 0 {
			fill = ring
		}
		if tx == 0 {
			tx = ring
		}
		perQueue = fill + tx
	}
	frames := uint64(perQueue) * uint64(len(leased))
	if frames > math.MaxUint32 {
		return nil, fmt.Errorf("open all: %d frames for each of %d queues are too many", perQueue, len(leased))
	}
	set := &Set{}
	defer func() {
		if err != nil {
			err = errors.Join(err, set.Close())
		}
	}()
	set.UMEM, err = c.Register(UMEMConfig{
		UMEMConfig: xsk.UMEMConfig{Frames: uint32(frames), FrameSize: config.FrameSize, Headroom: config.Headroom},
		ZeroCopy:   config.ZeroCopy,
	})
	if err != nil {
		return nil, err
	}
	for i, d := range leased {
		q, err := c.Open(d.Index, set.UMEM, config.Open)
		if err != nil {
			return nil, err
		}
		set.Queues = append(set.Queues, q)
		set.Frames = append(set.Frames, xsk.NewFrames(set.UMEM.Config, uint32(i)*perQueue, perQueue))
	}
	return set, nil
}

// Close closes the queues and the UMEM.
func (s *Set) Close() error {
	var errs []error
	for _, q := range s.Queues {
		errs = append(errs, q.Close())
	}
	if s.UMEM != nil {
		errs = append(errs, s.UMEM.Close())
	}
	return errors.Join(errs...)
}
