package initramfs

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Module is a kernel module, decompressed.
type Module struct {
	Name string // with underscores, as the kernel shows it
	Data []byte
}

// Modules returns the modules named and those that they depend on, in the order in which they must be loaded. They are
// looked for below dir; each says itself what it depends on (depends= in its section .modinfo). Of names, one that is not
// there is taken for built into the kernel; a dependency that is not there is an error.
func Modules(dir string, names ...string) ([]Module, error) {
	paths := make(map[string]string)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if name, _, is := strings.Cut(d.Name(), ".ko"); is {
			paths[underscored(name)] = path
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("find modules: %w", err)
	}
	l := loader{paths: paths}
	for _, name := range names {
		if _, is := paths[underscored(name)]; !is {
			continue
		}
		if err := l.add(name, nil); err != nil {
			return nil, fmt.Errorf("find modules in %s: %w", dir, err)
		}
	}
	return l.modules, nil
}

// underscored is how the kernel writes a module's name.
func underscored(name string) string { return strings.ReplaceAll(name, "-", "_") }

type loader struct {
	paths   map[string]string
	modules []Module
}

// add adds a module after those that it depends on. above are the modules that need it.
func (l *loader) add(name string, above []string) error {
	name = underscored(name)
	if slices.ContainsFunc(l.modules, func(m Module) bool { return m.Name == name }) {
		return nil
	}
	if slices.Contains(above, name) {
		return fmt.Errorf("%s depends on itself: %s", name, strings.Join(above, ", "))
	}
	path, ok := l.paths[name]
	if !ok {
		return fmt.Errorf("no module %s (needed by %s)", name, strings.Join(above, ", "))
	}
	data, err := read(path)
	if err != nil {
		return err
	}
	depends, err := dependencies(data)
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	for _, d := range depends {
		if err := l.add(d, append(slices.Clone(above), name)); err != nil {
			return err
		}
	}
	l.modules = append(l.modules, Module{name, data})
	return nil
}

// read reads a module, which may be compressed.
func read(path string) ([]byte, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	tool := map[string]string{".xz": "xz", ".zst": "zstd", ".gz": "gzip"}[filepath.Ext(path)]
	if tool == "" {
		return data, nil
	}
	cmd := exec.Command(tool, "-dc")
	cmd.Stdin = bytes.NewReader(data)
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
	}
	if err != nil {
		return nil, fmt.Errorf("decompress %s with %s: %w", path, tool, err)
	}
	return out, nil
}

// dependencies returns the names of the modules that a module depends on.
func dependencies(module []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(module))
	if err != nil {
		return nil, err
	}
	section := f.Section(".modinfo")
	if section == nil {
		return nil, errors.New("it has no section .modinfo")
	}
	info, err := section.Data()
	if err != nil {
		return nil, err
	}
	for field := range bytes.SplitSeq(info, []byte{0}) {
		if list, is := strings.CutPrefix(string(field), "depends="); is {
			return strings.FieldsFunc(list, func(r rune) bool { return r == ',' }), nil
		}
	}
	return nil, nil
}
