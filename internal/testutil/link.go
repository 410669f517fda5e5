package testutil

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// VethPair describes the two ends of a veth pair.
type VethPair struct {
	Near, Far string // interface names, at most 15 bytes
	Queues    int    // rx and tx queues of each end
	MTU       int    // bytes; 0 leaves the kernel's default of 1500
}

// Veth makes a veth pair in the calling thread's network namespace, sets both ends up and removes the pair when the
// test ends.
func Veth(tb testing.TB, pair VethPair) {
	tb.Helper()
	NeedKernel(tb)
	if err := AddVeth(pair); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = DelLink(pair.Near) })
}

// AddVeth makes a veth pair and sets both ends up.
func AddVeth(p VethPair) error {
	end := func(ae *netlink.AttributeEncoder, name string) {
		ae.String(unix.IFLA_IFNAME, name)
		ae.Uint32(unix.IFLA_NUM_TX_QUEUES, uint32(p.Queues))
		ae.Uint32(unix.IFLA_NUM_RX_QUEUES, uint32(p.Queues))
		if p.MTU > 0 {
			ae.Uint32(unix.IFLA_MTU, uint32(p.MTU))
		}
	}
	ae := netlink.NewAttributeEncoder()
	end(ae, p.Near)
	ae.Nested(unix.IFLA_LINKINFO, func(info *netlink.AttributeEncoder) error {
		info.String(unix.IFLA_INFO_KIND, "veth")
		info.Nested(unix.IFLA_INFO_DATA, func(data *netlink.AttributeEncoder) error {
			peer := netlink.NewAttributeEncoder()
			end(peer, p.Far)
			attrs, err := peer.Encode()
			// VETH_INFO_PEER: an ifinfomsg, then attributes
			data.Bytes(1, append(make([]byte, unix.SizeofIfInfomsg), attrs...))
			return err
		})
		return nil
	})
	if err := link(unix.RTM_NEWLINK, netlink.Create|netlink.Excl, ifinfo{}, ae); err != nil {
		return fmt.Errorf("add veth %s: %w", p.Near, err)
	}
	for _, name := range []string{p.Near, p.Far} {
		if err := SetUp(name); err != nil {
			return err
		}
	}
	return nil
}

// DelLink removes an interface.
func DelLink(name string) error { return change(unix.RTM_DELLINK, name, ifinfo{}, nil) }

// SetUp sets an interface administratively up.
func SetUp(name string) error {
	return change(unix.RTM_NEWLINK, name, ifinfo{flags: unix.IFF_UP, mask: unix.IFF_UP}, nil)
}

// SetDown sets an interface administratively down.
func SetDown(name string) error {
	return change(unix.RTM_NEWLINK, name, ifinfo{mask: unix.IFF_UP}, nil)
}

// SetMTU sets an interface's MTU in bytes.
func SetMTU(name string, mtu int) error {
	ae := netlink.NewAttributeEncoder()
	ae.Uint32(unix.IFLA_MTU, uint32(mtu))
	return change(unix.RTM_NEWLINK, name, ifinfo{}, ae)
}

// Rename gives an interface, which may be up, another name.
func Rename(name, to string) error {
	ae := netlink.NewAttributeEncoder()
	ae.String(unix.IFLA_IFNAME, to)
	return change(unix.RTM_NEWLINK, name, ifinfo{}, ae)
}

// MoveToNetns moves an interface into the network namespace that fd refers to.
func MoveToNetns(name string, fd int) error {
	ae := netlink.NewAttributeEncoder()
	ae.Uint32(unix.IFLA_NET_NS_FD, uint32(fd))
	return change(unix.RTM_NEWLINK, name, ifinfo{}, ae)
}

type ifinfo struct {
	index       int
	flags, mask uint32
}

func change(kind netlink.HeaderType, name string, info ifinfo, ae *netlink.AttributeEncoder) error {
	ifi, err := net.InterfaceByName(name)
	if err != nil {
		return fmt.Errorf("find %s: %w", name, err)
	}
	info.index = ifi.Index
	if ae == nil {
		ae = netlink.NewAttributeEncoder()
	}
	if err := link(kind, 0, info, ae); err != nil {
		return fmt.Errorf("change link %s: %w", name, err)
	}
	return nil
}

func link(kind netlink.HeaderType, flags netlink.HeaderFlags, info ifinfo, ae *netlink.AttributeEncoder) error {
	attrs, err := ae.Encode()
	if err != nil {
		return err
	}
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	msg := make([]byte, unix.SizeofIfInfomsg)
	nlenc := netlinkNative
	nlenc.PutUint32(msg[4:], uint32(info.index))
	nlenc.PutUint32(msg[8:], info.flags)
	nlenc.PutUint32(msg[12:], info.mask)
	_, err = conn.Execute(netlink.Message{
		Header: netlink.Header{Type: kind, Flags: netlink.Request | netlink.Acknowledge | flags},
		Data:   append(msg, attrs...),
	})
	return err
}

// AddAddress gives an interface an IPv4 address, such as 192.0.2.1/24.
func AddAddress(name, cidr string) error {
	ifi, err := net.InterfaceByName(name)
	if err != nil {
		return fmt.Errorf("find %s: %w", name, err)
	}
	prefix, err := netip.ParsePrefix(cidr)
	if err != nil {
		return err
	}
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	ae := netlink.NewAttributeEncoder()
	ae.Bytes(unix.IFA_LOCAL, prefix.Addr().AsSlice())
	attrs, err := ae.Encode()
	if err != nil {
		return err
	}
	msg := make([]byte, unix.SizeofIfAddrmsg)
	msg[0], msg[1] = unix.AF_INET, byte(prefix.Bits())
	netlinkNative.PutUint32(msg[4:], uint32(ifi.Index))
	_, err = conn.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.RTM_NEWADDR, Flags: netlink.Request | netlink.Acknowledge | netlink.Create},
		Data:   append(msg, attrs...),
	})
	if err != nil {
		return fmt.Errorf("add %s to %s: %w", cidr, name, err)
	}
	return nil
}
