// Package initramfs makes what a kernel boots from: a cpio archive with a program, files, device nodes and the modules
// that a driver needs, in the order in which they must be loaded.
package initramfs

import (
	"fmt"
	"io"
	"path"
	"strings"
)

// Writer writes a cpio archive in the format that the kernel reads (newc; Documentation/driver-api/early-userspace/
// buffer-format.rst). The first error stays; Close returns it.
type Writer struct {
	w     io.Writer
	inode int
	dirs  map[string]bool
	err   error
}

// NewWriter starts an archive.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w, dirs: make(map[string]bool)} }

const (
	modeDir    = 0o040000
	modeFile   = 0o100000
	modeDevice = 0o020000 // a character device
)

// Dir adds a directory and those above it. One that is there already is left as it is.
func (w *Writer) Dir(name string) {
	name = strings.Trim(path.Clean(name), "/")
	if name == "." || name == "" || w.dirs[name] {
		return
	}
	w.Dir(path.Dir(name))
	w.dirs[name] = true
	w.entry(name, modeDir|0o755, 0, 0, nil)
}

// File adds a file with the permissions perm, and the directories above it.
func (w *Writer) File(name string, perm uint32, data []byte) {
	name = strings.Trim(path.Clean(name), "/")
	w.Dir(path.Dir(name))
	w.entry(name, modeFile|perm, 0, 0, data)
}

// CharDevice adds a character device, which only root can open, and the directories above it.
func (w *Writer) CharDevice(name string, major, minor uint32) {
	name = strings.Trim(path.Clean(name), "/")
	w.Dir(path.Dir(name))
	w.entry(name, modeDevice|0o600, major, minor, nil)
}

// Close ends the archive.
func (w *Writer) Close() error {
	w.entry("TRAILER!!!", 0, 0, 0, nil)
	if w.err != nil {
		return fmt.Errorf("write initramfs: %w", w.err)
	}
	return nil
}

func (w *Writer) entry(name string, mode, major, minor uint32, data []byte) {
	w.inode++
	links := 1
	if mode&modeDir == modeDir && mode&modeFile != modeFile {
		links = 2
	}
	// magic, inode, mode, uid, gid, links, mtime, size, device of the file (2), device that it is (2), name, checksum
	w.print("070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%s\x00",
		w.inode, mode, 0, 0, links, 0, len(data), 0, 0, major, minor, len(name)+1, 0, name)
	const header = 110
	w.pad(header + len(name) + 1)
	if w.err == nil {
		_, w.err = w.w.Write(data)
	}
	w.pad(len(data))
}

func (w *Writer) print(format string, args ...any) {
	if w.err == nil {
		_, w.err = fmt.Fprintf(w.w, format, args...)
	}
}

// pad fills what is n bytes long up to a multiple of 4.
func (w *Writer) pad(n int) { w.print("%s", "\x00\x00\x00"[:-n&3]) }
