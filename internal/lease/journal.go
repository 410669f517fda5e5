package lease

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/gofrs/flock"
	"github.com/google/renameio/v2"
)

// journal is a directory of JSON documents with one writer. The documents describe kernel state and must die with it,
// so they carry the boot they belong to.
type journal struct {
	dir    string
	bootID string
	lock   *flock.Flock
}

type envelope struct {
	Version int             `json:"version"`
	BootID  string          `json:"bootID"`
	Body    json.RawMessage `json:"body"`
}

const journalVersion = 1

// errVersion: the journal cannot be read by this agent, which therefore must not work on what it describes.
var errVersion = errors.New("written by another version of the agent")

func openJournal(dir string) (*journal, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("read boot id: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make state directory: %w", err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return nil, fmt.Errorf("close state directory to others: %w", err)
	}
	lock := flock.New(filepath.Join(dir, "lock"), flock.SetPermissions(0o600))
	ok, err := lock.TryLock()
	if err != nil {
		return nil, fmt.Errorf("lock state directory %s: %w", dir, err)
	}
	if !ok {
		return nil, fmt.Errorf("state directory %s belongs to another running agent", dir)
	}
	j := &journal{dir, strings.TrimSpace(string(boot)), lock}
	if err := j.removeUnfinished(); err != nil {
		return nil, errors.Join(err, j.close())
	}
	return j, nil
}

// removeUnfinished removes the files of writes that a crash has cut short.
func (j *journal) removeUnfinished() error {
	entries, err := os.ReadDir(j.dir)
	if err != nil {
		return fmt.Errorf("read state directory: %w", err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			if err := os.Remove(filepath.Join(j.dir, e.Name())); err != nil {
				return fmt.Errorf("remove an unfinished document: %w", err)
			}
		}
	}
	return nil
}

func (j *journal) close() error { return j.lock.Close() }

func (j *journal) path(kind, key string) string {
	return filepath.Join(j.dir, kind+"-"+key+".json")
}

// write replaces a document: a reader, also after a crash, sees the old or the new one.
func (j *journal) write(kind, key string, body any) error {
	raw, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("encode %s %s: %w", kind, key, err)
	}
	data, err := json.MarshalIndent(envelope{journalVersion, j.bootID, raw}, "", " ")
	if err != nil {
		return fmt.Errorf("encode %s %s: %w", kind, key, err)
	}
	if err := renameio.WriteFile(j.path(kind, key), append(data, '\n'), 0o600, renameio.WithTempDir(j.dir)); err != nil {
		return fmt.Errorf("write %s %s to the journal: %w", kind, key, err)
	}
	return nil
}

func (j *journal) remove(kind, key string) error {
	if err := os.Remove(j.path(kind, key)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s %s from the journal: %w", kind, key, err)
	}
	return nil
}

// readAll calls f with the key and the body of each document of a kind. Documents of an earlier boot are removed: what
// they describe is gone. One that cannot be read is an error in the result, and the others are read all the same.
func (j *journal) readAll(kind string, f func(key string, body []byte) error) error {
	entries, err := os.ReadDir(j.dir)
	if err != nil {
		return fmt.Errorf("read state directory: %w", err)
	}
	var errs []error
	for _, entry := range entries {
		key, of := strings.CutPrefix(entry.Name(), kind+"-")
		key, is := strings.CutSuffix(key, ".json")
		if !of || !is {
			continue
		}
		path := filepath.Join(j.dir, entry.Name())
		data, err := os.ReadFile(path)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		var e envelope
		if err := json.Unmarshal(data, &e); err != nil {
			errs = append(errs, fmt.Errorf("read %s: %w", path, err))
			continue
		}
		if e.BootID != j.bootID {
			errs = append(errs, os.Remove(path))
			continue
		}
		if e.Version != journalVersion {
			errs = append(errs, fmt.Errorf("read %s: %w: it has version %d, this agent knows %d",
				path, errVersion, e.Version, journalVersion))
			continue
		}
		if err := f(key, e.Body); err != nil {
			errs = append(errs, fmt.Errorf("read %s: %w", path, err))
		}
	}
	return errors.Join(errs...)
}
