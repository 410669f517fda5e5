package conflist

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/afxdp-project/afxdp/internal/cni"
)

// Remove takes the plugin out of every configuration list in a directory, whatever program has formatted it since.
// Files of any name are looked at: a main network renames what it replaces, and may rename it back. It succeeds where
// nothing is left to do. The error names each file that still calls the plugin, for which its binary has to stay, and
// why.
func Remove(dir string) error {
	if err := sweep(dir); err != nil {
		return fmt.Errorf("remove unfinished CNI configurations: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("take %s out of the CNI configuration: %w", cni.Type, err)
	}
	var errs []error
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if err := removeFrom(path); err != nil {
			errs = append(errs, fmt.Errorf("take %s out of %s: %w", cni.Type, path, err))
		}
	}
	return errors.Join(errs...)
}

func removeFrom(path string) error {
	for {
		f, err := readFile(path)
		switch {
		case errors.Is(err, errLink):
			if text, readErr := os.ReadFile(path); readErr == nil && named(text) {
				return err
			}
			return nil
		case errors.Is(err, fs.ErrNotExist) || errors.Is(err, errKind):
			return nil
		case err != nil:
			return err
		}
		if err := f.remove(); !errors.Is(err, errChanged) {
			return err
		}
	}
}

// remove takes the plugin out of the file, if it is there.
func (f *file) remove() error {
	if !named(f.text) {
		return nil
	}
	l, err := parseList(f.text)
	if err != nil {
		if !slices.Contains(suffixes(), filepath.Ext(f.path)) {
			return nil
		}
		return fmt.Errorf("it names the plugin, but not in a configuration list: %w", err)
	}
	if l.find() < 0 {
		return nil
	}
	for i := l.find(); i >= 0; i = l.find() {
		if l, err = l.remove(i); err != nil {
			return err
		}
	}
	return f.replace(l.text)
}

// named reports whether a text may name the plugin.
func named(text []byte) bool { return bytes.Contains(text, []byte(`"`+cni.Type+`"`)) }
