package install

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/renameio/v2"
)

// PluginName is the file name of the CNI plugin: the type that network configurations name it by.
const PluginName = "afxdp-cni"

const pluginMode = 0o755

// Plugin copies the CNI plugin at source to dir. Whoever runs it meanwhile, or is killed here, leaves the old file or the
// new one, whole. A file that has the same content and mode is left alone, and changed is false.
func Plugin(source, dir string) (changed bool, err error) {
	path := filepath.Join(dir, PluginName)
	fail := func(err error) (bool, error) {
		return false, fmt.Errorf("install CNI plugin %s as %s: %w", source, path, err)
	}
	want, err := os.ReadFile(source)
	if err != nil {
		return fail(err)
	}
	if len(want) == 0 {
		return fail(errors.New("the source is empty"))
	}
	if err := removeUnfinished(dir); err != nil {
		return fail(err)
	}
	if same, err := is(path, want); err != nil || same {
		if err != nil {
			return fail(err)
		}
		return false, nil
	}
	if err := write(path, bytes.NewReader(want)); err != nil {
		return fail(err)
	}
	return true, nil
}

// is reports whether path is a regular file of the plugin's mode with the given content.
func is(path string, content []byte) (bool, error) {
	st, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	case st.IsDir():
		return false, errors.New("there is a directory of that name")
	case !st.Mode().IsRegular() || st.Mode().Perm() != pluginMode || st.Size() != int64(len(content)):
		return false, nil
	}
	have, err := os.ReadFile(path)
	return bytes.Equal(have, content), err
}

// write replaces a file. The new one is written beside it, since a file that is being executed cannot be written, and
// since a rename is all or nothing only within a filesystem.
func write(path string, content io.Reader) (err error) {
	f, err := renameio.NewPendingFile(path, renameio.WithTempDir(filepath.Dir(path)), renameio.WithStaticPermissions(pluginMode))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Cleanup()) }()
	if _, err := io.Copy(f, content); err != nil {
		return err
	}
	return f.CloseAtomicallyReplace()
}

// removeUnfinished removes what installations that were killed have left beside the plugin.
func removeUnfinished(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		number, ours := strings.CutPrefix(e.Name(), "."+PluginName)
		if ours && number != "" && strings.Trim(number, "0123456789") == "" {
			if err := remove(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// RemovePlugin removes the CNI plugin from dir. What is not there is no error.
func RemovePlugin(dir string) error {
	err := removeUnfinished(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err = errors.Join(err, remove(filepath.Join(dir, PluginName))); err != nil {
		return fmt.Errorf("remove CNI plugin: %w", err)
	}
	return nil
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
