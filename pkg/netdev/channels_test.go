package netdev

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/testutil"
)

// setChannels does what "ethtool -L dev rx n tx n" does.
func setChannels(tb testing.TB, h *Handle, index, n int) {
	tb.Helper()
	ae, err := ethtoolHeader(index)
	must(tb, err)
	ae.Uint32(unix.ETHTOOL_A_CHANNELS_RX_COUNT, uint32(n))
	ae.Uint32(unix.ETHTOOL_A_CHANNELS_TX_COUNT, uint32(n))
	if _, err := h.generic.request(h.ethtool, unix.ETHTOOL_MSG_CHANNELS_SET, netlink.Acknowledge, ae); err != nil {
		tb.Fatal(err)
	}
}

// Field case 12: the queue count changes under us.
func TestQueueCountFollowsChannelsSetByOthers(t *testing.T) {
	h := open(t)
	l := veth(t, h, 4)
	for _, n := range []int{4, 2, 1, 3} {
		setChannels(t, h, l.Index, n)
		if c, err := h.Channels(l.Index); err != nil || c != (Channels{RX: n, TX: n, MaxRX: 4, MaxTX: 4}) {
			t.Errorf("channels set to %d of 4: %+v, %v", n, c, err)
		}
		if rx, tx, err := h.QueueCount(l.Index); err != nil || rx != n || tx != n {
			t.Errorf("queues with %d channels: %d rx, %d tx, %v", n, rx, tx, err)
		}
		if l := byName(t, h, "nvnear"); l.RxQueues != 4 || l.TxQueues != 4 {
			t.Errorf("allocated queues with %d channels: %d rx, %d tx; want 4", n, l.RxQueues, l.TxQueues)
		}
	}
}

func TestQueueCountIsTheSameFromEachSource(t *testing.T) {
	h := open(t)
	l := veth(t, h, 4)
	setChannels(t, h, l.Index, 2)
	nowhere := *h
	nowhere.sysfs = t.TempDir()
	noChannels := nowhere
	noChannels.ethtool.id = 0
	expect := func(source string, h *Handle, want int) {
		t.Helper()
		if rx, tx, err := h.QueueCount(l.Index); err != nil || rx != want || tx != want {
			t.Errorf("queues from %s: %d rx, %d tx, %v; want %d", source, rx, tx, err, want)
		}
	}
	expect("queue-get", &noChannels, 2)
	must(t, testutil.SetDown("nvnear"))
	if queues, err := h.Queues(l.Index); err != nil || len(queues) > 0 {
		t.Errorf("queues of a device that is down: %v, %v; want none", queues, err)
	}
	sysfs := *h
	sysfs.ethtool.id = 0
	expect("sysfs", &sysfs, 2)
	expect("channels", &nowhere, 2)
	expect("the allocated ones", &noChannels, 4)
}

func TestVethQueuesAreLinkedToNoNAPI(t *testing.T) {
	h := open(t)
	l := veth(t, h, 2)
	queues, err := h.Queues(l.Index)
	must(t, err)
	want := []Queue{{0, RX, 0, false}, {1, RX, 0, false}, {0, TX, 0, false}, {1, TX, 0, false}}
	if len(queues) != len(want) {
		t.Fatalf("queues %v, want %v", queues, want)
	}
	for i := range want {
		if queues[i] != want[i] {
			t.Errorf("queue %d: %+v, want %+v", i, queues[i], want[i])
		}
	}
}

func TestQueueShowsABoundSocket(t *testing.T) {
	h := open(t)
	l := veth(t, h, 2)
	bindXSK(t, l.Index, 1)
	queues, err := h.Queues(l.Index)
	must(t, err)
	for _, q := range queues {
		if q.XSK != (q.Index == 1) {
			t.Errorf("with a socket bound to queue 1: %+v", q)
		}
	}
}

// bindXSK binds a socket with a UMEM of four frames to a queue in copy mode, until the test ends.
func bindXSK(t *testing.T, index, queue int) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	const frames, size = 4, 4096
	const prot, flags = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
	area, err := unix.MmapPtr(-1, 0, nil, frames*size, prot, flags)
	must(t, err)
	t.Cleanup(func() { _ = unix.MunmapPtr(area, frames*size) })
	reg := make([]byte, 24) // struct xdp_umem_reg, as it was first
	binary.NativeEndian.PutUint64(reg, uint64(uintptr(area)))
	binary.NativeEndian.PutUint64(reg[8:], frames*size)
	binary.NativeEndian.PutUint32(reg[16:], size)
	must(t, unix.SetsockoptString(fd, unix.SOL_XDP, unix.XDP_UMEM_REG, string(reg)))
	for _, ring := range []int{unix.XDP_UMEM_FILL_RING, unix.XDP_UMEM_COMPLETION_RING, unix.XDP_RX_RING} {
		must(t, unix.SetsockoptInt(fd, unix.SOL_XDP, ring, frames))
	}
	must(t, unix.Bind(fd, &unix.SockaddrXDP{Flags: unix.XDP_COPY, Ifindex: uint32(index), QueueID: uint32(queue)}))
}

func TestXDPFeaturesOfVeth(t *testing.T) {
	h := open(t)
	f, err := h.XDPFeatures(veth(t, h, 1).Index)
	if err != nil || !f.Basic || !f.Redirect || f.ZeroCopy || f.HWOffload || f.ZCMaxSegs != 0 {
		t.Errorf("features of a veth: %+v, %v; want native XDP and no zero-copy", f, err)
	}
	if f, err := h.XDPFeatures(1); err != nil || f != (XDPFeatures{}) {
		t.Errorf("features of lo: %+v, %v; want none", f, err)
	}
}

func TestLocationIsReadFromTheDeviceTree(t *testing.T) {
	root := t.TempDir()
	// device makes a device directory of a subsystem, with a NUMA node unless that is "".
	device := func(path, subsystem, node string) {
		dir := filepath.Join(root, "devices", path)
		must(t, os.MkdirAll(dir, 0o755))
		must(t, os.MkdirAll(filepath.Join(root, "bus", subsystem, "devices"), 0o755))
		must(t, os.Symlink(filepath.Join(root, "bus", subsystem), filepath.Join(dir, "subsystem")))
		must(t, os.Symlink(dir, filepath.Join(root, "bus", subsystem, "devices", filepath.Base(path))))
		if node != "" {
			must(t, os.WriteFile(filepath.Join(dir, "numa_node"), []byte(node+"\n"), 0o644))
		}
	}
	device("pci0000:3a/0000:3a:00.0", "pci", "1")
	device("pci0000:3a/0000:3a:00.0/0000:3b:00.1", "pci", "1")
	device("pci0000:00/0000:00:03.0", "pci", "-1")
	device("pci0000:00/0000:00:03.0/virtio2", "virtio", "")
	device("pci0000:3a/0000:3a:00.0/0000:3b:00.1/mlx5_core.sf.4", "auxiliary", "")
	device("pci0000:00/0000:00:14.0", "pci", "0")
	device("pci0000:00/0000:00:14.0/usb1", "usb", "")
	device("pci0000:00/0000:00:14.0/usb1/1-2:1.0", "usb", "")
	device("platform/fe300000.ethernet", "platform", "")
	h := &Handle{sysfs: root}
	for _, c := range []struct {
		bus, dev, pci string
		node          int
	}{
		{"pci", "0000:3b:00.1", "0000:3b:00.1", 1},
		{"virtio", "virtio2", "0000:00:03.0", -1},
		{"auxiliary", "mlx5_core.sf.4", "0000:3b:00.1", 1},
		{"usb", "1-2:1.0", "", 0},
		{"platform", "fe300000.ethernet", "", -1},
		{"pci", "0000:99:00.0", "0000:99:00.0", -1}, // sysfs without it
		{"virtio", "virtio9", "", -1},
		{"pci", "../../devices", "", -1},
		{"", "", "", -1},
	} {
		if pci, node := h.location(c.bus, c.dev); pci != c.pci || node != c.node {
			t.Errorf("%s on %s: PCI %q, node %d; want %q, %d", c.dev, c.bus, pci, node, c.pci, c.node)
		}
	}
}
