package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/testutil"
	"github.com/afxdp-project/afxdp/pkg/netdev"
)

// Where things are on the node. All of /run is the node's own.
const (
	nodeDir     = "/run/demo"
	binDir      = nodeDir + "/bin"
	kubeletRoot = nodeDir + "/kubelet"
	configFile  = nodeDir + "/config.yaml"
	agentLog    = nodeDir + "/agent.log"
	cniCache    = nodeDir + "/cni"
	rootfs      = nodeDir + "/rootfs" // where the container makes its root
	podNetns    = nodeDir + "/netns"  // where the pod's network namespace is mounted
	runDir      = "/run/afxdp"
	pinDir      = "/sys/fs/bpf/afxdp"
	sourcePins  = "/sys/fs/bpf/source"
)

// nodeMounts is what the node mounts for itself.
func nodeMounts() []string { return []string{"/proc", "/sys", "/sys/fs/bpf", "/run"} }

// nodeMain is the program inside the node's namespaces, as first process of its PID namespace.
func nodeMain(args []string) int {
	outcomeFile := os.NewFile(3, "outcome")
	unix.CloseOnExec(3)
	if len(args) != 2 {
		fmt.Fprintln(os.Stderr, "demo: started as node by something else than the demo")
		return 2
	}
	s := &story{screen: newScreen(os.Stderr), outcome: outcome{UID: -1}}
	err := s.tell(args[0])
	if err != nil || args[1] == "true" {
		s.showLogs()
	}
	if werr := json.NewEncoder(outcomeFile).Encode(s.outcome); err == nil {
		err = werr
	}
	if err != nil {
		s.screen.step("FAILED: %v", err)
		return 1
	}
	return 0
}

// hurry has this session, which is the node and all that runs on it, go before what else the machine does, so that the
// rate of packets is not a matter of luck. Where that is not allowed, it is one.
func hurry() {
	const nice = -10
	_ = unix.Setpriority(unix.PRIO_PGRP, 0, nice)
	// Where sessions are scheduled as groups, a process's own priority counts only within its session.
	_ = os.WriteFile("/proc/self/autogroup", fmt.Append(nil, nice), 0)
}

// node is the machine that the agent runs on: its NIC is one end of a veth pair, whose other end is in the network
// namespace of the traffic source.
type node struct {
	far     *testutil.Netns
	nics    *netdev.Handle
	address net.HardwareAddr // of the near NIC
}

// setUpNode makes this process's namespaces the node's, and the cable. bin is the host's directory with the programs.
func setUpNode(bin string) (_ *node, err error) {
	if err := mountNode(bin); err != nil {
		return nil, err
	}
	hurry()
	if err := testutil.SetUp("lo"); err != nil {
		return nil, err
	}
	if err := silenceIPv6(); err != nil {
		return nil, err
	}
	n := &node{}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
		}
	}()
	if n.far, err = testutil.OpenNewNetns(); err != nil {
		return nil, err
	}
	if err := n.far.Do(silenceIPv6); err != nil {
		return nil, err
	}
	if err := testutil.AddVeth(testutil.VethPair{Near: nearNIC, Far: farNIC, Queues: nicQueues}); err != nil {
		return nil, err
	}
	if err := testutil.MoveToNetns(farNIC, n.far.FD()); err != nil {
		return nil, err
	}
	if err := n.far.Do(func() error { return testutil.SetUp(farNIC) }); err != nil {
		return nil, err
	}
	if n.nics, err = netdev.Open(); err != nil {
		return nil, err
	}
	link, err := waitForCarrier(n.nics)
	if err != nil {
		return nil, err
	}
	n.address = link.MAC
	return n, setNIC(n.nics, link.Index)
}

func waitForCarrier(h *netdev.Handle) (netdev.Link, error) {
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		link, err := h.LinkByName(nearNIC)
		if err != nil || link.Carrier && link.OperState == netdev.OperUp {
			return link, err
		}
		if time.Now().After(deadline) {
			return link, fmt.Errorf("%s has no carrier, its state is %s", nearNIC, link.OperState)
		}
	}
}

// silenceIPv6 keeps the kernel from sending packets of its own, which nobody would answer, in the calling thread's
// network namespace.
func silenceIPv6() error {
	for _, which := range []string{"all", "default"} {
		err := os.WriteFile("/proc/sys/net/ipv6/conf/"+which+"/disable_ipv6", []byte("1"), 0)
		if err != nil && !errors.Is(err, os.ErrNotExist) { // a kernel without IPv6
			return err
		}
	}
	return nil
}

// mountNode gives the node its own proc, sysfs, bpffs and /run, and the programs in binDir.
func mountNode(bin string) error {
	// Before /run is covered, which the directory may be below.
	from, err := os.Open(bin)
	if err != nil {
		return err
	}
	defer from.Close()
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	for i, fs := range []string{"proc", "sysfs", "bpf", "tmpfs"} {
		if err := unix.Mount(fs, nodeMounts()[i], fs, 0, ""); err != nil {
			return fmt.Errorf("mount %s at %s: %w", fs, nodeMounts()[i], err)
		}
	}
	// An installer makes pinDir on a real node, together with its mount.
	for _, dir := range []string{binDir, kubeletRoot, cniCache, rootfs, pinDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	return bind(fmt.Sprintf("/proc/self/fd/%d", from.Fd()), binDir, unix.MS_RDONLY)
}

// bind has a file or directory appear elsewhere too, with flags such as MS_RDONLY.
func bind(from, to string, flags uintptr) error {
	err := unix.Mount(from, to, "", unix.MS_BIND, "")
	if err == nil && flags != 0 {
		// A bind mount takes flags only when it is mounted again.
		err = unix.Mount("", to, "", unix.MS_BIND|unix.MS_REMOUNT|flags, "")
	}
	if err != nil {
		return fmt.Errorf("bind %s to %s: %w", from, to, err)
	}
	return nil
}

// openFar opens the traffic source on the far NIC.
func (n *node) openFar(queues []int) (s *source, err error) {
	err = n.far.Do(func() (err error) {
		s, err = openSource(farNIC, queues, n.address, sourcePins)
		return err
	})
	return s, err
}

func (n *node) close() error {
	var errs []error
	if n.nics != nil {
		errs = append(errs, n.nics.Close())
	}
	if n.far != nil {
		errs = append(errs, n.far.Close())
	}
	return errors.Join(errs...)
}

// makePodNetns makes the pod's network namespace as a container runtime does: mounted at a path, and kept alive by that.
func makePodNetns() error {
	ns, err := testutil.OpenNewNetns()
	if err != nil {
		return err
	}
	defer func() { _ = ns.Close() }() // the mount keeps it
	f, err := os.OpenFile(podNetns, os.O_CREATE|os.O_EXCL, 0)
	if err != nil {
		return err
	}
	_ = f.Close()
	return bind(ns.Path(), podNetns, 0)
}

func removePodNetns() error {
	if err := unix.Unmount(podNetns, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("unmount the pod's network namespace: %w", err)
	}
	return os.Remove(podNetns)
}

// tail returns the last lines of a file, as much as fits into a message.
func tail(path string) string {
	const most = 6000
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	if len(text) > most {
		text = text[len(text)-most:]
	}
	return filepath.Base(path) + ":\n" + string(text)
}
