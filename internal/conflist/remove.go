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
func Remove(dir string) error { return remove(dir, false) }

// RemoveOwn takes the plugin out of the configuration lists in a directory that have it just as a Keeper writes it. An entry
// with anything else in it, or at another place, is somebody else's, and stays.
func RemoveOwn(dir string) error { return remove(dir, true) }

func remove(dir string, own bool) error {
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
		if err := removeFrom(path, own); err != nil {
			errs = append(errs, fmt.Errorf("take %s out of %s: %w", cni.Type, path, err))
		}
	}
	return errors.Join(errs...)
}

func removeFrom(path string, own bool) error {
	for {
		f, err := readFile(path)
		switch {
		case errors.Is(err, errLink):
			if text, readErr := os.ReadFile(path); readErr == nil && named(text) && !own {
				return err
			}
			return nil
		case errors.Is(err, fs.ErrNotExist) || errors.Is(err, errKind):
			return nil
		case err != nil:
			return err
		}
		if err := f.remove(own); !errors.Is(err, errChanged) {
			return err
		}
	}
}

// remove takes the plugin out of the file, if it is there, or if own is set, only an entry of a Keeper's.
func (f *file) remove(own bool) error {
	if !named(f.text) {
		return nil
	}
	l, err := parseList(f.text)
	if err != nil {
		if own || !slices.Contains(suffixes(), filepath.Ext(f.path)) {
			return nil
		}
		return fmt.Errorf("it names the plugin, but not in a configuration list: %w", err)
	}
	if l.find() < 0 || own && !l.ours() {
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
