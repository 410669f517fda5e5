package netdev

import (
	"errors"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf/link"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/testutil"
)

func TestLinksShowAVethAsTheKernelMadeIt(t *testing.T) {
	h := open(t)
	testutil.Veth(t, testutil.VethPair{Near: "nvnear", Far: "nvfar", Queues: 3, MTU: 1400})
	links, err := h.Links()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(links, func(l Link) bool { return l.Name == "nvnear" })
	if i < 0 {
		t.Fatalf("no nvnear among %+v", links)
	}
	want, err := net.InterfaceByName("nvnear")
	if err != nil {
		t.Fatal(err)
	}
	l := links[i]
	if l.Index != want.Index || l.MAC.String() != want.HardwareAddr.String() || l.MTU != 1400 {
		t.Errorf("index, address and MTU: %d %s %d, want %d %s 1400",
			l.Index, l.MAC, l.MTU, want.Index, want.HardwareAddr)
	}
	if l.Kind != "veth" || l.Driver != "veth" || l.PermMAC != nil || l.PCI != "" || l.NUMANode != -1 {
		t.Errorf("a software device with kind and driver veth is shown as %+v", l)
	}
	if !l.Up || !l.Carrier || l.RxQueues != 3 || l.TxQueues != 3 || l.Loopback {
		t.Errorf("a device with 3 queues that is up is shown as %+v", l)
	}
	if l.XDP != (XDP{Mode: XDPNone}) {
		t.Errorf("XDP: %+v, want none", l.XDP)
	}
	eventually(t, "nvnear is operationally up", func() bool { return byName(t, h, "nvnear").OperState == OperUp })
	lo, err := h.LinkByIndex(1)
	if err != nil || !lo.Loopback || lo.Name != "lo" {
		t.Errorf("link 1: %+v, %v; want lo, a loopback", lo, err)
	}
}

func TestLinkFollowsDownAndMTU(t *testing.T) {
	h := open(t)
	l := veth(t, h, 1)
	must(t, testutil.SetMTU("nvnear", 9000))
	must(t, testutil.SetDown("nvnear"))
	got, err := h.LinkByIndex(l.Index)
	if err != nil || got.MTU != 9000 || got.Up || got.Carrier {
		t.Errorf("after MTU 9000 and down: %+v, %v", got, err)
	}
	if far := byName(t, h, "nvfar"); !far.Up || far.Carrier {
		t.Errorf("the peer of a device that is down: %+v, want up, no carrier", far)
	}
	eventually(t, "nvnear is down and nvfar without the layer below", func() bool {
		return byName(t, h, "nvnear").OperState == OperDown && byName(t, h, "nvfar").OperState == OperLowerLayerDown
	})
}

func TestLinkIsFoundByAnyOfItsNames(t *testing.T) {
	h := open(t)
	l := veth(t, h, 1)
	long := "a-name-of-more-than-fifteen-bytes"
	ip(t, "link", "property", "add", "dev", "nvnear", "altname", "nvother")
	ip(t, "link", "property", "add", "dev", "nvnear", "altname", long)
	for _, name := range []string{"nvnear", "nvother", long} {
		if got := byName(t, h, name); got.Index != l.Index || !slices.Equal(got.AltNames, []string{"nvother", long}) {
			t.Errorf("found by %q: %+v", name, got)
		}
	}
}

func TestMissingDeviceIsToldFromMissingFeature(t *testing.T) {
	h := open(t)
	const gone = 1 << 20
	calls := map[string]func(index int) error{
		"link by index":       func(i int) error { _, err := h.LinkByIndex(i); return err },
		"channels":            func(i int) error { _, err := h.Channels(i); return err },
		"queues":              func(i int) error { _, err := h.Queues(i); return err },
		"queue count":         func(i int) error { _, _, err := h.QueueCount(i); return err },
		"NAPIs":               func(i int) error { _, err := h.NAPIs(i); return err },
		"XDP features":        func(i int) error { _, err := h.XDPFeatures(i); return err },
		"device settings":     func(i int) error { _, err := h.DeviceSettings(i); return err },
		"set device settings": func(i int) error { return h.SetDeviceSettings(i, deferral(1)) },
	}
	for name, call := range calls {
		for _, index := range []int{gone, 0, -1} {
			if err := call(index); !errors.Is(err, ErrNoDevice) || errors.Is(err, ErrUnsupported) {
				t.Errorf("%s of link %d: %v, want ErrNoDevice", name, index, err)
			}
		}
	}
	if _, err := h.LinkByName("nvgone"); !errors.Is(err, ErrNoDevice) {
		t.Errorf("link by name: %v, want ErrNoDevice", err)
	}
	if _, err := h.Channels(1); !errors.Is(err, ErrUnsupported) || errors.Is(err, ErrNoDevice) {
		t.Errorf("channels of lo: %v, want ErrUnsupported", err)
	}
	if _, err := h.LinkByName(strings.Repeat("x", 200)); err == nil || errors.Is(err, ErrNoDevice) {
		t.Errorf("a name of 200 bytes: %v, want the kernel's refusal", err)
	}
}

func TestKernelsExplanationIsInTheError(t *testing.T) {
	h := open(t)
	_, err := h.generic.request(h.netdev, netdevCmdQueueGet, 0, netlink.NewAttributeEncoder())
	if !errors.Is(err, unix.EINVAL) {
		t.Errorf("a request without its attributes: %v, want EINVAL", err)
	}
	_, err = h.route.execute(unix.RTM_GETLINK, 0, []byte{0})
	op, ok := errors.AsType[*netlink.OpError](err)
	if !ok || op.Message == "" || !strings.Contains(err.Error(), op.Message) {
		t.Errorf("a request that is too short: %v, want an error with the kernel's words", err)
	}
}

func TestLinkShowsTheXDPProgram(t *testing.T) {
	h := open(t)
	l := veth(t, h, 1)
	for _, c := range []struct {
		flags link.XDPAttachFlags
		want  func(id uint32) XDP
	}{
		{link.XDPGenericMode, func(id uint32) XDP { return XDP{Mode: XDPGeneric, ProgID: id, GenericProgID: id} }},
		{link.XDPDriverMode, func(id uint32) XDP { return XDP{Mode: XDPNative, ProgID: id, NativeProgID: id} }},
	} {
		attached, id := attachXDP(t, l.Index, c.flags)
		if got := byName(t, h, "nvnear").XDP; got != c.want(id) {
			t.Errorf("XDP with program %d: %+v, want %+v", id, got, c.want(id))
		}
		must(t, attached.Close())
		if got := byName(t, h, "nvnear").XDP; got != (XDP{Mode: XDPNone}) {
			t.Errorf("XDP after detaching: %+v, want none", got)
		}
	}
}

func TestHandleStaysInItsNetns(t *testing.T) {
	h := open(t)
	l := veth(t, h, 1)
	inNetns(t, func(other *Handle) {
		if other.NetnsCookie() == h.NetnsCookie() {
			t.Errorf("two network namespaces have the cookie %d", h.NetnsCookie())
		}
		if _, err := other.LinkByName("nvnear"); !errors.Is(err, ErrNoDevice) {
			t.Errorf("nvnear in the other namespace: %v, want ErrNoDevice", err)
		}
		// This thread is in the other namespace; h is not.
		if got, err := h.LinkByName("nvnear"); err != nil || got.Index != l.Index || got.Driver != "veth" {
			t.Errorf("nvnear from another thread: %+v, %v", got, err)
		}
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		must(t, err)
		defer func() { _ = unix.Close(fd) }()
		if cookie, err := CookieOfSocket(fd); err != nil || cookie != other.NetnsCookie() {
			t.Errorf("cookie of a socket made there: %d, %v; want %d", cookie, err, other.NetnsCookie())
		}
	})
	if _, err := CookieOfSocket(int(devNull(t).Fd())); !errors.Is(err, unix.ENOTSOCK) {
		t.Errorf("cookie of /dev/null: %v, want ENOTSOCK", err)
	}
}

func TestClosedHandleSaysSo(t *testing.T) {
	testutil.NeedKernel(t)
	h, err := Open()
	must(t, err)
	must(t, h.Close())
	if _, err := h.Links(); err == nil {
		t.Error("a closed handle lists links")
	}
	if _, err := h.Queues(1); err == nil {
		t.Error("a closed handle lists queues")
	}
}

func TestHandleServesManyAtOnce(t *testing.T) {
	h := open(t)
	l := veth(t, h, 2)
	errs := make(chan error)
	const workers = 8
	for range workers {
		go func() {
			var err error
			for range 50 {
				_, linksErr := h.Links()
				_, queuesErr := h.Queues(l.Index)
				_, uplinksErr := h.Uplinks()
				err = errors.Join(err, linksErr, queuesErr, uplinksErr)
			}
			errs <- err
		}()
	}
	for range workers {
		must(t, <-errs)
	}
}

func TestDecodeLinkOfHardware(t *testing.T) {
	ae := netlink.NewAttributeEncoder()
	ae.String(unix.IFLA_IFNAME, "ens1")
	ae.Bytes(unix.IFLA_ADDRESS, []byte{2, 0, 0, 0, 0, 1})
	ae.Bytes(unix.IFLA_PERM_ADDRESS, []byte{0, 1, 2, 3, 4, 5})
	ae.String(unix.IFLA_PARENT_DEV_NAME, "0000:3b:00.1")
	ae.String(unix.IFLA_PARENT_DEV_BUS_NAME, "pci")
	ae.Uint8(unix.IFLA_OPERSTATE, 5)
	ae.Nested(unix.IFLA_XDP, func(ae *netlink.AttributeEncoder) error {
		ae.Uint8(unix.IFLA_XDP_ATTACHED, xdpAttachedMulti)
		ae.Uint32(unix.IFLA_XDP_DRV_PROG_ID, 7)
		ae.Uint32(unix.IFLA_XDP_HW_PROG_ID, 9)
		return nil
	})
	attrs, err := ae.Encode()
	must(t, err)
	l, err := decodeLink(append(make([]byte, unix.SizeofIfInfomsg), attrs...))
	must(t, err)
	if l.Name != "ens1" || l.PermMAC.String() != "00:01:02:03:04:05" || l.OperState != OperDormant {
		t.Errorf("decoded %+v", l.Link)
	}
	if l.parentBus != "pci" || l.parentDev != "0000:3b:00.1" {
		t.Errorf("parent %q on bus %q", l.parentDev, l.parentBus)
	}
	if want := (XDP{Mode: XDPMulti, NativeProgID: 7, OffloadProgID: 9}); l.XDP != want {
		t.Errorf("XDP %+v, want %+v", l.XDP, want)
	}
}

func FuzzDecodeMessages(f *testing.F) {
	f.Add([]byte{})
	f.Add(make([]byte, unix.SizeofIfInfomsg))
	f.Add([]byte{2, 0, 0, 0, 254, 0, 0, 1, 0, 0, 0, 0, 16, 0, 9, 0, 200, 0, 0, 0, 1, 0, 0, 0, 8, 0, 5, 0})
	f.Add([]byte{2, 0, 0, 0, 254, 0, 0, 1, 0, 0, 0, 0, 16, 0, 9, 0, 9, 0, 0, 0, 1, 0, 0, 0, 8, 0, 5, 0})
	f.Fuzz(func(_ *testing.T, b []byte) {
		_, _ = decodeLink(b)
		_, _ = decodeDefaultRoute(b)
		_ = attributes(b, new(NAPI).attribute)
		h := &Handle{ethtool: family{id: 20}, netdev: family{id: 21}}
		for _, id := range []netlink.HeaderType{20, 21} {
			h.decodeQueueEvent(netlink.Message{Header: netlink.Header{Type: id}, Data: b})
		}
	})
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func devNull(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Open("/dev/null")
	must(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return f
}
