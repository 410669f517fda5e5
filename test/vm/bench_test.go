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
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/testutil"
	"github.com/afxdp-project/afxdp/test/vm/report"
	"github.com/afxdp-project/afxdp/test/vm/traffic"
)

const (
	benchTap   = "bench0"
	benchQueue = 1 // of the NIC, the one that all frames go to
	benchRuns  = 5
)

func polling(budget, flushUs int, latency bool) report.BenchCase {
	name := fmt.Sprintf("busy polling, budget %d", budget)
	if flushUs != 20000 {
		name += fmt.Sprintf(", interrupts deferred for %d µs", flushUs)
	}
	return report.BenchCase{Name: name, Budget: budget, DeferHardIRQs: 2, GROFlushTimeoutUs: flushUs, Latency: latency}
}

var benchCases = []report.BenchCase{
	{Name: "interrupts on the same core", Latency: true},
	polling(16, 20000, false),
	polling(64, 20000, true),
	polling(256, 20000, false),
	polling(512, 20000, false),
	polling(64, 200, false),
	{Name: "threaded NAPI", Threaded: true, Latency: true},
}

func TestBenchBusyPoll(t *testing.T) {
	testutil.NeedKernel(t)
	missing, err := have("qemu")
	switch {
	case err != nil:
		t.Fatal(err)
	case missing != "":
		t.Skip("not run: no QEMU: " + missing)
	}
	k, missing, err := findKernel("newest")
	switch {
	case err != nil:
		t.Fatal(err)
	case missing != "":
		t.Skip("not run: kernel newest: " + missing)
	}
	p, err := build(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	runs := benchRuns
	if s := os.Getenv("AFXDP_BENCH_RUNS"); s != "" {
		if runs, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	b := report.Bench{Cases: benchCases, Runs: runs, CPUs: 1, Overload: 3, Work: 1}
	if s := os.Getenv("X_WORK"); s != "" {
		b.PPS, _ = strconv.Atoi(os.Getenv("X_PPS"))
		b.Work, _ = strconv.Atoi(os.Getenv("X_WORK"))
		b.Cases = []report.BenchCase{benchCases[0], benchCases[2], benchCases[6]}
		for i := range b.Cases {
			b.Cases[i].Latency = false
		}
	}
	got := bench(t, k, p, b, "tcg,thread=single")
	_ = got
}

// bench boots a machine with one NIC and returns the runs that its guest reports.
func bench(t *testing.T, k kernel, p programs, b report.Bench, accel string) []report.BenchRun {
	t.Helper()
	dir := t.TempDir()
	image := filepath.Join(dir, "initramfs")
	task := report.Task{Kernel: k.class, Queues: queues, NICs: []report.NIC{cards[0].NIC}, Bench: &b}
	if err := writeInitramfsFor(task, image, k, p); err != nil {
		t.Fatal(err)
	}
	files, err := openTap(benchTap, queues)
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(files)
	if err := steer(files[0], benchQueue); err != nil {
		t.Fatal(err)
	}
	m := benchMachine{files: files, console: filepath.Join(dir, "console")}
	if m.mac, err = net.ParseMAC(cards[0].MAC); err != nil {
		t.Fatal(err)
	}
	runs, err := m.run(t.Context(), k, image, accel, b.CPUs)
	if err != nil {
		t.Errorf("Linux %s: %v", k.version, err)
	}
	return runs
}

// steer has a tap give all frames to one queue.
func steer(tap *os.File, queue int32) error {
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SocketFilter, License: "Apache-2.0",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, queue), asm.Return()},
	})
	if err != nil {
		return fmt.Errorf("steer frames to queue %d: %w", queue, err)
	}
	defer func() { _ = prog.Close() }()
	if err := unix.IoctlSetPointerInt(int(tap.Fd()), unix.TUNSETSTEERINGEBPF, prog.FD()); err != nil {
		return fmt.Errorf("steer frames to queue %d: %w", queue, err)
	}
	return nil
}

type benchMachine struct {
	files   []*os.File
	console string
	mac     net.HardwareAddr
}

func (m *benchMachine) command(ctx context.Context, k kernel, image, accel string, cpus int) *exec.Cmd {
	var fds []string
	for i := range m.files {
		fds = append(fds, fmt.Sprint(3+i))
	}
	args := []string{
		"-M", "q35", "-accel", accel, "-cpu", "max", "-smp", fmt.Sprint(cpus), "-m", memory,
		"-display", "none", "-no-reboot", "-nodefaults", "-serial", "file:" + m.console, "-serial", "stdio",
		"-kernel", filepath.Join(k.dir, "vmlinuz"), "-initrd", image,
		"-append", "console=ttyS0 loglevel=6 panic=-1 mitigations=off",
	}
	args = append(args, virtio("n0", strings.Join(fds, ":"), m.mac.String())...)
	cmd := exec.CommandContext(ctx, qemuPath(), args...)
	cmd.ExtraFiles = m.files
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// run boots the machine, sends what its guest asks for, and returns the runs.
func (m *benchMachine) run(ctx context.Context, k kernel, image, accel string, cpus int) (runs []report.BenchRun, err error) {
	runtime.LockOSThread() // the parent-death signal is tied to the thread that starts QEMU
	defer runtime.UnlockOSThread()
	ctx, cancel := context.WithTimeout(ctx, machineTime)
	defer cancel()
	cmd := m.command(ctx, k, image, accel, cpus)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start QEMU: %w", err)
	}
	s := benchSender{mac: m.mac}
	done := false
	readErr := report.Read(out, func(msg report.Message) error {
		switch {
		case msg.Flood != nil:
			return s.flood(msg.Flood.PPS)
		case msg.Ping:
			return s.ping()
		case msg.Quiet:
			return s.quiet()
		case msg.Bench != nil:
			msg.Bench.Host = s.last
			runs = append(runs, *msg.Bench)
			r := msg.Bench
			fmt.Printf("%-30s %.1f kpps of %.1f taken %.1f, irq %.0f/s full %.0f/s calls %.0f/s sleeps %d %s user %.2f sys %.2f soft %.2f app %.2f ksoft %.2f thr %.2f host %+v\n",
				r.Case, float64(r.Received)/r.Seconds/1000,
				s.last.Offered/1000, s.last.Taken/1000, float64(r.Interrupts)/r.Seconds, float64(r.RingFull)/r.Seconds, float64(r.RXCalls)/r.Seconds, r.Sleeps, r.Refusal,
				r.CPU.User, r.CPU.System, r.CPU.SoftIRQ, r.CPU.Application, r.CPU.Ksoftirqd, r.CPU.NAPIThread, r.Refusal)
		case msg.Failed != "":
			return errors.New("the guest failed: " + msg.Failed)
		case msg.Done:
			done = true
		}
		return nil
	})
	readErr = errors.Join(readErr, s.quiet())
	if readErr != nil {
		cancel() // kills QEMU, if the guest has not powered off
	}
	_, _ = io.Copy(io.Discard, out)
	waitErr := cmd.Wait()
	switch {
	case readErr != nil:
		return runs, readErr
	case !done:
		return runs, fmt.Errorf("the guest ended without a word (QEMU: %v; %s; console: %s)", waitErr, &stderr, m.console)
	}
	return runs, nil
}

// benchSender sends what the guest asks for.
type benchSender struct {
	mac    net.HardwareAddr
	floods *traffic.Flood
	pings  *traffic.Pinger
	before tapCounters
	last   report.BenchHost // account of what was sent last
}

func (s *benchSender) flood(pps int) (err error) {
	if err := s.quiet(); err != nil {
		return err
	}
	if s.before, err = readTap(); err != nil {
		return err
	}
	s.floods, err = traffic.StartFlood(benchTap, s.mac, pps)
	return err
}

func (s *benchSender) ping() (err error) {
	if err := s.quiet(); err != nil {
		return err
	}
	s.pings, err = traffic.StartPinger(benchTap, s.mac)
	return err
}

func (s *benchSender) quiet() error {
	if s.floods != nil {
		offered, took := s.floods.Stop()
		s.floods = nil
		now, err := readTap()
		if err != nil {
			return err
		}
		sec := took.Seconds()
		s.last = report.BenchHost{
			Seconds: sec, Offered: float64(offered) / sec, Taken: float64(now.taken-s.before.taken) / sec,
			TapDropped: float64(now.dropped-s.before.dropped) / sec,
		}
	}
	if s.pings != nil {
		trips, lost := s.pings.Stop()
		s.pings = nil
		s.last = report.BenchHost{Pings: len(trips) + lost, Lost: lost}
		for _, t := range trips {
			s.last.RoundTrips = append(s.last.RoundTrips, float64(t.Nanoseconds())/1000)
		}
		if n := len(trips); n > 0 {
			us := s.last.RoundTrips
			s.last.MinUs, s.last.P99Us, s.last.MaxUs = us[0], us[min(n-1, n*99/100)], us[n-1]
			for _, v := range us {
				s.last.AverageUs += v / float64(n)
			}
		}
	}
	return nil
}

// tapCounters are the tap's: frames that the emulator took, and that found the queue full.
type tapCounters struct{ taken, dropped uint64 }

func readTap() (c tapCounters, err error) {
	for file, v := range map[string]*uint64{"tx_packets": &c.taken, "tx_dropped": &c.dropped} {
		text, err := os.ReadFile("/sys/class/net/" + benchTap + "/statistics/" + file)
		if err != nil {
			return c, err
		}
		if *v, err = strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64); err != nil {
			return c, err
		}
	}
	return c, nil
}
