package netdev

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/testutil"
)

func deferral(n uint32) DeviceSettings { return DeviceSettings{DeferHardIRQs: &n} }

const nearDir = "/sys/class/net/nvnear"

func TestDeviceSettingsAreSetReadBackAndPutBack(t *testing.T) {
	h := open(t)
	l := veth(t, h, 1)
	original, err := h.DeviceSettings(l.Index)
	must(t, err)
	both := DeviceSettings{DeferHardIRQs: new(uint32(2)), GROFlushTimeout: new(200 * time.Microsecond)}
	must(t, h.SetDeviceSettings(l.Index, both))
	expectFile(t, "napi_defer_hard_irqs", "2")
	expectFile(t, "gro_flush_timeout", "200000")
	must(t, h.SetDeviceSettings(l.Index, deferral(7)))
	expectFile(t, "gro_flush_timeout", "200000") // what is nil stays
	got, err := h.DeviceSettings(l.Index)
	if err != nil || *got.DeferHardIRQs != 7 || *got.GROFlushTimeout != 200*time.Microsecond {
		t.Errorf("read: %d %v, %v; want 7 200µs", *got.DeferHardIRQs, *got.GROFlushTimeout, err)
	}
	must(t, h.SetDeviceSettings(l.Index, original))
	expectFile(t, "napi_defer_hard_irqs", "0")
	expectFile(t, "gro_flush_timeout", "0")
}

func expectFile(t *testing.T, file, want string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(nearDir, file))
	if found := strings.TrimSpace(string(b)); err != nil || found != want {
		t.Errorf("%s holds %q, %v; want %q", file, found, err, want)
	}
}

// Field case 23: a write that the kernel refuses is an error that names file, value and cause.
func TestRefusedDeviceSettingIsReported(t *testing.T) {
	h := open(t)
	l := veth(t, h, 1)
	err := h.SetDeviceSettings(l.Index, deferral(1<<31))
	if !errors.Is(err, unix.ERANGE) || !strings.Contains(err.Error(), nearDir+"/napi_defer_hard_irqs to 2147483648") {
		t.Errorf("a deferral beyond 31 bits: %v", err)
	}
	expectFile(t, "napi_defer_hard_irqs", "0")
	if err := h.SetDeviceSettings(l.Index, DeviceSettings{GROFlushTimeout: new(time.Duration(-1))}); err == nil {
		t.Error("a negative timeout was accepted")
	}
}

// Field case 23: a write that has no effect is noticed, and what was set before it is put back.
func TestDeviceSettingThatDoesNotTakeIsReportedAndUndone(t *testing.T) {
	h := open(t)
	l := veth(t, h, 1)
	must(t, h.SetDeviceSettings(l.Index, deferral(4)))
	both := DeviceSettings{DeferHardIRQs: new(uint32(2)), GROFlushTimeout: new(200 * time.Nanosecond)}
	// A file that keeps what follows the bytes written, in place of the kernel's.
	fake := filepath.Join(t.TempDir(), "timeout")
	must(t, os.WriteFile(fake, []byte("123456789"), 0o600))
	file := filepath.Join(nearDir, "gro_flush_timeout")
	must(t, unix.Mount(fake, file, "", unix.MS_BIND, ""))
	defer func() { must(t, unix.Unmount(file, 0)) }()
	err := h.SetDeviceSettings(l.Index, both)
	if err == nil || !strings.Contains(err.Error(), file+" to 200: it reads back 200456789") {
		t.Errorf("a write without effect: %v, want an error with file, value and what was found", err)
	}
	expectFile(t, "napi_defer_hard_irqs", "4")

	must(t, unix.Mount("", file, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	err = h.SetDeviceSettings(l.Index, both)
	if !errors.Is(err, unix.EROFS) {
		t.Errorf("a read-only file: %v, want EROFS", err)
	}
	expectFile(t, "napi_defer_hard_irqs", "4")
}

func TestDeviceSettingsFollowARename(t *testing.T) {
	h := open(t)
	l := veth(t, h, 1)
	must(t, testutil.Rename("nvnear", "nvrenamed"))
	defer func() { must(t, testutil.Rename("nvrenamed", "nvnear")) }()
	must(t, h.SetDeviceSettings(l.Index, deferral(3)))
	if got, err := h.DeviceSettings(l.Index); err != nil || *got.DeferHardIRQs != 3 {
		t.Errorf("settings of the renamed device: %+v, %v", got, err)
	}
}

func TestSysfsOfAnotherNetnsIsNotTrusted(t *testing.T) {
	h := open(t)
	l := veth(t, h, 1)
	inNetns(t, func(other *Handle) {
		expect := func(what string, index int) {
			t.Helper()
			_, err := other.DeviceSettings(index)
			if !errors.Is(err, ErrOtherNetns) || !strings.Contains(err.Error(), "/sys") {
				t.Errorf("read settings, %s: %v, want ErrOtherNetns", what, err)
			}
			err = other.SetDeviceSettings(index, deferral(9))
			if !errors.Is(err, ErrOtherNetns) {
				t.Errorf("set settings, %s: %v, want ErrOtherNetns", what, err)
			}
		}
		add := func(name string, index int) {
			ip(t, "link", "add", name, "index", strconv.Itoa(index), "type", "veth", "peer", "name", "nvfar2")
		}
		add("nvelsewhere", 501)
		expect("no such name in sysfs", 501)
		ip(t, "link", "del", "nvelsewhere")
		add("nvnear", 502)
		expect("the same name, another index", 502)
		ip(t, "link", "del", "nvnear")
		add("nvnear", l.Index)
		expect("the same name and index, another device", l.Index)
		if rx, _, err := other.QueueCount(l.Index); err != nil || rx == 0 {
			t.Errorf("queue count without a sysfs: %d, %v", rx, err)
		}
	})
	expectFile(t, "napi_defer_hard_irqs", "0")
}

func TestSysfsThatIsNotMountedIsNamed(t *testing.T) {
	h := open(t)
	l := veth(t, h, 1)
	empty := t.TempDir()
	elsewhere, err := Config{SysfsRoot: empty}.Open()
	must(t, err)
	defer func() { _ = elsewhere.Close() }()
	_, err = elsewhere.DeviceSettings(l.Index)
	if err == nil || errors.Is(err, ErrOtherNetns) || !strings.Contains(err.Error(), empty) {
		t.Errorf("no sysfs: %v, want an error that names %s", err, empty)
	}
}

func TestDeviceThatGoesWhileItsDirectoryIsOpenIsNoDevice(t *testing.T) {
	h := open(t)
	l := veth(t, h, 1)
	dir, err := h.deviceDir(l.Index)
	must(t, err)
	defer func() { _ = dir.Close() }()
	if err := h.orGone(l.Index, os.ErrInvalid); errors.Is(err, ErrNoDevice) {
		t.Errorf("an error of a device that is there: %v", err)
	}
	must(t, testutil.DelLink("nvnear"))
	err = writeNumber(dir, fileDeferHardIRQs, 1)
	if err == nil {
		t.Fatal("a setting of a removed device was written")
	}
	if err := h.orGone(l.Index, err); !errors.Is(err, ErrNoDevice) {
		t.Errorf("a device that is gone: %v, want ErrNoDevice", err)
	}
}
