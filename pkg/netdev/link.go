package netdev

import (
	"fmt"
	"net"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Link is a network device as the kernel shows it at one moment.
type Link struct {
	Index    int
	Name     string
	AltNames []string
	// Kind is the type of a software device ("veth", "bond", "vlan"); "" for most hardware.
	Kind string
	// Driver is the driver's name from ETHTOOL_GDRVINFO; "" where it gives none.
	Driver string
	MAC    net.HardwareAddr
	// PermMAC is the address that the hardware came with; nil where the device has none, as veth.
	PermMAC net.HardwareAddr
	MTU     int // bytes
	// Up says that the device is administratively up.
	Up        bool
	OperState OperState
	// Carrier says that the device sees a signal. A device that is not up has none.
	Carrier bool
	// RxQueues and TxQueues are the queues allocated, the most there can be. [Handle.QueueCount] has those in use.
	RxQueues, TxQueues int
	// PCI is the address of the PCI function that the device sits on, also when by way of virtio ("0000:3b:00.1");
	// "" for a device that is on no PCI bus.
	PCI string
	// NUMANode is the memory node next to the device; -1 where the platform names none.
	NUMANode int
	XDP      XDP
	Loopback bool
}

// OperState is the operational state of RFC 2863 as in sysfs' operstate.
type OperState string

const (
	OperUnknown        OperState = "unknown" // the driver keeps none; as good as up when there is a carrier
	OperNotPresent     OperState = "notpresent"
	OperDown           OperState = "down"
	OperLowerLayerDown OperState = "lowerlayerdown"
	OperTesting        OperState = "testing"
	OperDormant        OperState = "dormant"
	OperUp             OperState = "up"
)

// XDP says which XDP programs a device runs.
type XDP struct {
	Mode XDPMode
	// ProgID is the kernel's id of the program; 0 for none, and in mode multi, where the three below have them.
	ProgID uint32
	// The program in each mode, 0 for none.
	NativeProgID, GenericProgID, OffloadProgID uint32
}

// XDPMode says where on a device's receive path XDP programs run.
type XDPMode string

const (
	XDPNone    XDPMode = "none"
	XDPNative  XDPMode = "native"  // in the driver
	XDPGeneric XDPMode = "generic" // in the stack, after an skb was made
	XDPOffload XDPMode = "offload" // on the NIC
	XDPMulti   XDPMode = "multi"   // more than one of them
)

// Links lists the devices of the network namespace, in the kernel's order.
func (h *Handle) Links() ([]Link, error) {
	raw, err := h.rawLinks()
	if err != nil {
		return nil, err
	}
	links := make([]Link, 0, len(raw))
	for i := range raw {
		links = append(links, h.complete(&raw[i]))
	}
	return links, nil
}

// LinkByName finds a device by its name or one of its alternative names. [ErrNoDevice] when there is none.
func (h *Handle) LinkByName(name string) (Link, error) {
	ae := netlink.NewAttributeEncoder()
	if len(name) < unix.IFNAMSIZ {
		ae.String(unix.IFLA_IFNAME, name) // finds alternative names too
	} else {
		ae.String(unix.IFLA_ALT_IFNAME, name)
	}
	l, err := h.getLink(0, ae)
	if err != nil {
		return Link{}, fmt.Errorf("find link %q: %w", name, err)
	}
	return h.complete(l), nil
}

// LinkByIndex finds a device by its interface index. [ErrNoDevice] when there is none.
func (h *Handle) LinkByIndex(index int) (Link, error) {
	l, err := h.rawLinkByIndex(index)
	if err != nil {
		return Link{}, err
	}
	return h.complete(l), nil
}

func (h *Handle) rawLinkByIndex(index int) (*rawLink, error) {
	if err := checkIndex(index); err != nil {
		return nil, fmt.Errorf("find link: %w", err)
	}
	l, err := h.getLink(index, netlink.NewAttributeEncoder())
	if err != nil {
		return nil, fmt.Errorf("find link %d: %w", index, err)
	}
	return l, nil
}

func (h *Handle) rawLinks() ([]rawLink, error) {
	data, err := linkRequest(0, netlink.NewAttributeEncoder())
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	msgs, err := h.route.dump(unix.RTM_GETLINK, data)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	links := make([]rawLink, 0, len(msgs))
	for _, m := range msgs {
		l, err := decodeLink(m.Data)
		if err != nil {
			return nil, fmt.Errorf("list links: %w", err)
		}
		links = append(links, *l)
	}
	return links, nil
}

func (h *Handle) getLink(index int, ae *netlink.AttributeEncoder) (*rawLink, error) {
	data, err := linkRequest(index, ae)
	if err != nil {
		return nil, err
	}
	msgs, err := h.route.execute(unix.RTM_GETLINK, 0, data)
	if err != nil {
		return nil, err
	}
	if len(msgs) != 1 {
		return nil, fmt.Errorf("the kernel sent %d answers, want 1", len(msgs))
	}
	return decodeLink(msgs[0].Data)
}

// complete adds what rtnetlink does not tell. What cannot be found out stays empty: a device may go while we ask.
func (h *Handle) complete(l *rawLink) Link {
	l.PCI, l.NUMANode = h.location(l.parentBus, l.parentDev)
	l.Driver = h.driver(l.Name)
	return l.Link
}

func (h *Handle) driver(name string) string {
	var driver string
	raw, err := h.sock.SyscallConn()
	if err != nil {
		return ""
	}
	ioctl := func(fd uintptr) {
		if info, err := unix.IoctlGetEthtoolDrvinfo(int(fd), name); err == nil {
			driver = unix.ByteSliceToString(info.Driver[:])
		}
	}
	if raw.Control(ioctl) != nil {
		return ""
	}
	return driver
}
