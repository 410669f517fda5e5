package netdev

import (
	"encoding/binary"
	"fmt"
	"net"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// RTEXT_FILTER_SKIP_STATS: leave the counters out of link messages.
const skipStats = 1 << 3

// Values of IFLA_XDP_ATTACHED.
const (
	xdpAttachedNative  = 1
	xdpAttachedGeneric = 2
	xdpAttachedOffload = 3
	xdpAttachedMulti   = 4
)

// rawLink is a link message: a Link and what else it says.
type rawLink struct {
	Link
	// master is the index of the bond, bridge or the like that the device is a port of; 0 for none.
	master int
	// lower is the index of the device that this one is stacked on (or a veth's peer); 0 for none. With lowerElsewhere
	// it counts in another network namespace.
	lower          int
	lowerElsewhere bool
	// The device's parent on its bus ("virtio", "virtio2"); "" for none.
	parentBus, parentDev string
}

func linkRequest(index int, ae *netlink.AttributeEncoder) ([]byte, error) {
	ae.Uint32(unix.IFLA_EXT_MASK, skipStats)
	attrs, err := ae.Encode()
	if err != nil {
		return nil, err
	}
	msg := make([]byte, unix.SizeofIfInfomsg, unix.SizeofIfInfomsg+len(attrs))
	binary.NativeEndian.PutUint32(msg[4:], uint32(index))
	return append(msg, attrs...), nil
}

func decodeLink(b []byte) (*rawLink, error) {
	if len(b) < unix.SizeofIfInfomsg {
		return nil, fmt.Errorf("decode link message: %d bytes are too few", len(b))
	}
	flags := binary.NativeEndian.Uint32(b[8:])
	l := &rawLink{Link: Link{
		Index:     int(int32(binary.NativeEndian.Uint32(b[4:]))),
		Up:        flags&unix.IFF_UP != 0,
		Loopback:  flags&unix.IFF_LOOPBACK != 0,
		OperState: OperUnknown,
		NUMANode:  -1,
		XDP:       XDP{Mode: XDPNone},
	}}
	if err := attributes(b[unix.SizeofIfInfomsg:], l.attribute); err != nil {
		return nil, fmt.Errorf("decode message of link %d: %w", l.Index, err)
	}
	return l, nil
}

func (l *rawLink) attribute(ad *netlink.AttributeDecoder) {
	switch ad.Type() {
	case unix.IFLA_IFNAME:
		l.Name = ad.String()
	case unix.IFLA_ADDRESS:
		l.MAC = net.HardwareAddr(slices.Clone(ad.Bytes()))
	case unix.IFLA_PERM_ADDRESS:
		l.PermMAC = net.HardwareAddr(slices.Clone(ad.Bytes()))
	case unix.IFLA_MTU:
		l.MTU = int(ad.Uint32())
	case unix.IFLA_OPERSTATE:
		l.OperState = operState(ad.Uint8())
	case unix.IFLA_CARRIER:
		l.Carrier = ad.Uint8() != 0
	case unix.IFLA_NUM_RX_QUEUES:
		l.RxQueues = int(ad.Uint32())
	case unix.IFLA_NUM_TX_QUEUES:
		l.TxQueues = int(ad.Uint32())
	case unix.IFLA_MASTER:
		l.master = int(ad.Uint32())
	case unix.IFLA_LINK:
		l.lower = int(ad.Uint32())
	case unix.IFLA_LINK_NETNSID:
		l.lowerElsewhere = true
	case unix.IFLA_PARENT_DEV_NAME:
		l.parentDev = ad.String()
	case unix.IFLA_PARENT_DEV_BUS_NAME:
		l.parentBus = ad.String()
	case unix.IFLA_LINKINFO:
		nested(ad, func(ad *netlink.AttributeDecoder) {
			if ad.Type() == unix.IFLA_INFO_KIND {
				l.Kind = ad.String()
			}
		})
	case unix.IFLA_PROP_LIST:
		nested(ad, func(ad *netlink.AttributeDecoder) {
			if ad.Type() == unix.IFLA_ALT_IFNAME {
				l.AltNames = append(l.AltNames, ad.String())
			}
		})
	case unix.IFLA_XDP:
		nested(ad, l.XDP.attribute)
	}
}

func (x *XDP) attribute(ad *netlink.AttributeDecoder) {
	switch ad.Type() {
	case unix.IFLA_XDP_ATTACHED:
		switch ad.Uint8() {
		case xdpAttachedNative:
			x.Mode = XDPNative
		case xdpAttachedGeneric:
			x.Mode = XDPGeneric
		case xdpAttachedOffload:
			x.Mode = XDPOffload
		case xdpAttachedMulti:
			x.Mode = XDPMulti
		}
	case unix.IFLA_XDP_PROG_ID:
		x.ProgID = ad.Uint32()
	case unix.IFLA_XDP_DRV_PROG_ID:
		x.NativeProgID = ad.Uint32()
	case unix.IFLA_XDP_SKB_PROG_ID:
		x.GenericProgID = ad.Uint32()
	case unix.IFLA_XDP_HW_PROG_ID:
		x.OffloadProgID = ad.Uint32()
	}
}

func nested(ad *netlink.AttributeDecoder, decode func(ad *netlink.AttributeDecoder)) {
	ad.Nested(func(ad *netlink.AttributeDecoder) error {
		for ad.Next() {
			decode(ad)
		}
		return ad.Err()
	})
}

func operState(v uint8) OperState {
	states := [...]OperState{
		OperUnknown, OperNotPresent, OperDown, OperLowerLayerDown, OperTesting, OperDormant, OperUp,
	}
	if int(v) < len(states) {
		return states[v]
	}
	return OperUnknown
}
