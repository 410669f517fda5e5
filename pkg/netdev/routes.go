package netdev

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// hop is one way out of the node: the device and, where there is one, the router.
type hop struct {
	index   int
	gateway netip.Addr
}

// address is an address of the node.
type address struct {
	index  int
	prefix netip.Prefix
}

// globalAddresses lists the addresses of global scope, IPv4 and IPv6.
func (h *Handle) globalAddresses() ([]address, error) {
	msgs, err := h.route.dump(unix.RTM_GETADDR, make([]byte, unix.SizeofIfAddrmsg))
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	var list []address
	for _, m := range msgs {
		b := m.Data
		if len(b) < unix.SizeofIfAddrmsg {
			return nil, fmt.Errorf("list addresses: a message of %d bytes is too short", len(b))
		}
		bits, scope, index := int(b[1]), b[3], int(binary.NativeEndian.Uint32(b[4:]))
		if scope != unix.RT_SCOPE_UNIVERSE {
			continue
		}
		var local, peer netip.Addr
		err := attributes(b[unix.SizeofIfAddrmsg:], func(ad *netlink.AttributeDecoder) {
			switch ad.Type() {
			case unix.IFA_LOCAL:
				local, _ = netip.AddrFromSlice(ad.Bytes())
			case unix.IFA_ADDRESS: // the peer's on a point-to-point link, else the same or the only one
				peer, _ = netip.AddrFromSlice(ad.Bytes())
			}
		})
		if err != nil {
			return nil, fmt.Errorf("list addresses: %w", err)
		}
		if !local.IsValid() {
			local = peer
		}
		if local.IsValid() {
			list = append(list, address{index, netip.PrefixFrom(local, bits)})
		}
	}
	return list, nil
}

// defaultHops lists the next hops of the default routes in the main tables of IPv4 and IPv6.
func (h *Handle) defaultHops() ([]hop, error) {
	var hops []hop
	var objects []uint32
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		msgs, err := h.mainTable(family)
		if err != nil {
			return nil, fmt.Errorf("list routes: %w", err)
		}
		for _, m := range msgs {
			r, err := decodeDefaultRoute(m.Data)
			if err != nil {
				return nil, fmt.Errorf("list routes: %w", err)
			}
			hops = append(hops, r.hops...)
			if len(r.hops) == 0 && r.object != 0 {
				objects = append(objects, r.object)
			}
		}
	}
	if len(objects) == 0 {
		return hops, nil
	}
	// With net.ipv4.nexthop_compat_mode=0 such a route names its next-hop object and nothing else.
	known, err := h.nextHopObjects()
	if err != nil {
		return nil, fmt.Errorf("list next hops: %w", err)
	}
	for _, id := range objects {
		hops = append(hops, known[id]...)
	}
	return hops, nil
}

func (h *Handle) mainTable(family byte) ([]netlink.Message, error) {
	ae := netlink.NewAttributeEncoder()
	ae.Uint32(unix.RTA_TABLE, unix.RT_TABLE_MAIN)
	attrs, err := ae.Encode()
	if err != nil {
		return nil, err
	}
	req := make([]byte, unix.SizeofRtMsg, unix.SizeofRtMsg+len(attrs))
	req[0] = family
	msgs, err := h.route.dump(unix.RTM_GETROUTE, append(req, attrs...))
	if errors.Is(err, unix.ENOENT) || errors.Is(err, ErrUnsupported) || errors.Is(err, unix.EAFNOSUPPORT) {
		return nil, nil // no such table yet, or no such protocol
	}
	// A kernel without the protocol may answer with what it has of others.
	return slices.DeleteFunc(msgs, func(m netlink.Message) bool { return len(m.Data) > 0 && m.Data[0] != family }), err
}

// defaultRoute is a default route's next hops, or the next-hop object that stands for them. Both are empty for any
// other route.
type defaultRoute struct {
	hops   []hop
	object uint32
}

func decodeDefaultRoute(b []byte) (defaultRoute, error) {
	if len(b) < unix.SizeofRtMsg {
		return defaultRoute{}, fmt.Errorf("a message of %d bytes is too short", len(b))
	}
	bits, table, kind, flags := b[1], uint32(b[4]), b[7], binary.NativeEndian.Uint32(b[8:])
	if bits != 0 || kind != unix.RTN_UNICAST || flags&unix.RTM_F_CLONED != 0 {
		return defaultRoute{}, nil
	}
	var r defaultRoute
	var single hop
	var multi []byte
	err := attributes(b[unix.SizeofRtMsg:], func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case unix.RTA_TABLE:
			table = ad.Uint32()
		case unix.RTA_OIF:
			single.index = int(ad.Uint32())
		case unix.RTA_GATEWAY, unix.RTA_VIA:
			single.gateway = gateway(ad)
		case unix.RTA_MULTIPATH:
			multi = ad.Bytes()
		case rtaNHID:
			r.object = ad.Uint32()
		}
	})
	if err != nil || table != unix.RT_TABLE_MAIN {
		return defaultRoute{}, err
	}
	if single.index != 0 {
		r.hops = append(r.hops, single)
	}
	for len(multi) >= unix.SizeofRtNexthop {
		size := int(binary.NativeEndian.Uint16(multi))
		if size < unix.SizeofRtNexthop || size > len(multi) {
			return defaultRoute{}, fmt.Errorf("a next hop claims %d of %d bytes", size, len(multi))
		}
		n := hop{index: int(binary.NativeEndian.Uint32(multi[4:]))}
		err := attributes(multi[unix.SizeofRtNexthop:size], func(ad *netlink.AttributeDecoder) {
			if ad.Type() == unix.RTA_GATEWAY || ad.Type() == unix.RTA_VIA {
				n.gateway = gateway(ad)
			}
		})
		if err != nil {
			return defaultRoute{}, err
		}
		r.hops = append(r.hops, n)
		multi = multi[min((size+3)&^3, len(multi)):]
	}
	return r, nil
}

const rtaNHID = 30 // RTA_NH_ID

// gateway reads RTA_GATEWAY, an address, or RTA_VIA, an address of another family after the family's number.
func gateway(ad *netlink.AttributeDecoder) netip.Addr {
	b := ad.Bytes()
	if ad.Type() == unix.RTA_VIA && len(b) > 2 {
		b = b[2:]
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// nextHopObjects lists the next-hop objects, groups resolved to their members.
func (h *Handle) nextHopObjects() (map[uint32][]hop, error) {
	msgs, err := h.route.dump(unix.RTM_GETNEXTHOP, make([]byte, unix.SizeofNhmsg))
	if err != nil {
		return nil, err
	}
	objects := map[uint32][]hop{}
	groups := map[uint32][]uint32{}
	for _, m := range msgs {
		if len(m.Data) < unix.SizeofNhmsg {
			return nil, fmt.Errorf("a message of %d bytes is too short", len(m.Data))
		}
		var id uint32
		var n hop
		var members []uint32
		err := attributes(m.Data[unix.SizeofNhmsg:], func(ad *netlink.AttributeDecoder) {
			switch ad.Type() {
			case unix.NHA_ID:
				id = ad.Uint32()
			case unix.NHA_OIF:
				n.index = int(ad.Uint32())
			case unix.NHA_GATEWAY:
				n.gateway, _ = netip.AddrFromSlice(ad.Bytes())
			case unix.NHA_GROUP:
				const size = 8 // struct nexthop_grp: the id, then weights
				for b := ad.Bytes(); len(b) >= size; b = b[size:] {
					members = append(members, binary.NativeEndian.Uint32(b))
				}
			}
		})
		if err != nil {
			return nil, err
		}
		if n.index != 0 {
			objects[id] = []hop{n}
		}
		if members != nil {
			groups[id] = members
		}
	}
	for id, members := range groups {
		for _, member := range members { // a group's members are no groups
			objects[id] = append(objects[id], objects[member]...)
		}
	}
	return objects, nil
}
