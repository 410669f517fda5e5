package conflist

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	maxSize = 1 << 20 // bytes of a configuration; real ones have a few thousand

	// Neither libcni nor a main network takes it for a configuration, whose names end in .conf, .conflist or .json.
	tempPrefix, tempSuffix = ".afxdp-cni-", ".tmp"
)

// errChanged is a file that was changed by another program since it was read.
var errChanged = errors.New("it was changed meanwhile")

// errLink is a symbolic link. What it points to may be outside the directory, where the agent has no access, and
// replacing the link by a file would cut it off from its owner.
var errLink = errors.New("it is a symbolic link")

// errKind is what no configuration is.
var errKind = fmt.Errorf("it is not a regular file of at most %d bytes", maxSize)

// file is a configuration as it was read.
type file struct {
	path string
	text []byte
	stat *syscall.Stat_t
}

func suffixes() []string { return []string{".conf", ".conflist", ".json"} }

// configurations returns the names that libcni takes for configurations, in its order: containerd and CRI-O use the
// first.
func configurations(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if !e.IsDir() && slices.Contains(suffixes(), filepath.Ext(e.Name())) {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names, nil
}

func readFile(path string) (*file, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ELOOP) {
		return nil, errLink
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errKind
	}
	text, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxSize {
		return nil, errKind
	}
	return &file{path, text, info.Sys().(*syscall.Stat_t)}, nil
}

// replace gives the file another text, by renaming, with its mode and owner.
//
// The temporary file must be in the same directory: containerd loads its configuration again when it sees a rename from
// a name in there, and ignores one to it.
func (f *file) replace(text []byte) (err error) {
	dir := filepath.Dir(f.path)
	temp, err := os.CreateTemp(dir, tempPrefix+"*"+tempSuffix)
	if err != nil {
		return err
	}
	defer func() {
		_ = temp.Close()
		if err != nil {
			_ = os.Remove(temp.Name())
		}
	}()
	if _, err := temp.Write(text); err != nil {
		return err
	}
	if err := f.own(temp); err != nil {
		return err
	}
	if err := temp.Sync(); err != nil {
		return err
	}
	// A writer that comes between this look and the rename loses, to a text that differs from the one that it replaced by
	// our entry only. No system call closes that gap.
	now, err := readFile(f.path)
	if err != nil {
		return err
	}
	if !bytes.Equal(now.text, f.text) {
		return errChanged
	}
	if err := os.Rename(temp.Name(), f.path); err != nil {
		return err
	}
	return syncDir(dir)
}

// own gives temp the mode and the owner of the file that it is to replace.
func (f *file) own(temp *os.File) error {
	if int(f.stat.Uid) != os.Geteuid() || int(f.stat.Gid) != os.Getegid() {
		if err := temp.Chown(int(f.stat.Uid), int(f.stat.Gid)); err != nil {
			return fmt.Errorf("keep its owner, uid %d and gid %d: %w", f.stat.Uid, f.stat.Gid, err)
		}
	}
	return unix.Fchmod(int(temp.Fd()), f.stat.Mode&0o7777)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// sweep removes what a write that was cut short has left.
func sweep(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var errs []error
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), tempPrefix) && strings.HasSuffix(e.Name(), tempSuffix) {
			errs = append(errs, os.Remove(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}
