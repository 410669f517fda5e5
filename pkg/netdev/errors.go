package netdev

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

var (
	// ErrNoDevice: the handle's network namespace has no such NIC (any more).
	ErrNoDevice = errors.New("no such network device")
	// ErrNoNAPI: no NAPI has this id (any more). Ids change when a link goes down and up or its queues are set up
	// anew: ask [Handle.Queues] for the present ones. A NAPI of a NIC that is down is not found either.
	ErrNoNAPI = errors.New("no such NAPI")
	// ErrUnsupported: the kernel or the NIC's driver does not have this feature.
	ErrUnsupported = errors.New("not supported by the kernel or the driver")
	// ErrOtherNetns: sysfs, or the calling thread, belongs to another network namespace than the handle.
	ErrOtherNetns = errors.New("another network namespace")
)

// classify adds the typed error that an errno from the kernel stands for, and keeps the errno and its text.
func classify(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENODEV):
		return fmt.Errorf("%w: %w", ErrNoDevice, err)
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	return err
}

// checkIndex refuses what is no interface index before the kernel takes it for something else.
func checkIndex(index int) error {
	if index <= 0 || index > 1<<31-1 {
		return fmt.Errorf("%w: %d is not an interface index", ErrNoDevice, index)
	}
	return nil
}
