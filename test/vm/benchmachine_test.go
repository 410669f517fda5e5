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

	"github.com/afxdp-project/afxdp/test/vm/report"
	"github.com/afxdp-project/afxdp/test/vm/traffic"
)

const (
	benchTap   = "bench0"
	benchQueue = 1 // of the NIC, the one that all frames go to
	benchLimit = 20 * time.Minute
	// qemuNice has QEMU, whose clock stands still while it does not run, go on beside what else this machine does.
	qemuNice = -15
)

// bench boots a machine with one NIC and returns it with what its guest reports.
func bench(t *testing.T, k kernel, p programs, b report.Bench) *benchMachine {
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
	m := &benchMachine{bench: b, files: files, console: filepath.Join(dir, "console")}
	if m.mac, err = net.ParseMAC(cards[0].MAC); err != nil {
		t.Fatal(err)
	}
	if err := m.run(t.Context(), k, image); err != nil {
		t.Fatalf("Linux %s: %v", k.version, err)
	}
	return m
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
	bench   report.Bench
	files   []*os.File
	console string
	mac     net.HardwareAddr

	runs    []report.BenchRun
	speedup float64 // how many times as much as one its CPUs do
}

func (m *benchMachine) command(ctx context.Context, k kernel, image string) *exec.Cmd {
	var fds []string
	for i := range m.files {
		fds = append(fds, fmt.Sprint(3+i))
	}
	args := []string{
		"-M", "q35", "-accel", "tcg,thread=single", "-cpu", "max", "-smp", fmt.Sprint(m.bench.CPUs), "-m", memory,
		"-display", "none", "-no-reboot", "-nodefaults", "-serial", "file:" + m.console, "-serial", "stdio",
		"-kernel", filepath.Join(k.dir, "vmlinuz"), "-initrd", image,
		"-append", "console=ttyS0 loglevel=6 panic=-1 mitigations=off",
	}
	if m.bench.CPUs == 1 {
		// Its clock counts instructions, one a nanosecond, so that what else this machine does takes nothing from it.
		args = append(args, "-icount", "shift=0,sleep=on")
	} else {
		args[3] = "tcg,thread=multi"
	}
	nic := virtio("n0", strings.Join(fds, ":"), m.mac.String())
	nic[len(nic)-1] += ",rx_queue_size=1024" // so that it has something at all times
	args = append(args, nic...)
	cmd := exec.CommandContext(ctx, qemuPath(), args...)
	cmd.ExtraFiles = m.files
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL, Setsid: true}
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// run boots the machine, sends what its guest asks for, and notes what it reports.
func (m *benchMachine) run(ctx context.Context, k kernel, image string) error {
	runtime.LockOSThread() // the parent-death signal is tied to the thread that starts QEMU
	defer runtime.UnlockOSThread()
	ctx, cancel := context.WithTimeout(ctx, benchLimit)
	defer cancel()
	cmd := m.command(ctx, k, image)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := startPreferred(cmd, m.bench.CPUs == 1); err != nil {
		return fmt.Errorf("start QEMU: %w", err)
	}
	s := benchSender{mac: m.mac}
	if _, s.cpus, err = splitCPUs(); err != nil {
		return err
	}
	done := false
	readErr := report.Read(out, func(msg report.Message) error {
		switch {
		case msg.Flood:
			// The device is in QEMU's first thread; the CPU is in another one.
			if err := traffic.Prefer(cmd.Process.Pid); err != nil {
				return fmt.Errorf("set priority of QEMU: %w", err)
			}
			return s.flood()
		case msg.Ping:
			return s.ping()
		case msg.Quiet:
			return s.quiet()
		case msg.Bench != nil:
			msg.Bench.Host = s.last
			msg.Bench.Date = time.Now().UTC().Format(time.RFC3339)
			m.runs = append(m.runs, *msg.Bench)
			m.progress(msg.Bench)
		case msg.Speedup > 0:
			m.speedup = msg.Speedup
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
		return readErr
	case !done:
		return fmt.Errorf("the guest ended without a word (QEMU: %s; %s; console: %s)", fmt.Sprint(waitErr), &stderr, m.console)
	}
	return nil
}

// splitCPUs returns the first CPU that this process may use, for QEMU, and the others, for the sender. The only CPU is
// in both.
func splitCPUs() (first, others unix.CPUSet, err error) {
	if err := unix.SchedGetaffinity(0, &others); err != nil {
		return first, others, err
	}
	for cpu := 0; first.Count() == 0; cpu++ {
		if others.IsSet(cpu) {
			first.Set(cpu)
			if others.Count() > 1 {
				others.Clear(cpu)
			}
		}
	}
	return first, others, nil
}

// startPreferred starts a program whose threads run before usual ones; where it has one CPU only, on the first that this
// process may use. There the guest finds the NIC's ring full whenever it runs, since the thread that emulates the NIC
// comes first.
func startPreferred(cmd *exec.Cmd, oneCPU bool) (err error) {
	var cpus unix.CPUSet
	if err := unix.SchedGetaffinity(0, &cpus); err != nil {
		return err
	}
	first, _, err := splitCPUs()
	if err != nil {
		return err
	}
	before, err := unix.Getpriority(unix.PRIO_PROCESS, 0) // 20 less the nice value
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, unix.SchedSetaffinity(0, &cpus), unix.Setpriority(unix.PRIO_PROCESS, 0, 20-before))
	}()
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, qemuNice); err != nil {
		return err
	}
	if oneCPU {
		if err := unix.SchedSetaffinity(0, &first); err != nil {
			return err
		}
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	// Where the kernel groups threads by session, the group's nice value is what counts.
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/autogroup", cmd.Process.Pid), fmt.Append(nil, qemuNice), 0)
	return nil
}

// progress tells of a run.
func (m *benchMachine) progress(r *report.BenchRun) {
	total := 0
	for _, c := range m.bench.Cases {
		n := c.RunsOf(m.bench.Runs)
		if total += n; c.Latency {
			total += n
		}
	}
	fmt.Printf("%3d of %d: %s: ", len(m.runs), total, r.Case)
	switch {
	case r.Refusal != "":
		fmt.Println(r.Refusal)
	case r.Latency:
		fmt.Printf("round trip %.0f µs on average\n", r.Host.AverageUs)
	default:
		fmt.Printf("%.0f kpps received, %.0f offered, %.0f dropped at the rx ring\n", float64(r.Received)/r.Seconds/1e3,
			float64(r.Offered)/r.Seconds/1e3, float64(r.RingFull)/r.Seconds/1e3)
	}
}

// benchSender sends what the guest asks for.
type benchSender struct {
	mac    net.HardwareAddr
	cpus   unix.CPUSet // for floods
	floods *traffic.Flood
	pings  *traffic.Pinger
	before tapCounters
	last   report.BenchHost // account of what was sent last
}

func (s *benchSender) flood() (err error) {
	if err := s.quiet(); err != nil {
		return err
	}
	if s.before, err = readTap(); err != nil {
		return err
	}
	s.floods, err = traffic.StartFlood(benchTap, s.mac, s.cpus)
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
