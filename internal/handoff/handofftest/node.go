// Package handofftest is the rig of the handoff's tests: a node with an agent's lease manager and handoff server on a
// veth pair, and pods.
package handofftest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/handoff"
	"github.com/afxdp-project/afxdp/internal/lease"
	"github.com/afxdp-project/afxdp/internal/testutil"
	"github.com/afxdp-project/afxdp/pkg/netdev"
)

const (
	NIC = "hnear" // the node's end of the veth pair
	Far = "hfar"
	// Patience bounds what is to happen at once.
	Patience = 10 * time.Second
)

// DefaultSettings are those of a pool without busy polling.
var DefaultSettings = lease.Settings{
	Pool: "fast", ZeroCopy: lease.ZeroCopyAuto, NeedWakeup: true,
	MaxUMEM: 64 << 20, MaxFrames: 16384, MaxRingSize: 1024,
}

// Node is an agent's lease manager and handoff server with a veth pair of four queues.
type Node struct {
	Link   netdev.Link // of NIC
	Leases *lease.Manager
	Server *handoff.Server

	tb   testing.TB
	nics *netdev.Handle
}

// New makes a node that is taken down with the test, which must leave no descriptor behind.
func New(tb testing.TB) *Node {
	tb.Helper()
	testutil.NeedKernel(tb)
	before := testutil.OpenFDs()
	tb.Cleanup(func() {
		if leaked := testutil.LeakedFDs(before); leaked != nil {
			tb.Errorf("descriptors left open: %s", strings.Join(leaked, ", "))
		}
	})
	testutil.Veth(tb, testutil.VethPair{Near: NIC, Far: Far, Queues: 4})
	n := &Node{tb: tb}
	var err error
	if n.nics, err = netdev.Open(); err != nil {
		tb.Fatal(err)
	}
	if n.Link, err = n.nics.LinkByName(NIC); err != nil {
		tb.Fatal(err)
	}
	n.Start()
	tb.Cleanup(func() {
		for _, l := range n.Leases.Leases() {
			for _, a := range l.Attachments {
				if err := n.Leases.Detach(a); err != nil {
					tb.Error(err)
				}
			}
		}
		n.Stop()
		if err := errors.Join(n.nics.Close(), os.RemoveAll("/run/state"), os.RemoveAll("/run/alloc")); err != nil {
			tb.Error(err)
		}
	})
	return n
}

// Start has an agent take up the journal.
func (n *Node) Start() {
	n.tb.Helper()
	var findings []error
	var err error
	n.Leases, findings, err = lease.New(lease.Config{StateDir: "/run/state", PinDir: "/sys/fs/bpf/afxdp", NICs: n.nics})
	if err != nil || findings != nil {
		n.tb.Fatal(err, findings)
	}
	n.Server = handoff.NewServer(n.Leases, slog.New(slog.NewTextHandler(n.tb.Output(), nil)))
}

// Stop ends the agent. Leases and sockets live on.
func (n *Node) Stop() {
	n.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	if err := errors.Join(n.Server.Close(ctx), n.Leases.Close()); err != nil {
		n.tb.Error(err)
	}
}

// Device returns the id of the device with a queue.
func Device(queue int) string { return fmt.Sprintf("%s-q%d", NIC, queue) }

// Serve has the socket of an allocation of queues listen and returns its path.
func (n *Node) Serve(id string, queues ...int) string {
	n.tb.Helper()
	a := handoff.Allocation{ID: id, Dir: "/run/alloc/" + id, Pool: "fast"}
	for _, q := range queues {
		a.Devices = append(a.Devices, Device(q))
	}
	if err := os.MkdirAll(a.Dir, 0o755); err != nil {
		n.tb.Fatal(err)
	}
	if err := n.Server.Serve(a); err != nil {
		n.tb.Fatal(err)
	}
	return filepath.Join(a.Dir, handoff.SocketName)
}

// Pod is a network namespace with leases.
type Pod struct {
	Netns  *testutil.Netns
	Cookie uint64

	node *Node
	name string
}

// NewPod makes a pod without leases.
func (n *Node) NewPod(name string) *Pod {
	n.tb.Helper()
	p := &Pod{node: n, name: name, Netns: testutil.NewNetns(n.tb)}
	err := p.Netns.Do(func() error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		p.Cookie, err = netdev.CookieOfSocket(fd)
		return err
	})
	if err != nil {
		n.tb.Fatal(err)
	}
	return p
}

// Attachment is the pod's CNI attachment.
func (p *Pod) Attachment() lease.Attachment {
	return lease.Attachment{Network: "net", ContainerID: "sandbox-" + p.name, Ifname: "eth0"}
}

// Add does what a CNI ADD does.
func (p *Pod) Add(settings lease.Settings, queues ...int) {
	p.node.tb.Helper()
	r := lease.Request{
		Pod: lease.Pod{UID: "uid-" + p.name, Namespace: "default", Name: p.name}, NetnsCookie: p.Cookie,
		Attachment: p.Attachment(),
	}
	for _, q := range queues {
		r.Devices = append(r.Devices, lease.DeviceRequest{
			Device: lease.Device{ID: Device(q), Link: p.node.Link, Queue: q}, Settings: settings,
		})
	}
	if err := p.node.Leases.Activate(r); err != nil {
		p.node.tb.Fatal(err)
	}
}

// Del does what a CNI DEL does.
func (p *Pod) Del() {
	p.node.tb.Helper()
	if err := p.node.Leases.Detach(p.Attachment()); err != nil {
		p.node.tb.Fatal(err)
	}
}

// IsOpen reports whether a connection has the device open.
func (n *Node) IsOpen(device string) bool {
	_, open := n.Leases.Statistics()[device]
	return open
}
