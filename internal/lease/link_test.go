package lease

import (
	"encoding/binary"
	"errors"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/testutil"
)

// addVethAt makes a veth pair of which the first end has a given index.
func addVethAt(name, peer string, index int) error {
	ae := netlink.NewAttributeEncoder()
	queueAttributes(ae, name)
	ae.Nested(unix.IFLA_LINKINFO, func(info *netlink.AttributeEncoder) error {
		info.String(unix.IFLA_INFO_KIND, "veth")
		info.Nested(unix.IFLA_INFO_DATA, func(data *netlink.AttributeEncoder) error {
			ae := netlink.NewAttributeEncoder()
			queueAttributes(ae, peer)
			attrs, err := ae.Encode()
			data.Bytes(1, append(ifinfo(0), attrs...)) // VETH_INFO_PEER
			return err
		})
		return nil
	})
	attrs, err := ae.Encode()
	if err != nil {
		return err
	}
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_, err = conn.Execute(netlink.Message{
		Header: netlink.Header{
			Type:  unix.RTM_NEWLINK,
			Flags: netlink.Request | netlink.Acknowledge | netlink.Create | netlink.Excl,
		},
		Data: append(ifinfo(index), attrs...),
	})
	if err != nil {
		return err
	}
	return errors.Join(testutil.SetUp(name), testutil.SetUp(peer))
}

func queueAttributes(ae *netlink.AttributeEncoder, name string) {
	ae.String(unix.IFLA_IFNAME, name)
	ae.Uint32(unix.IFLA_NUM_TX_QUEUES, queues)
	ae.Uint32(unix.IFLA_NUM_RX_QUEUES, queues)
}

func ifinfo(index int) []byte {
	msg := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(msg[4:], uint32(index))
	return msg
}
