package kubelet

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// maxCheckpoint bounds the checkpoint in bytes. An entry holds a plugin's whole answer, a kilobyte or two.
const maxCheckpoint = 64 << 20

// Entry says which devices of one resource kubelet gave to one container. Unlike the pod-resources API the checkpoint
// has ordinary init containers, and pods that ended but were not yet cleaned up.
type Entry struct {
	PodUID    string
	Container string
	Resource  string   // for example "afxdp.io/fast"
	DeviceIDs []string // sorted, each once
}

// Checkpoint is what kubelet's device manager remembers across restarts. It is written before a pod's sandbox is made.
type Checkpoint struct {
	Entries []Entry // in the file's order, which is arbitrary
}

// CheckpointPath returns where kubelet with the given root directory keeps its device checkpoint.
func CheckpointPath(root string) string {
	return filepath.Join(root, "device-plugins", "kubelet_internal_checkpoint")
}

// ReadCheckpoint reads kubelet's device checkpoint, in the present format and in that of kubelet up to 1.19. A missing
// file is an error that matches [fs.ErrNotExist]; anything that is not a whole checkpoint is an error that does not.
//
// The file is not read twice: kubelet replaces it by a rename, so a reader sees one version of it or the other, whole.
// Its checksum is not verified: it is one over the print-out of kubelet's internal Go types, not over the bytes, and
// whoever could change the file could change the checksum.
func ReadCheckpoint(path string) (Checkpoint, error) {
	fail := func(err error) (Checkpoint, error) {
		return Checkpoint{}, fmt.Errorf("read kubelet's device checkpoint %s: %w", path, err)
	}
	f, err := os.Open(path)
	if err != nil {
		// The path is in the message already.
		if pe := (*fs.PathError)(nil); errors.As(err, &pe) {
			err = pe.Err
		}
		return fail(err)
	}
	defer func() { _ = f.Close() }()
	if st, err := f.Stat(); err != nil {
		return fail(err)
	} else if !st.Mode().IsRegular() {
		return fail(fmt.Errorf("not a regular file (%s)", st.Mode().Type()))
	} else if st.Size() > maxCheckpoint {
		return fail(fmt.Errorf("larger than %d bytes", maxCheckpoint))
	}
	data, err := io.ReadAll(io.LimitReader(f, maxCheckpoint)) // what grows meanwhile is cut and does not decode
	if err != nil {
		return fail(err)
	}
	cp, err := parseCheckpoint(data)
	if err != nil {
		return fail(err)
	}
	return cp, nil
}

func parseCheckpoint(data []byte) (Checkpoint, error) {
	var file struct {
		Data *struct {
			PodDeviceEntries []struct {
				PodUID        string
				ContainerName string
				ResourceName  string
				DeviceIDs     deviceIDs
			}
		}
	}
	if err := json.Unmarshal(data, &file); err != nil {
		return Checkpoint{}, fmt.Errorf("decode: %w", err)
	}
	if file.Data == nil {
		return Checkpoint{}, errors.New(`no "Data" in it: not a device checkpoint`)
	}
	var cp Checkpoint
	for i, e := range file.Data.PodDeviceEntries {
		if e.PodUID == "" || e.ContainerName == "" || e.ResourceName == "" {
			return Checkpoint{}, fmt.Errorf("entry %d lacks its pod UID, container or resource", i)
		}
		cp.Entries = append(cp.Entries, Entry{e.PodUID, e.ContainerName, e.ResourceName, e.DeviceIDs})
	}
	return cp, nil
}

// deviceIDs decodes either a map from NUMA node (-1: none) to device ids, in which a device that belongs to several
// nodes is listed under each, or the plain list of kubelet up to 1.19.
type deviceIDs []string

func (ids *deviceIDs) UnmarshalJSON(data []byte) error {
	if bytes.HasPrefix(data, []byte("[")) {
		var list []string
		if err := json.Unmarshal(data, &list); err != nil {
			return err
		}
		*ids = sortedSet(list)
		return nil
	}
	var byNode map[int64][]string
	if err := json.Unmarshal(data, &byNode); err != nil {
		return err
	}
	*ids = sortedSet(slices.Concat(slices.Collect(maps.Values(byNode))...))
	return nil
}

func sortedSet(list []string) []string { return slices.Compact(slices.Sorted(slices.Values(list))) }
