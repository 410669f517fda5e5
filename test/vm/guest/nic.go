package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/testutil"
	"github.com/afxdp-project/afxdp/pkg/netdev"
	"github.com/afxdp-project/afxdp/test/vm/report"
	"github.com/afxdp-project/afxdp/test/vm/traffic"
)

// nic is a NIC under test.
type nic struct {
	report.NIC
	device string
	index  int
	peer   *traffic.Port // the other end, if that is in this machine
}

const (
	vethNear, vethFar = "near", "far"
	// carrierTime is more than any driver here takes to have a link: igb takes one to two seconds.
	carrierTime = 15 * time.Second
)

// openNIC finds a NIC, or makes it, and brings it up with as many queues as wanted.
func (t *tester) openNIC(want report.NIC) (*nic, error) {
	n := &nic{NIC: want}
	if want.Driver == "veth" {
		if err := testutil.AddVeth(testutil.VethPair{Near: vethNear, Far: vethFar, Queues: t.task.Queues}); err != nil {
			return nil, err
		}
		var err error
		if n.peer, err = traffic.Open(vethFar); err != nil {
			return nil, err
		}
		n.device = vethNear
	} else {
		links, err := t.nics.Links()
		if err != nil {
			return nil, err
		}
		for _, l := range links {
			if l.MAC.String() == want.MAC {
				n.device = l.Name
			}
		}
		if n.device == "" {
			return nil, fmt.Errorf("no device has the address %s: the driver %s did not find its NIC", want.MAC, want.Driver)
		}
		if err := setChannels(n.device, t.task.Queues); err != nil {
			return nil, err
		}
		if err := testutil.SetUp(n.device); err != nil {
			return nil, err
		}
	}
	ifi, err := net.InterfaceByName(n.device)
	if err != nil {
		return nil, err
	}
	n.index, n.MAC = ifi.Index, ifi.HardwareAddr.String()
	return n, t.settle(n)
}

// settle waits for the link: attaching XDP and zero-copy binds reset some NICs.
func (t *tester) settle(n *nic) error {
	steady := 0
	for deadline := time.Now().Add(carrierTime); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		l, err := t.nics.LinkByIndex(n.index)
		if err != nil {
			return err
		}
		if !l.Carrier {
			steady = 0
		} else if steady++; steady == 5 {
			return nil
		}
	}
	return fmt.Errorf("%s has no link after %v", n.device, carrierTime)
}

// setChannels has a NIC use so many queues: drivers start with as many as there are CPUs.
func setChannels(device string, count int) error {
	fail := func(err error) error { return fmt.Errorf("set %s to %d channels: %w", device, count, err) }
	c, err := genetlink.Dial(nil)
	if err != nil {
		return fail(err)
	}
	defer func() { _ = c.Close() }()
	f, err := c.GetFamily("ethtool")
	if err != nil {
		return fail(err)
	}
	ae := netlink.NewAttributeEncoder()
	ae.Nested(unix.ETHTOOL_A_CHANNELS_HEADER, func(ae *netlink.AttributeEncoder) error {
		ae.String(unix.ETHTOOL_A_HEADER_DEV_NAME, device)
		return nil
	})
	ae.Uint32(unix.ETHTOOL_A_CHANNELS_COMBINED_COUNT, uint32(count))
	data, err := ae.Encode()
	if err != nil {
		return fail(err)
	}
	_, err = c.Execute(genetlink.Message{
		Header: genetlink.Header{Command: unix.ETHTOOL_MSG_CHANNELS_SET, Version: f.Version}, Data: data,
	}, f.ID, netlink.Request|netlink.Acknowledge)
	if err != nil && !errors.Is(err, unix.EINVAL) { // EINVAL: it has that many
		return fail(err)
	}
	return nil
}

// vector returns the name in /proc/interrupts of the vector of an rx queue, and how often it came; "" where it has none.
func (n *nic) vector(queue int) (name string, count uint64, err error) {
	_, name, count, err = n.vectorLine(queue)
	return name, count, err
}

func (n *nic) vectorLine(queue int) (irq, name string, count uint64, err error) {
	var want *regexp.Regexp
	switch n.Driver {
	case "virtio_net":
		device, err := filepath.EvalSymlinks("/sys/class/net/" + n.device + "/device")
		if err != nil {
			return "", "", 0, err
		}
		want = regexp.MustCompile(fmt.Sprintf(`^%s-input\.%d$`, filepath.Base(device), queue))
	case "igb":
		want = regexp.MustCompile(fmt.Sprintf(`^%s-(TxRx|rx)-%d$`, n.device, queue))
	default:
		return "", "", 0, nil
	}
	table, err := os.ReadFile("/proc/interrupts")
	if err != nil {
		return "", "", 0, err
	}
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		if len(fields) == 0 || !want.MatchString(fields[len(fields)-1]) {
			continue
		}
		for _, f := range fields[1:] {
			one, err := strconv.ParseUint(f, 10, 64)
			if err != nil {
				break // the counts by CPU have ended
			}
			count += one
		}
		return strings.TrimSuffix(fields[0], ":"), fields[len(fields)-1], count, nil
	}
	return "", "", 0, fmt.Errorf("/proc/interrupts has no vector %v:\n%s", want, table)
}

// start has the other end send.
func (t *tester) start(n *nic) error {
	if n.peer == nil {
		t.tell(report.Message{Send: &report.Send{NIC: n.Name, MAC: n.MAC}})
		return nil
	}
	mac, err := net.ParseMAC(n.MAC)
	if err == nil {
		n.peer.Start(mac)
	}
	return err
}

// stop has the other end stop.
func (t *tester) stop(n *nic) {
	if n.peer == nil {
		t.tell(report.Message{Quiet: true})
	} else {
		n.peer.Stop()
	}
}

// xdpMode reads how XDP runs on a NIC.
func (t *tester) xdpMode(n *nic) (netdev.XDPMode, error) {
	l, err := t.nics.LinkByIndex(n.index)
	return l.XDP.Mode, err
}
