package netdev

import (
	"fmt"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Channels are a NIC's channels as ethtool counts them: a channel is an interrupt with the queues that it serves. 0
// stands for "has none of that kind".
type Channels struct {
	RX, TX, Combined, Other             int
	MaxRX, MaxTX, MaxCombined, MaxOther int
}

// Channels reads a NIC's channels. [ErrUnsupported] where the driver knows none.
func (h *Handle) Channels(index int) (Channels, error) {
	var c Channels
	ae, err := ethtoolHeader(index)
	if err != nil {
		return c, fmt.Errorf("read channels: %w", err)
	}
	err = h.generic.requestOne(h.ethtool, unix.ETHTOOL_MSG_CHANNELS_GET, ae, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case unix.ETHTOOL_A_CHANNELS_RX_MAX:
			c.MaxRX = int(ad.Uint32())
		case unix.ETHTOOL_A_CHANNELS_TX_MAX:
			c.MaxTX = int(ad.Uint32())
		case unix.ETHTOOL_A_CHANNELS_OTHER_MAX:
			c.MaxOther = int(ad.Uint32())
		case unix.ETHTOOL_A_CHANNELS_COMBINED_MAX:
			c.MaxCombined = int(ad.Uint32())
		case unix.ETHTOOL_A_CHANNELS_RX_COUNT:
			c.RX = int(ad.Uint32())
		case unix.ETHTOOL_A_CHANNELS_TX_COUNT:
			c.TX = int(ad.Uint32())
		case unix.ETHTOOL_A_CHANNELS_OTHER_COUNT:
			c.Other = int(ad.Uint32())
		case unix.ETHTOOL_A_CHANNELS_COMBINED_COUNT:
			c.Combined = int(ad.Uint32())
		}
	})
	if err != nil {
		return Channels{}, fmt.Errorf("read channels of link %d: %w", index, err)
	}
	return c, nil
}

// ethtoolHeader starts a request of the ethtool family. The header nest is attribute 1 of each of its messages.
func ethtoolHeader(index int) (*netlink.AttributeEncoder, error) {
	if err := checkIndex(index); err != nil {
		return nil, err
	}
	ae := netlink.NewAttributeEncoder()
	ae.Nested(unix.ETHTOOL_A_CHANNELS_HEADER, func(ae *netlink.AttributeEncoder) error {
		ae.Uint32(unix.ETHTOOL_A_HEADER_DEV_INDEX, uint32(index))
		return nil
	})
	return ae, nil
}

// QueueCount returns how many receive and transmit queues a NIC has in use: AF_XDP can bind to those and no others. It
// asks, in this order, for the kernel's own list (queue-get; needs the NIC up), sysfs, the driver's channels, and at
// last takes those allocated.
func (h *Handle) QueueCount(index int) (rx, tx int, err error) {
	l, err := h.rawLinkByIndex(index)
	if err != nil {
		return 0, 0, err
	}
	if queues, err := h.Queues(index); err == nil && len(queues) > 0 {
		for _, q := range queues {
			switch q.Type {
			case RX:
				rx++
			case TX:
				tx++
			}
		}
		return rx, tx, nil
	}
	if rx, tx, ok := h.sysfsQueues(index); ok {
		return rx, tx, nil
	}
	if c, err := h.Channels(index); err == nil && c.RX+c.TX+c.Combined > 0 {
		return c.RX + c.Combined, c.TX + c.Combined, nil
	}
	return l.RxQueues, l.TxQueues, nil
}

func (h *Handle) sysfsQueues(index int) (rx, tx int, ok bool) {
	dir, err := h.deviceDir(index)
	if err != nil {
		return 0, 0, false
	}
	defer func() { _ = dir.Close() }()
	queues, err := dir.Open("queues")
	if err != nil {
		return 0, 0, false
	}
	defer func() { _ = queues.Close() }()
	names, err := queues.Readdirnames(-1)
	if err != nil {
		return 0, 0, false
	}
	for _, name := range names {
		switch {
		case strings.HasPrefix(name, "rx-"):
			rx++
		case strings.HasPrefix(name, "tx-"):
			tx++
		}
	}
	return rx, tx, rx+tx > 0
}
