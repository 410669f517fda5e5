package netdev

import (
	"fmt"

	"github.com/mdlayher/netlink"
)

// The netdev family's queue statistics (linux/netdev.h).
const (
	netdevCmdQStatsGet = 12

	netdevQStatsIndex     = 1
	netdevQStatsQueueType = 2
	netdevQStatsQueueID   = 3
	netdevQStatsScope     = 4
	netdevQStatsRxPackets = 8
	netdevQStatsTxPackets = 10

	netdevQStatsScopeQueue = 1
)

// QueueStatistics are counters of one queue, kept by the driver. They begin when the driver makes the queue, and may
// begin anew when it makes it again, as some do when the link goes down and up. A nil one is not kept.
type QueueStatistics struct {
	Index int // counts from 0 in each direction
	Type  QueueType
	// Packets were received, or sent, by the queue, whoever got or brought them.
	Packets *uint64
}

// QueueStatistics reads the counters of each queue of a NIC (qstats-get). [ErrUnsupported] before Linux 6.10, and for a
// driver that keeps none, as veth.
func (h *Handle) QueueStatistics(index int) ([]QueueStatistics, error) {
	if err := checkIndex(index); err != nil {
		return nil, fmt.Errorf("read queue statistics: %w", err)
	}
	ae := netlink.NewAttributeEncoder()
	ae.Uint32(netdevQStatsIndex, uint32(index))
	// The kernel's type is uint, which may be 4 bytes wide.
	ae.Uint32(netdevQStatsScope, netdevQStatsScopeQueue)
	bodies, err := h.generic.request(h.netdev, netdevCmdQStatsGet, netlink.Dump, ae)
	if err != nil {
		return nil, fmt.Errorf("read queue statistics of link %d: %w", index, err)
	}
	all := make([]QueueStatistics, 0, len(bodies))
	for _, b := range bodies {
		var q QueueStatistics
		var rx, tx *uint64
		err := attributes(b, func(ad *netlink.AttributeDecoder) {
			switch ad.Type() {
			case netdevQStatsQueueID:
				q.Index = int(ad.Uint32())
			case netdevQStatsQueueType:
				q.Type = [...]QueueType{RX, TX}[ad.Uint32()&1]
			case netdevQStatsRxPackets:
				rx = new(uintAttribute(ad))
			case netdevQStatsTxPackets:
				tx = new(uintAttribute(ad))
			}
		})
		if err != nil {
			return nil, fmt.Errorf("read queue statistics of link %d: %w", index, err)
		}
		if q.Packets = rx; q.Type == TX {
			q.Packets = tx
		}
		all = append(all, q)
	}
	return all, nil
}
