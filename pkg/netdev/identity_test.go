package netdev

import (
	"encoding/json"
	"net"
	"strconv"
	"testing"

	"github.com/afxdp-project/afxdp/internal/testutil"
)

func TestSameKnowsANICAgain(t *testing.T) {
	mac := func(last byte) net.HardwareAddr { return net.HardwareAddr{2, 0, 0, 0, 0, last} }
	hw := Link{Index: 4, Name: "ens1", PCI: "0000:3b:00.1", PermMAC: mac(1), MAC: mac(9)}
	soft := Link{Index: 4, Name: "veth0", MAC: mac(1)}
	virtio := Link{Index: 4, Name: "eth1", PCI: "0000:00:04.0", MAC: mac(1)}
	usb := Link{Index: 4, Name: "eth2", PermMAC: mac(1), MAC: mac(1)}
	with := func(l Link, change func(l *Link)) Link { change(&l); return l }
	for _, c := range []struct {
		name string
		was  Link
		is   Link
		same bool
	}{
		{"unchanged", hw, hw, true},
		{"renamed", hw, with(hw, func(l *Link) { l.Name = "fast0" }), true},
		{"address changed", hw, with(hw, func(l *Link) { l.MAC = mac(7) }), true},
		{"other index", hw, with(hw, func(l *Link) { l.Index = 5 }), false},
		{"other PCI function", hw, with(hw, func(l *Link) { l.PCI = "0000:3b:00.2" }), false},
		{"other port of one PCI function", hw, with(hw, func(l *Link) { l.PermMAC = mac(2) }), false},
		{"PCI address not found this time", hw, with(hw, func(l *Link) { l.PCI = "" }), true},
		{"hardware replaced by a veth", hw, soft, false},
		{"veth replaced by hardware", soft, hw, false},
		{"veth unchanged", soft, soft, true},
		{"veth renamed", soft, with(soft, func(l *Link) { l.Name = "veth1" }), true},
		{"veth made anew", soft, with(soft, func(l *Link) { l.MAC = mac(2) }), false},
		{"virtio without permanent address", virtio, with(virtio, func(l *Link) { l.MAC = mac(3) }), true},
		{"virtio replaced", virtio, with(virtio, func(l *Link) { l.PCI = "0000:00:05.0" }), false},
		{"no PCI, permanent address", usb, with(usb, func(l *Link) { l.MAC = mac(3) }), true},
		{"no PCI, other permanent address", usb, with(usb, func(l *Link) { l.PermMAC = mac(3) }), false},
		{"nothing to know it by", Link{Index: 4}, Link{Index: 4}, false},
	} {
		stored, err := json.Marshal(c.was.Identity())
		must(t, err)
		var id Identity
		must(t, json.Unmarshal(stored, &id))
		if id != c.was.Identity() {
			t.Errorf("%s: %+v comes back from storage as %+v", c.name, c.was.Identity(), id)
		}
		if Same(c.is, id) != c.same {
			t.Errorf("%s: Same(%+v, %+v) is %t, want %t", c.name, c.is, id, !c.same, c.same)
		}
	}
}

func TestRenamedVethIsTheSame(t *testing.T) {
	h := open(t)
	l := veth(t, h, 1)
	must(t, testutil.Rename("nvnear", "nvrenamed"))
	defer func() { must(t, testutil.Rename("nvrenamed", "nvnear")) }()
	now, err := h.LinkByIndex(l.Index)
	must(t, err)
	if now.Name != "nvrenamed" || !Same(now, l.Identity()) {
		t.Errorf("renamed: %+v is not the same as %+v", now, l.Identity())
	}
}

func TestVethMadeAnewWithTheSameIndexAndNameIsAnother(t *testing.T) {
	inNetns(t, func(h *Handle) {
		make := func() Link {
			ip(t, "link", "add", "nvnear", "index", "77", "type", "veth", "peer", "name", "nvfar")
			return byName(t, h, "nvnear")
		}
		was := make()
		ip(t, "link", "del", "nvnear")
		is := make()
		if was.Index != is.Index || was.Name != is.Name {
			t.Fatalf("the kernel gave %s %d, want %s %d", is.Name, is.Index, was.Name, was.Index)
		}
		if Same(is, was.Identity()) {
			t.Error("a veth made anew counts as the old one: index " + strconv.Itoa(is.Index))
		}
	})
}
