package netdev

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"testing"
)

// script runs ip(8) commands, one a line.
func script(t *testing.T, lines ...[]string) {
	t.Helper()
	for _, l := range lines {
		ip(t, l...)
	}
}

// expectUplinks compares by name what Uplinks says.
func expectUplinks(t *testing.T, h *Handle, want map[string]string) {
	t.Helper()
	reasons, err := h.Uplinks()
	must(t, err)
	got := map[string]string{}
	for index, reason := range reasons {
		l, err := h.LinkByIndex(index)
		must(t, err)
		got[l.Name] = reason
	}
	if !maps.Equal(got, want) {
		t.Errorf("uplinks:\n got %v\nwant %v", got, want)
	}
}

// addPair makes a veth pair of which both ends are up.
func addPair(t *testing.T, near, far string) {
	t.Helper()
	ip(t, "link", "add", near, "type", "veth", "peer", "name", far)
	ip(t, "link", "set", near, "up")
	ip(t, "link", "set", far, "up")
}

// Field case 7: the node's own NICs are known by what they do.
func TestUplinksHaveTheDefaultRouteOrAnAddress(t *testing.T) {
	inNetns(t, func(h *Handle) {
		addPair(t, "up0", "peer0")
		addPair(t, "up1", "peer1")
		expectUplinks(t, h, nil) // link-local addresses and loopback's do not count
		ip(t, "addr", "add", "192.0.2.9/32", "dev", "lo")
		expectUplinks(t, h, nil)
		ip(t, "addr", "add", "10.0.0.2/24", "dev", "up0")
		expectUplinks(t, h, map[string]string{"up0": "address 10.0.0.2/24"})
		ip(t, "route", "add", "default", "via", "10.0.0.1")
		expectUplinks(t, h, map[string]string{"up0": "default route via 10.0.0.1"})
		ip(t, "-6", "addr", "add", "2001:db8::2/64", "dev", "up1", "nodad")
		expectUplinks(t, h, map[string]string{"up0": "default route via 10.0.0.1", "up1": "address 2001:db8::2/64"})
		ip(t, "-6", "route", "add", "default", "via", "2001:db8::1")
		expectUplinks(t, h, map[string]string{
			"up0": "default route via 10.0.0.1", "up1": "default route via 2001:db8::1",
		})
		ip(t, "addr", "flush", "dev", "up0")
		ip(t, "-6", "addr", "flush", "dev", "up1")
		ip(t, "-6", "route", "del", "default")
		expectUplinks(t, h, nil)
	})
}

func TestUplinksAreThoseOfTheMainTable(t *testing.T) {
	inNetns(t, func(h *Handle) {
		for _, p := range []string{"0", "1", "2"} {
			addPair(t, "up"+p, "peer"+p)
		}
		script(t,
			[]string{"route", "add", "default", "dev", "up0", "scope", "link"},
			[]string{"route", "add", "default", "dev", "up1", "table", "100"},
			[]string{"route", "add", "10.9.0.0/16", "dev", "up2"},
		)
		expectUplinks(t, h, map[string]string{"up0": "default route"})
	})
}

func TestEachNextHopOfTheDefaultRouteIsAnUplink(t *testing.T) {
	inNetns(t, func(h *Handle) {
		for i := range 3 {
			addPair(t, fmt.Sprint("up", i), fmt.Sprint("peer", i))
		}
		script(t,
			[]string{"route", "add", "default",
				"nexthop", "via", "10.0.0.1", "dev", "up0", "onlink",
				"nexthop", "via", "10.0.1.1", "dev", "up1", "onlink"},
			[]string{"route", "add", "default", "via", "inet6", "fe80::1", "dev", "up2", "metric", "50"},
		)
		want := map[string]string{
			"up0": "default route via 10.0.0.1",
			"up1": "default route via 10.0.1.1",
			"up2": "default route via fe80::1",
		}
		expectUplinks(t, h, want)
	})
	inNetns(t, func(h *Handle) {
		addPair(t, "up0", "peer0")
		addPair(t, "up1", "peer1")
		ip(t, "-6", "route", "add", "default",
			"nexthop", "via", "fe80::1", "dev", "up0", "nexthop", "via", "fe80::2", "dev", "up1")
		expectUplinks(t, h, map[string]string{"up0": "default route via fe80::1", "up1": "default route via fe80::2"})
	})
}

func TestNextHopObjectsAreResolved(t *testing.T) {
	inNetns(t, func(h *Handle) {
		addPair(t, "up0", "peer0")
		addPair(t, "up1", "peer1")
		// With compatibility mode off, the route names nothing but the object.
		must(t, os.WriteFile("/proc/sys/net/ipv4/nexthop_compat_mode", []byte("0"), 0))
		script(t,
			[]string{"nexthop", "add", "id", "1", "via", "10.0.0.1", "dev", "up0", "onlink"},
			[]string{"nexthop", "add", "id", "2", "via", "10.0.1.1", "dev", "up1", "onlink"},
			[]string{"nexthop", "add", "id", "3", "group", "1/2"},
			[]string{"route", "add", "default", "nhid", "3"},
		)
		expectUplinks(t, h, map[string]string{"up0": "default route via 10.0.0.1", "up1": "default route via 10.0.1.1"})
	})
}

func TestWhatAnUplinkIsMadeOfIsAnUplink(t *testing.T) {
	inNetns(t, func(h *Handle) {
		addPair(t, "port0", "peer0")
		addPair(t, "port1", "peer1")
		addPair(t, "low0", "peer2")
		script(t,
			[]string{"link", "add", "br0", "type", "bridge"},
			[]string{"link", "set", "port0", "master", "br0"},
			[]string{"link", "set", "br0", "up"},
			[]string{"link", "add", "link", "low0", "name", "mv0", "type", "macvlan"},
			[]string{"link", "set", "mv0", "up"},
		)
		expectUplinks(t, h, nil)
		script(t,
			[]string{"route", "add", "default", "via", "10.0.0.1", "dev", "br0", "onlink"},
			[]string{"addr", "add", "10.1.0.2/24", "dev", "mv0"},
		)
		// The peers of veths, which their link messages name in the same way, are not among them.
		expectUplinks(t, h, map[string]string{
			"br0":   "default route via 10.0.0.1",
			"port0": "port of br0, which has the default route via 10.0.0.1",
			"mv0":   "address 10.1.0.2/24",
			"low0":  "lower device of mv0, which has the address 10.1.0.2/24",
		})
		ip(t, "link", "set", "port0", "nomaster")
		expectUplinks(t, h, map[string]string{
			"br0":  "default route via 10.0.0.1",
			"mv0":  "address 10.1.0.2/24",
			"low0": "lower device of mv0, which has the address 10.1.0.2/24",
		})
	})
}

func TestUplinksThroughLayers(t *testing.T) {
	dev := func(index int, name, kind string, master, lower int) rawLink {
		return rawLink{Link: Link{Index: index, Name: name, Kind: kind}, master: master, lower: lower}
	}
	lo := dev(1, "lo", "", 0, 0)
	lo.Loopback = true
	elsewhere := dev(12, "mv1", "macvlan", 0, 2)
	elsewhere.lowerElsewhere = true
	got := uplinks([]rawLink{
		lo,
		dev(2, "ens1", "", 4, 0), dev(3, "ens2", "", 4, 0),
		dev(4, "bond0", "bond", 0, 0), dev(5, "bond0.7", "vlan", 0, 4),
		dev(6, "br-ex", "openvswitch", 7, 0), dev(7, "ovs-system", "openvswitch", 0, 0), dev(8, "ens3", "", 7, 0),
		dev(9, "ens4", "", 0, 0), dev(10, "loop", "vlan", 0, 11), dev(11, "loop2", "vlan", 0, 10), elsewhere,
	}, []hop{{index: 5, gateway: netip.MustParseAddr("10.0.0.1")}, {index: 99}}, []address{
		{1, netip.MustParsePrefix("192.0.2.1/32")},
		{6, netip.MustParsePrefix("10.0.0.6/24")},
		{10, netip.MustParsePrefix("10.0.0.10/24")},
		{12, netip.MustParsePrefix("10.0.0.12/24")},
	})
	const vlan = "bond0.7, which has the default route via 10.0.0.1"
	const ovs = "br-ex, which has the address 10.0.0.6/24"
	want := map[int]string{
		5:  "default route via 10.0.0.1",
		4:  "lower device of " + vlan,
		2:  "port of bond0, which is a lower device of " + vlan,
		3:  "port of bond0, which is a lower device of " + vlan,
		6:  "address 10.0.0.6/24",
		7:  "switch of " + ovs,
		8:  "port of ovs-system, which is a switch of " + ovs,
		10: "address 10.0.0.10/24",
		11: "lower device of loop, which has the address 10.0.0.10/24",
		12: "address 10.0.0.12/24",
	}
	if !maps.Equal(got, want) {
		t.Errorf("uplinks:\n got %v\nwant %v", got, want)
	}
}
