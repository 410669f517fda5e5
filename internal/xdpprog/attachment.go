package xdpprog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Names of the pins in an attachment's directory.
const (
	pinLink      = "link"
	pinXSKs      = "xsks"
	pinUnclaimed = "unclaimed"
)

// Config says how the program is attached.
type Config struct {
	// Ifindex is the device's, in the calling thread's network namespace.
	Ifindex int
	// Queues is the largest number of rx queues that the device can have: the size of the maps.
	Queues int
	// MultiBuffer attaches the xdp.frags program. All sockets of the device are bound with multi-buffer then.
	MultiBuffer bool
	// CountUnclaimed counts packets that found no socket, by queue.
	CountUnclaimed bool
	// AllowGeneric attaches in generic mode where the driver has no native XDP.
	AllowGeneric bool
	// PinDir is a directory on a bpffs that is made for this attachment. bpffs allows no dot in names.
	PinDir string
	// Fault, if set, is called before each step of the attachment and of its end; a step for which it returns an error
	// fails with that. Tests let things go wrong there.
	Fault func(step string) error
}

// ErrOccupied is what errors.Is finds when a program is attached already, whosever it is.
var ErrOccupied = errors.New("another XDP program is attached")

// Attachment is the program on one device, with its maps.
type Attachment struct {
	dir       string
	link      link.Link
	xsks      *ebpf.Map
	unclaimed *ebpf.Map
	progID    uint32
	fault     func(step string) error
}

// Attach loads the program, attaches it to the device natively (or, where the driver cannot and c allows it, in generic
// mode) and pins link and maps. A program that is attached already, whosever it is, is left alone: the error is
// [ErrOccupied] then.
func Attach(c Config) (_ *Attachment, err error) {
	if err := CheckBPFFS(filepath.Dir(c.PinDir)); err != nil {
		return nil, err
	}
	step := c.Fault
	if step == nil {
		step = func(string) error { return nil }
	}
	if err := step("make pin directory"); err != nil {
		return nil, err
	}
	if err := os.Mkdir(c.PinDir, 0o700); err != nil {
		return nil, fmt.Errorf("make pin directory: %w", err)
	}
	a := &Attachment{dir: c.PinDir}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.Detach())
			return
		}
		a.fault = c.Fault
	}()
	prog, err := a.load(c)
	if err != nil {
		return nil, fmt.Errorf("load XDP program: %w", err)
	}
	defer prog.Close()
	if err := step("pin XSKMAP"); err != nil {
		return nil, err
	}
	if err := a.xsks.Pin(filepath.Join(c.PinDir, pinXSKs)); err != nil {
		return nil, fmt.Errorf("pin XSKMAP: %w", err)
	}
	if err := step("pin counter map"); err != nil {
		return nil, err
	}
	if err := a.unclaimed.Pin(filepath.Join(c.PinDir, pinUnclaimed)); err != nil {
		return nil, fmt.Errorf("pin counter map: %w", err)
	}
	if err := step("attach XDP program"); err != nil {
		return nil, err
	}
	if a.link, err = attach(prog, c); err != nil {
		return nil, err
	}
	if err := step("pin XDP link"); err != nil {
		return nil, err
	}
	// Pinned last: a directory with a link pin is a whole attachment.
	if err := a.link.Pin(filepath.Join(c.PinDir, pinLink)); err != nil {
		return nil, fmt.Errorf("pin XDP link: %w", err)
	}
	return a, a.readProgramID()
}

// load creates the program and the maps in a.
func (a *Attachment) load(c Config) (*ebpf.Program, error) {
	spec, err := loadRedirect()
	if err != nil {
		return nil, err
	}
	for _, m := range spec.Maps {
		if m.Type == ebpf.XSKMap || m.Type == ebpf.PerCPUArray {
			m.MaxEntries = uint32(c.Queues)
		}
	}
	if c.CountUnclaimed {
		if err := spec.Variables[redirectVarCountUnclaimed].Set(uint8(1)); err != nil {
			return nil, err
		}
	}
	name := redirectProgAfxdpRedirect
	if c.MultiBuffer {
		name = redirectProgAfxdpFrags
	}
	for other := range spec.Programs {
		if other != name {
			delete(spec.Programs, other)
		}
	}
	coll, err := ebpf.NewCollection(spec)
	if err != nil {
		if errors.Is(err, unix.EPERM) {
			return nil, fmt.Errorf("%w (needs CAP_BPF and CAP_NET_ADMIN)", err)
		}
		return nil, err
	}
	defer coll.Close()
	a.xsks, a.unclaimed = coll.DetachMap(redirectMapXsks), coll.DetachMap(redirectMapUnclaimed)
	return coll.DetachProgram(name), nil
}

func attach(prog *ebpf.Program, c Config) (link.Link, error) {
	l, err := link.AttachXDP(link.XDPOptions{Program: prog, Interface: c.Ifindex, Flags: link.XDPDriverMode})
	if errors.Is(err, unix.EOPNOTSUPP) && c.AllowGeneric {
		l, err = link.AttachXDP(link.XDPOptions{Program: prog, Interface: c.Ifindex, Flags: link.XDPGenericMode})
	}
	if err == nil {
		return l, nil
	}
	advice := ""
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		advice = " (the driver has no native XDP; the pool can allow generic mode)"
	case errors.Is(err, unix.EBUSY), errors.Is(err, unix.EEXIST):
		err = fmt.Errorf("%w: %w", ErrOccupied, err)
	case errors.Is(err, unix.ERANGE), errors.Is(err, unix.EINVAL):
		advice = " (the driver refuses native XDP with the device's present settings: often an MTU above what a single" +
			" buffer holds, about 3500 bytes with 4 KiB pages; lower it or let the pool use multi-buffer)"
	}
	return nil, fmt.Errorf("attach XDP program to ifindex %d: %w%s", c.Ifindex, err, advice)
}

// Open takes up an attachment that another process has pinned. The error is fs.ErrNotExist when there is none, or only
// what an interrupted Attach or Detach left; Remove clears that away.
func Open(dir string) (_ *Attachment, err error) {
	a := &Attachment{dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.Close())
		}
	}()
	if a.link, err = link.LoadPinnedLink(filepath.Join(dir, pinLink), nil); err != nil {
		return nil, fmt.Errorf("open pinned XDP link: %w", err)
	}
	if a.xsks, err = ebpf.LoadPinnedMap(filepath.Join(dir, pinXSKs), nil); err != nil {
		return nil, fmt.Errorf("open pinned XSKMAP: %w", err)
	}
	if a.unclaimed, err = ebpf.LoadPinnedMap(filepath.Join(dir, pinUnclaimed), nil); err != nil {
		return nil, fmt.Errorf("open pinned counter map: %w", err)
	}
	return a, a.readProgramID()
}

func (a *Attachment) readProgramID() error {
	info, err := a.link.Info()
	if err != nil {
		return fmt.Errorf("read XDP link: %w", err)
	}
	a.progID = uint32(info.Program)
	return nil
}

// ProgramID is the kernel's id of the program. The program is attached if and only if the device, in our network
// namespace, shows this id: the link's own word proves nothing after the device was moved.
func (a *Attachment) ProgramID() uint32 { return a.progID }

// Queues returns how many queues the maps have room for.
func (a *Attachment) Queues() int { return int(a.xsks.MaxEntries()) }

// Insert has the packets of queue go to the AF_XDP socket xsk, a descriptor that stays the caller's.
func (a *Attachment) Insert(queue, xsk int) error {
	if err := a.xsks.Update(uint32(queue), uint32(xsk), ebpf.UpdateAny); err != nil {
		return fmt.Errorf("put socket of queue %d into the XSKMAP: %w", queue, err)
	}
	return nil
}

// Remove has the packets of queue go to the stack. Where no socket was, it does nothing.
func (a *Attachment) Remove(queue int) error {
	err := a.xsks.Delete(uint32(queue))
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("take socket of queue %d out of the XSKMAP: %w", queue, err)
	}
	return nil
}

// Unclaimed returns how many packets of queue found no socket since the attachment was made. It stays 0 without
// Config.CountUnclaimed.
func (a *Attachment) Unclaimed(queue int) (uint64, error) {
	var perCPU []uint64
	if err := a.unclaimed.Lookup(uint32(queue), &perCPU); err != nil {
		return 0, fmt.Errorf("read unclaimed packets of queue %d: %w", queue, err)
	}
	var sum uint64
	for _, n := range perCPU {
		sum += n
	}
	return sum, nil
}

// Close closes the descriptors. The program stays attached, and pinned.
func (a *Attachment) Close() error {
	var errs []error
	if a.link != nil {
		errs = append(errs, a.link.Close())
	}
	for _, m := range []*ebpf.Map{a.xsks, a.unclaimed} {
		if m != nil {
			errs = append(errs, m.Close())
		}
	}
	return errors.Join(errs...)
}

// Detach takes the program off the device, removes the pins and closes the descriptors. Each is tried even if an
// earlier one failed; [Remove] goes on with what is left.
func (a *Attachment) Detach() error {
	var errs []error
	if a.link != nil {
		errs = append(errs, a.step("detach XDP program"))
		if errs[0] == nil {
			errs = append(errs, detach(a.link))
		}
	}
	errs = append(errs, removePins(a.dir, a.step))
	return errors.Join(append(errs, a.Close())...)
}

func (a *Attachment) step(name string) error {
	if a.fault == nil {
		return nil
	}
	return a.fault(name)
}

// detach takes the program off the device now. Closing the last descriptor does so too, but on some kernels only a
// while after the last pin is gone.
func detach(l link.Link) error {
	if err := l.Detach(); err != nil {
		return fmt.Errorf("detach XDP program: %w", err)
	}
	return nil
}

// Remove takes the program of the pins in dir, if it is attached, off its device, and removes the pins and dir. What is
// not there is no error.
func Remove(dir string) error {
	// On a read-only filesystem even the removal of what is not there fails.
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	l, err := link.LoadPinnedLink(filepath.Join(dir, pinLink), nil)
	if err == nil {
		err = errors.Join(detach(l), l.Close())
	} else if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, removePins(dir, func(string) error { return nil }))
}

// removePins removes the link's pin first: what is left without it counts as no attachment.
func removePins(dir string, step func(name string) error) error {
	var errs []error
	for _, path := range []string{
		filepath.Join(dir, pinLink), filepath.Join(dir, pinXSKs), filepath.Join(dir, pinUnclaimed), dir,
	} {
		err := step("remove " + filepath.Base(path))
		if err == nil {
			err = os.Remove(path)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove pins: %w", err))
		}
	}
	return errors.Join(errs...)
}

// CheckBPFFS returns an error that says what to do unless dir is on a bpffs.
func CheckBPFFS(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("look at the BPF filesystem %s: %w", dir, err)
	}
	if st.Type != unix.BPF_FS_MAGIC {
		return fmt.Errorf("%s is not on a BPF filesystem; mount one: mount -t bpf bpf /sys/fs/bpf", dir)
	}
	return nil
}

// ProgramName returns the name of the program with the given id, or "" where the process may not look (that needs
// CAP_SYS_ADMIN) or it is gone.
func ProgramName(id uint32) string {
	prog, err := ebpf.NewProgramFromID(ebpf.ProgramID(id))
	if err != nil {
		return ""
	}
	defer prog.Close()
	info, err := prog.Info()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(info.Name)
}
