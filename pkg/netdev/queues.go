package netdev

import (
	"fmt"

	"github.com/mdlayher/netlink"
)

// The netdev family's commands and attributes (linux/netdev.h).
const (
	netdevCmdDevGet       = 1
	netdevCmdDevChangeNtf = 4
	netdevCmdQueueGet     = 10
	netdevCmdNAPIGet      = 11
	netdevCmdNAPISet      = 14

	netdevDevIndex       = 1
	netdevDevXDPFeatures = 3
	netdevDevZCMaxSegs   = 4

	netdevQueueID    = 1
	netdevQueueIndex = 2
	netdevQueueType  = 3
	netdevQueueNAPI  = 4
	netdevQueueXSK   = 7
)

// QueueType is the direction of a queue.
type QueueType string

const (
	RX QueueType = "rx"
	TX QueueType = "tx"
)

// Queue is a queue of a NIC that is in use.
type Queue struct {
	Index int // counts from 0 in each direction
	Type  QueueType
	// NAPI is the id of the NAPI that serves the queue; 0 where the driver links none, and busy polling cannot work. It
	// changes when the link goes down and up: never store it.
	NAPI uint32
	// XSK says that an AF_XDP socket is bound to the queue in zero-copy or copy mode. It is false too on kernels that
	// do not tell (before 6.15).
	XSK bool
}

// Queues lists the queues of a NIC that are in use, receive queues first. It is empty while the NIC is down.
// [ErrUnsupported] before Linux 6.8.
func (h *Handle) Queues(index int) ([]Queue, error) {
	if err := checkIndex(index); err != nil {
		return nil, fmt.Errorf("list queues: %w", err)
	}
	ae := netlink.NewAttributeEncoder()
	ae.Uint32(netdevQueueIndex, uint32(index))
	bodies, err := h.generic.request(h.netdev, netdevCmdQueueGet, netlink.Dump, ae)
	if err != nil {
		return nil, fmt.Errorf("list queues of link %d: %w", index, err)
	}
	queues := make([]Queue, 0, len(bodies))
	for _, b := range bodies {
		var q Queue
		err := attributes(b, func(ad *netlink.AttributeDecoder) {
			switch ad.Type() {
			case netdevQueueID:
				q.Index = int(ad.Uint32())
			case netdevQueueType:
				q.Type = [...]QueueType{RX, TX}[ad.Uint32()&1]
			case netdevQueueNAPI:
				q.NAPI = ad.Uint32()
			case netdevQueueXSK:
				q.XSK = true
			}
		})
		if err != nil {
			return nil, fmt.Errorf("list queues of link %d: %w", index, err)
		}
		queues = append(queues, q)
	}
	return queues, nil
}

// XDPFeatures is what a driver says that it can do with XDP. What it says of zero-copy is no promise: only a bind
// tells.
type XDPFeatures struct {
	Basic     bool // drop, pass, transmit
	Redirect  bool // XDP_REDIRECT, without which nothing reaches an AF_XDP socket natively
	NDOXmit   bool // can be redirected to
	ZeroCopy  bool // AF_XDP zero-copy
	HWOffload bool
	RxSG      bool // multi-buffer on receive
	NDOXmitSG bool // multi-buffer when redirected to
	// ZCMaxSegs is the most descriptors that one zero-copy frame may be made of; 0 without zero-copy.
	ZCMaxSegs int
}

// XDPFeatures reads the XDP features of a NIC. [ErrUnsupported] before Linux 6.3.
func (h *Handle) XDPFeatures(index int) (XDPFeatures, error) {
	if err := checkIndex(index); err != nil {
		return XDPFeatures{}, fmt.Errorf("read XDP features: %w", err)
	}
	ae := netlink.NewAttributeEncoder()
	ae.Uint32(netdevDevIndex, uint32(index))
	var f XDPFeatures
	err := h.generic.requestOne(h.netdev, netdevCmdDevGet, ae, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case netdevDevXDPFeatures:
			bits := ad.Uint64()
			for i, b := range []*bool{
				&f.Basic, &f.Redirect, &f.NDOXmit, &f.ZeroCopy, &f.HWOffload, &f.RxSG, &f.NDOXmitSG,
			} {
				*b = bits&(1<<i) != 0
			}
		case netdevDevZCMaxSegs:
			f.ZCMaxSegs = int(ad.Uint32())
		}
	})
	if err != nil {
		return XDPFeatures{}, fmt.Errorf("read XDP features of link %d: %w", index, err)
	}
	return f, nil
}
