package netdev

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// DeviceSettings are the NAPI settings of a whole NIC, which every one of its queues follows. In
// [Handle.SetDeviceSettings] a nil pointer leaves the value as it is.
type DeviceSettings struct {
	DeferHardIRQs   *uint32        // sysfs napi_defer_hard_irqs: empty polls; at most 2^31-1
	GROFlushTimeout *time.Duration // sysfs gro_flush_timeout: nanoseconds in the file
}

const (
	fileDeferHardIRQs   = "napi_defer_hard_irqs"
	fileGROFlushTimeout = "gro_flush_timeout"
)

// DeviceSettings reads the NAPI settings of a NIC from sysfs; both are set in the result. [ErrOtherNetns] when the
// sysfs that is mounted shows another network namespace.
func (h *Handle) DeviceSettings(index int) (DeviceSettings, error) {
	dir, err := h.deviceDir(index)
	if err != nil {
		return DeviceSettings{}, fmt.Errorf("read device settings: %w", err)
	}
	defer func() { _ = dir.Close() }()
	deferral, err := readNumber(dir, fileDeferHardIRQs)
	if err != nil {
		return DeviceSettings{}, h.orGone(index, err)
	}
	timeout, err := readNumber(dir, fileGROFlushTimeout)
	if err != nil {
		return DeviceSettings{}, h.orGone(index, err)
	}
	return DeviceSettings{
		DeferHardIRQs:   new(uint32(min(deferral, math.MaxUint32))),
		GROFlushTimeout: new(time.Duration(min(timeout, math.MaxInt64))),
	}, nil
}

// SetDeviceSettings changes the NAPI settings of a NIC in sysfs and reads each back. When one cannot be set, those set
// before it are put back, and the error names file, value and cause. Needs CAP_NET_ADMIN and a writable sysfs.
// [ErrOtherNetns] when the sysfs that is mounted shows another network namespace.
func (h *Handle) SetDeviceSettings(index int, s DeviceSettings) error {
	type change struct {
		file      string
		want, old uint64
	}
	var changes []change
	if s.DeferHardIRQs != nil {
		changes = append(changes, change{file: fileDeferHardIRQs, want: uint64(*s.DeferHardIRQs)})
	}
	if s.GROFlushTimeout != nil {
		if *s.GROFlushTimeout < 0 {
			return fmt.Errorf("set %s of link %d to %v: it cannot be negative",
				fileGROFlushTimeout, index, *s.GROFlushTimeout)
		}
		changes = append(changes, change{file: fileGROFlushTimeout, want: uint64(*s.GROFlushTimeout)})
	}
	dir, err := h.deviceDir(index)
	if err != nil {
		return fmt.Errorf("set device settings: %w", err)
	}
	defer func() { _ = dir.Close() }()
	for i := range changes {
		c := &changes[i]
		if c.old, err = readNumber(dir, c.file); err == nil {
			err = writeNumber(dir, c.file, c.want)
		}
		if err == nil {
			continue
		}
		errs := []error{err}
		for _, done := range changes[:i] {
			if err := writeNumber(dir, done.file, done.old); err != nil {
				errs = append(errs, fmt.Errorf("put back: %w", err))
			}
		}
		return h.orGone(index, errors.Join(errs...))
	}
	return nil
}

// orGone makes [ErrNoDevice] of whatever sysfs says when the NIC goes away while its directory is open.
func (h *Handle) orGone(index int, err error) error {
	if _, linkErr := h.rawLinkByIndex(index); errors.Is(linkErr, ErrNoDevice) {
		return fmt.Errorf("%w: %w", ErrNoDevice, err)
	}
	return err
}

// deviceDir opens a NIC's directory in sysfs, which a rename does not move away. The caller closes it. What /sys shows
// is the network namespace in which it was mounted: the directory is trusted only if it tells the index and address
// that netlink does.
func (h *Handle) deviceDir(index int) (*os.Root, error) {
	const attempts = 3 // the NIC may be renamed between our two looks at it
	var err error
	for range attempts {
		l, linkErr := h.rawLinkByIndex(index)
		if linkErr != nil {
			return nil, linkErr
		}
		var dir *os.Root
		if dir, err = h.openDeviceDir(&l.Link); err == nil {
			return dir, nil
		}
	}
	return nil, err
}

func (h *Handle) openDeviceDir(l *Link) (*os.Root, error) {
	path := filepath.Join(h.sysfs, "class/net", l.Name)
	dir, err := os.OpenRoot(path)
	if errors.Is(err, os.ErrNotExist) {
		if _, err := os.Stat(filepath.Join(h.sysfs, "class/net")); err != nil {
			return nil, fmt.Errorf("open the directory of %s: no sysfs is mounted at %s: %w", l.Name, h.sysfs, err)
		}
		return nil, fmt.Errorf("open %s: %w: link %d is %s here and the sysfs at %s has no such device; "+
			"mount a sysfs of this network namespace there", path, ErrOtherNetns, l.Index, l.Name, h.sysfs)
	}
	if err != nil {
		return nil, fmt.Errorf("open the sysfs directory of %s: %w", l.Name, err)
	}
	for _, f := range []struct{ file, want string }{
		{"ifindex", strconv.Itoa(l.Index)},
		{"address", l.MAC.String()},
	} {
		found, err := dir.ReadFile(f.file)
		if err == nil && string(bytes.TrimSpace(found)) != f.want {
			err = fmt.Errorf("%w: it says %q, and netlink %q; mount a sysfs of this network namespace at %s",
				ErrOtherNetns, bytes.TrimSpace(found), f.want, h.sysfs)
		}
		if err != nil {
			_ = dir.Close()
			return nil, fmt.Errorf("compare %s with link %d: %w", filepath.Join(path, f.file), l.Index, err)
		}
	}
	return dir, nil
}

func readNumber(dir *os.Root, file string) (uint64, error) {
	b, err := dir.ReadFile(file)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", filepath.Join(dir.Name(), file), err)
	}
	n, err := strconv.ParseUint(string(bytes.TrimSpace(b)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", filepath.Join(dir.Name(), file), err)
	}
	return n, nil
}

// writeNumber writes a setting and makes sure that it is in force.
func writeNumber(dir *os.Root, file string, want uint64) error {
	path := filepath.Join(dir.Name(), file)
	f, err := dir.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("set %s to %d: %w", path, want, err)
	}
	// A write that is cut short is an error of os.File.
	_, err = f.WriteString(strconv.FormatUint(want, 10))
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return fmt.Errorf("set %s to %d: %w", path, want, err)
	}
	found, err := readNumber(dir, file)
	if err != nil {
		return fmt.Errorf("set %s to %d: read back: %w", path, want, err)
	}
	if found != want {
		return fmt.Errorf("set %s to %d: it reads back %d; the value is not in force", path, want, found)
	}
	return nil
}
