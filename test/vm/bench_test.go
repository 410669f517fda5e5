//go:build vm

package vm

import (
	"context"
	"encoding/json"
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
	benchFile  = "../../build/bench-busypoll.json"
	// benchWork is how often the application adds up each frame, which takes it two to three times the kernel's time.
	benchWork = 10
	overload  = 3
	// podWeight is that of the control group of a pod that asks for one CPU.
	podWeight = 39
	// benchAccel has the CPU's clock count its instructions, one a nanosecond, so that what else this machine does takes
	// nothing from the guest.
	benchAccel = "tcg,thread=single"
	icount     = "shift=0,sleep=on"
	benchLimit = 20 * time.Minute
)

const interruptsRow = "interrupts on the same core"

func polling(budget int, latency bool) report.BenchCase {
	return report.BenchCase{Name: fmt.Sprintf("busy polling, budget %d", budget), Budget: budget, DeferHardIRQs: 2,
		GROFlushTimeoutUs: 200, Latency: latency}
}

func inPod(c report.BenchCase) report.BenchCase {
	c.Name, c.Weight, c.Latency = c.Name+", in a pod's control group", podWeight, false
	return c
}

var (
	interrupts = report.BenchCase{Name: interruptsRow, Latency: true}
	benchCases = []report.BenchCase{
		interrupts, polling(16, false), polling(64, true), polling(256, false), polling(512, false),
		{Name: "threaded NAPI", Threaded: true, Latency: true},
		inPod(interrupts), inPod(polling(64, false)),
	}
)

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
	b := report.Bench{Cases: benchCases, Runs: benchRuns, Overload: overload, Work: benchWork}
	if s := os.Getenv("AFXDP_BENCH_RUNS"); s != "" {
		if b.Runs, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	runs := bench(t, k, p, b)
	rows := report.Summarize(b, runs, interruptsRow)
	rows = append(rows, report.BenchRow{
		Case: report.BenchCase{Name: "interrupts on another core"},
		NotMeasured: "QEMU counts instructions of one CPU at a time; two that run at once would need two cores of this machine, " +
			"beside those of the NIC's emulation and of the sender",
	})
	for i := range rows {
		rows[i].Kernel, rows[i].Driver, rows[i].Date = k.version, cards[0].Driver, time.Now().UTC().Format(time.DateOnly)
	}
	if err := writeJSON(benchFile, rows); err != nil {
		t.Fatal(err)
	}
	fmt.Print(report.Table(rows))
	for _, r := range rows {
		if r.NotMeasured == "" && len(r.Runs) < b.Runs {
			t.Errorf("%s: %d runs of %d succeeded: %s", r.Case.Name, len(r.Runs), b.Runs, r.Refusal)
		}
	}
}

// writeJSON writes v in place of a file.
func writeJSON(path string, v any) error {
	data, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return fmt.Errorf("encode the result: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", append(data, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// bench boots a machine with one NIC and returns the runs that its guest reports.
func bench(t *testing.T, k kernel, p programs, b report.Bench) []report.BenchRun {
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
	runs, err := m.run(t.Context(), k, image)
	if err != nil {
		t.Fatalf("Linux %s: %v", k.version, err)
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

func (m *benchMachine) command(ctx context.Context, k kernel, image string) *exec.Cmd {
	var fds []string
	for i := range m.files {
		fds = append(fds, fmt.Sprint(3+i))
	}
	args := []string{
		"-M", "q35", "-accel", benchAccel, "-icount", icount, "-cpu", "max", "-smp", "1", "-m", memory,
		"-display", "none", "-no-reboot", "-nodefaults", "-serial", "file:" + m.console, "-serial", "stdio",
		"-kernel", filepath.Join(k.dir, "vmlinuz"), "-initrd", image,
		"-append", "console=ttyS0 loglevel=6 panic=-1 mitigations=off",
	}
	nic := virtio("n0", strings.Join(fds, ":"), m.mac.String())
	nic[len(nic)-1] += ",rx_queue_size=1024" // so that it is seldom the device that has nothing
	args = append(args, nic...)
	cmd := exec.CommandContext(ctx, qemuPath(), args...)
	cmd.ExtraFiles = m.files
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// run boots the machine, sends what its guest asks for, and returns the runs.
func (m *benchMachine) run(ctx context.Context, k kernel, image string) (runs []report.BenchRun, err error) {
	runtime.LockOSThread() // the parent-death signal is tied to the thread that starts QEMU
	defer runtime.UnlockOSThread()
	ctx, cancel := context.WithTimeout(ctx, benchLimit)
	defer cancel()
	cmd := m.command(ctx, k, image)
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
			// The device is in QEMU's first thread; the CPU is in another one.
			if err := unix.Setpriority(unix.PRIO_PROCESS, cmd.Process.Pid, traffic.Nice); err != nil {
				return fmt.Errorf("set priority of QEMU: %w", err)
			}
			return s.flood(*msg.Flood)
		case msg.Ping:
			return s.ping()
		case msg.Quiet:
			return s.quiet()
		case msg.Bench != nil:
			msg.Bench.Host = s.last
			runs = append(runs, *msg.Bench)
			progress(msg.Bench)
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
		return runs, fmt.Errorf("the guest ended without a word (QEMU: %s; %s; console: %s)", fmt.Sprint(waitErr), &stderr, m.console)
	}
	return runs, nil
}

// progress tells of a run.
func progress(r *report.BenchRun) {
	switch {
	case r.Refusal != "":
		fmt.Printf("%s: %s\n", r.Case, r.Refusal)
	case r.Latency:
		fmt.Printf("%s: round trip %.0f µs on average\n", r.Case, r.Host.AverageUs)
	default:
		fmt.Printf("%s: received %.0f of %.0f packets/s, %.0f interrupts/s, %.0f%% user, %.0f%% system, %.0f%% softirq, took %.1f s\n",
			r.Case, float64(r.Received)/r.Seconds, float64(r.Offered)/r.Seconds, float64(r.Interrupts)/r.Seconds,
			100*r.CPU.User, 100*r.CPU.System, 100*r.CPU.SoftIRQ, r.Host.Seconds)
	}
}

// benchSender sends what the guest asks for.
type benchSender struct {
	mac    net.HardwareAddr
	floods *traffic.Flood
	pings  *traffic.Pinger
	before tapCounters
	// capacity is how many frames a second the emulator took at its best in the floods that were to find out.
	capacity   float64
	calibrates bool
	last       report.BenchHost // account of what was sent last
}

func (s *benchSender) flood(f report.Flood) (err error) {
	if f.Scale > 0 && s.floods != nil {
		s.floods.Scale(f.Scale)
		return nil
	}
	if err := s.quiet(); err != nil {
		return err
	}
	if s.before, err = readTap(); err != nil {
		return err
	}
	s.calibrates = f.Capacity
	s.floods, err = traffic.StartFlood(benchTap, s.mac, int(float64(f.Times)*s.capacity))
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
	if s.calibrates {
		s.capacity = max(s.capacity, s.last.Taken)
		s.calibrates = false
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
