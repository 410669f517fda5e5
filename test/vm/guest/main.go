// Command guest is the only program in the virtual machines of test/vm: it is process 1, loads the drivers, leases
// queues of each NIC as the agent does, opens AF_XDP sockets on them in each mode, and tells on a serial port what it
// found. Then it powers the machine off, however it went.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/test/vm/report"
)

// patience is how long the guest may take in all. On a quiet machine it is less than two minutes.
const patience = 6 * time.Minute

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "guest is the init program of test/vm's virtual machines; make test-vm runs it")
		os.Exit(2)
	}
	port := os.Stderr
	if serial, err := os.OpenFile(report.PortFile, os.O_WRONLY|unix.O_NOCTTY, 0); err == nil {
		port = serial
	}
	tell := func(m report.Message) { _ = report.Write(port, m) }
	off := func() {
		_ = unix.IoctlSetInt(int(port.Fd()), unix.TCSBRK, 1) // wait until all is sent
		_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	}
	defer off()
	defer func() {
		if p := recover(); p != nil {
			tell(report.Message{Failed: fmt.Sprintf("%v\n%s", p, debug.Stack())})
		}
	}()
	time.AfterFunc(patience, func() {
		tell(report.Message{Failed: fmt.Sprintf("not done after %v", patience)})
		off()
	})
	if err := run(tell); err != nil {
		tell(report.Message{Failed: err.Error()})
		return
	}
	tell(report.Message{Done: true})
}

func run(tell func(report.Message)) error {
	if err := boot(); err != nil {
		return fmt.Errorf("boot: %w", err)
	}
	var task report.Task
	data, err := os.ReadFile(report.TaskFile)
	if err == nil {
		err = json.Unmarshal(data, &task)
	}
	if err != nil {
		return fmt.Errorf("read task: %w", err)
	}
	t, err := newTester(task, tell)
	if err != nil {
		return err
	}
	return errors.Join(t.run(), t.close())
}
