//go:build vm

package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/test/vm/report"
	"github.com/afxdp-project/afxdp/test/vm/traffic"
)

const (
	queues = 4
	// machineTime is when a machine is given up; its guest gives up earlier.
	machineTime = 7 * time.Minute
	memory      = "512"
)

// card is a NIC of the machines.
type card struct {
	report.NIC
	queues int
	// arguments are QEMU's, for the netdev that the descriptors fds are the queues of.
	arguments func(id, fds, mac string) []string
}

// cards are the NICs of each machine, the copy mode of one of them among them, and one that needs no hardware.
var cards = []card{
	{report.NIC{Name: "virtio-net", Driver: "virtio_net", MAC: "02:00:00:00:00:10"}, queues, virtio},
	{report.NIC{Name: "virtio-net in copy mode", Driver: "virtio_net", MAC: "02:00:00:00:00:10", Copy: true}, 0, nil},
	{report.NIC{Name: "igb", Driver: "igb", MAC: "02:00:00:00:00:20"}, 1, igb},
	{report.NIC{Name: "veth", Driver: "veth"}, 0, nil},
}

func virtio(id, fds, mac string) []string {
	return []string{
		"-netdev", "tap,id=" + id + ",vhost=off,fds=" + fds,
		// Zero-copy needs VIRTIO_F_ACCESS_PLATFORM. Two vectors a queue, one for changes and one for control.
		"-device", fmt.Sprintf("virtio-net-pci,netdev=%s,mac=%s,mq=on,vectors=%d,iommu_platform=on,disable-legacy=on",
			id, mac, 2*queues+2),
	}
}

func igb(id, fds, mac string) []string {
	return []string{"-netdev", "tap,id=" + id + ",fd=" + fds, "-device", "igb,netdev=" + id + ",mac=" + mac}
}

// machine is a virtual machine with its NICs' other ends.
type machine struct {
	kernel  kernel
	number  int // tells the names of the devices of machines apart
	cpus    int
	ports   map[string]*traffic.Port
	files   []*os.File
	console string // file with what the kernel said
}

// newMachine makes the taps of a machine.
func newMachine(k kernel, number, cpus int, dir string) (_ *machine, err error) {
	m := &machine{
		kernel: k, number: number, cpus: cpus, ports: make(map[string]*traffic.Port), console: filepath.Join(dir, "console"),
	}
	defer func() {
		if err != nil {
			m.close()
		}
	}()
	for i, c := range cards {
		if c.queues == 0 {
			continue
		}
		name := fmt.Sprintf("vm%dn%d", number, i)
		files, err := openTap(name, c.queues)
		if err != nil {
			return nil, err
		}
		m.files = append(m.files, files...)
		if m.ports[c.MAC], err = traffic.Open(name); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *machine) close() {
	for _, p := range m.ports {
		_ = p.Close()
	}
	closeAll(m.files)
}

// port is the other end of a NIC; nil when that is inside the machine.
func (m *machine) port(nic string) *traffic.Port {
	for _, c := range cards {
		if c.Name == nic {
			return m.ports[c.MAC]
		}
	}
	return nil
}

func (m *machine) command(ctx context.Context, initramfs string) *exec.Cmd {
	args := []string{
		"-M", "q35", "-accel", "tcg,thread=single", "-cpu", "max", "-smp", fmt.Sprint(m.cpus), "-m", memory,
		"-display", "none", "-no-reboot", "-nodefaults",
		"-serial", "file:" + m.console, "-serial", "stdio",
		"-kernel", filepath.Join(m.kernel.dir, "vmlinuz"), "-initrd", initramfs,
		"-append", "console=ttyS0 loglevel=6 panic=-1 mitigations=off",
	}
	fd := 3 // of the first of ExtraFiles
	for i, c := range cards {
		if c.queues == 0 {
			continue
		}
		var fds []string
		for range c.queues {
			fds = append(fds, fmt.Sprint(fd))
			fd++
		}
		args = append(args, c.arguments(fmt.Sprintf("n%d", i), strings.Join(fds, ":"), c.MAC)...)
	}
	cmd := exec.CommandContext(ctx, qemuPath(), args...)
	cmd.ExtraFiles = m.files
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// run boots the machine and returns the rows that its guest reports.
func (m *machine) run(ctx context.Context, initramfs string) (rows []report.Row, err error) {
	// The parent-death signal is tied to the thread that starts QEMU.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ctx, cancel := context.WithTimeout(ctx, machineTime)
	defer cancel()
	cmd := m.command(ctx, initramfs)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start QEMU: %w", err)
	}
	var sending *traffic.Port
	done := false
	stop := func() {
		if sending != nil {
			sending.Stop()
			sending = nil
		}
	}
	readErr := report.Read(out, func(msg report.Message) error {
		switch {
		case msg.Send != nil:
			stop()
			mac, err := net.ParseMAC(msg.Send.MAC)
			if err != nil {
				return err
			}
			if sending = m.port(msg.Send.NIC); sending != nil {
				sending.Start(mac)
			}
		case msg.Quiet:
			stop()
		case msg.Row != nil:
			if p := m.port(msg.NIC); p != nil {
				count(p, msg)
			}
			rows = append(rows, *msg.Row)
		case msg.Failed != "":
			return errors.New("the guest failed: " + msg.Failed)
		case msg.Done:
			done = true
		}
		return nil
	})
	stop()
	if readErr != nil {
		cancel() // kills QEMU, if the guest has not powered off
	}
	_, _ = io.Copy(io.Discard, out)
	switch err := cmd.Wait(); {
	case readErr != nil:
		return rows, readErr
	case !done:
		return rows, errors.Join(fmt.Errorf("the guest ended without a word; QEMU said %q; console:\n%s", &stderr, m.tail()),
			err, ctx.Err())
	}
	return rows, nil
}

// count notes which of the frames that a row sent have come out, some of which may still be on their way.
func count(p *traffic.Port, msg report.Message) {
	for deadline := time.Now().Add(time.Second); p.Arrived(msg.Tag) < msg.Row.TX.Frames && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	msg.Row.TX.Count(p.Arrived(msg.Tag))
}

// tail returns the end of what the kernel said.
func (m *machine) tail() string {
	text, err := os.ReadFile(m.console)
	if err != nil {
		return err.Error()
	}
	const most = 4000
	return string(text[max(0, len(text)-most):])
}
