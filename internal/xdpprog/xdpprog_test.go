package xdpprog

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/testutil"
	"github.com/afxdp-project/afxdp/pkg/netdev"
)

func TestMain(m *testing.M) { os.Exit(testutil.Main(m)) }

const pinDir = "/sys/fs/bpf/xptest"

func veth(t *testing.T, mtu int) Config {
	t.Helper()
	testutil.Veth(t, testutil.VethPair{Near: "xpnear", Far: "xpfar", Queues: 4, MTU: mtu})
	ifi, err := net.InterfaceByName("xpnear")
	if err != nil {
		t.Fatal(err)
	}
	return Config{Ifindex: ifi.Index, Queues: 4, PinDir: pinDir}
}

func attached(t *testing.T, c Config) *Attachment {
	t.Helper()
	a, err := Attach(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Detach(); err != nil {
			t.Error(err)
		}
	})
	return a
}

func TestAttachmentOutlivesTheProcess(t *testing.T) {
	c := veth(t, 0)
	a, err := Attach(c)
	if err != nil {
		t.Fatal(err)
	}
	id := a.ProgramID()
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	b, err := Open(pinDir)
	if err != nil {
		t.Fatal(err)
	}
	if b.ProgramID() != id || b.Queues() != 4 {
		t.Errorf("after a restart: program %d, %d queues; want %d, 4", b.ProgramID(), b.Queues(), id)
	}
	if err := b.Detach(); err != nil {
		t.Error(err)
	}
	if _, err := Open(pinDir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("open after detach: %v, want not exist", err)
	}
	if _, err := os.Stat(pinDir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("pin directory after detach: %v", err)
	}
}

// Field case 8: another program's XDP is not thrown off the NIC.
func TestForeignProgramStays(t *testing.T) {
	c := veth(t, 0)
	foreign, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "foreign", Type: ebpf.XDP, License: "MIT",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer foreign.Close()
	l, err := link.AttachXDP(link.XDPOptions{Program: foreign, Interface: c.Ifindex, Flags: link.XDPDriverMode})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := Attach(c); !errors.Is(err, ErrOccupied) || !errors.Is(err, unix.EBUSY) {
		t.Errorf("attach over a foreign program: %v, want ErrOccupied and EBUSY", err)
	}
	if _, err := os.Stat(pinDir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a refused attach left its pin directory: %v", err)
	}
	info, err := foreign.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	if name := ProgramName(uint32(id)); name != "foreign" {
		t.Errorf("name of program %d: %q", id, name)
	}
}

// Field case 13: an MTU too big for native XDP is explained, and multi-buffer is the way out.
func TestJumboMTU(t *testing.T) {
	c := veth(t, 9000)
	_, err := Attach(c)
	if err == nil || !errors.Is(err, unix.ERANGE) && !errors.Is(err, unix.EINVAL) {
		t.Fatalf("attach at MTU 9000: %v, want a refusal", err)
	}
	c.MultiBuffer = true
	attached(t, c)
}

func TestInterruptedAttachIsClearedAway(t *testing.T) {
	c := veth(t, 0)
	if err := os.Mkdir(pinDir, 0o700); err != nil {
		t.Fatal(err)
	}
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := m.Pin(pinDir + "/xsks"); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(pinDir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("open of what an interrupted attach left: %v, want not exist", err)
	}
	if err := Remove(pinDir); err != nil {
		t.Fatal(err)
	}
	attached(t, c)
}

// A pin directory that is in the way must not be taken for a program that is.
func TestLeftoverPinsAreNoForeignProgram(t *testing.T) {
	c := veth(t, 0)
	if err := os.Mkdir(pinDir, 0o700); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = Remove(pinDir) }()
	if _, err := Attach(c); !errors.Is(err, fs.ErrExist) || errors.Is(err, ErrOccupied) {
		t.Errorf("attach over leftover pins: %v, want exist and not ErrOccupied", err)
	}
}

func TestDetachDoesNotWaitForOtherDescriptors(t *testing.T) {
	c := veth(t, 0)
	a, err := Attach(c)
	if err != nil {
		t.Fatal(err)
	}
	other, err := Open(pinDir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	if err := a.Detach(); err != nil {
		t.Fatal(err)
	}
	if id := shown(t, c); id != 0 {
		t.Errorf("after detach, with another descriptor of the link open, the device shows program %d", id)
	}
}

func TestRemoveTakesTheProgramOff(t *testing.T) {
	c := veth(t, 0)
	a, err := Attach(c)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = a.Close() }()
	if err := os.Remove(pinDir + "/xsks"); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(pinDir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("open without the XSKMAP: %v, want not exist", err)
	}
	for range 2 {
		if err := Remove(pinDir); err != nil {
			t.Fatal(err)
		}
	}
	if id := shown(t, c); id != 0 {
		t.Errorf("after remove, the device shows program %d", id)
	}
}

// Field case 37: an attach that fails half-way leaves nothing, at whatever step.
func TestFailedAttachLeavesNothing(t *testing.T) {
	c := veth(t, 0)
	broken := errors.New("broken")
	for n := 0; ; n++ {
		left := n
		var at string
		c.Fault = func(step string) error {
			if left--; left == -1 {
				at = step
				return broken
			}
			return nil
		}
		a, err := Attach(c)
		if err == nil {
			if n < 5 {
				t.Errorf("only %d steps could fail", n)
			}
			left = 1000
			if err := a.Detach(); err != nil {
				t.Error(err)
			}
			return
		}
		if !errors.Is(err, broken) {
			t.Fatalf("step %q: %v", at, err)
		}
		if id := shown(t, c); id != 0 {
			t.Errorf("after a failure at %q the device shows program %d", at, id)
		}
		if _, err := os.Stat(pinDir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("after a failure at %q there is still a pin directory: %v", at, err)
		}
	}
}

// shown returns the id of the XDP program that the device shows, 0 for none.
func shown(t *testing.T, c Config) uint32 {
	t.Helper()
	h, err := netdev.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = h.Close() }()
	l, err := h.LinkByIndex(c.Ifindex)
	if err != nil {
		t.Fatal(err)
	}
	return l.XDP.ProgID
}

func TestPinDirectoryMustBeOnBPFFS(t *testing.T) {
	c := veth(t, 0)
	c.PinDir = t.TempDir() + "/pins"
	if _, err := Attach(c); err == nil {
		t.Error("attached with pins outside of a bpffs")
	}
}
