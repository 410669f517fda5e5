package fakekubelet

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/renameio/v2"
	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// The names are those of kubelet's file.
type checkpointFile struct {
	Data     checkpointData
	Checksum uint64
	BootID   string `json:",omitempty"`
}

type checkpointData struct {
	PodDeviceEntries  []checkpointEntry
	RegisteredDevices map[string][]string
}

type checkpointEntry struct {
	PodUID        string
	ContainerName string
	ResourceName  string
	DeviceIDs     map[int64][]string
	AllocResp     []byte
}

// CheckpointPath returns where the device checkpoint is.
func (k *Kubelet) CheckpointPath() string {
	return filepath.Join(k.PluginDir(), "kubelet_internal_checkpoint")
}

// WriteCheckpoint replaces the device checkpoint, as kubelet does with each list of devices and each allocation.
func (k *Kubelet) WriteCheckpoint() error {
	k.checkpoint.Lock()
	defer k.checkpoint.Unlock()
	data := checkpointData{RegisteredDevices: make(map[string][]string)}
	k.mu.Lock()
	for key, a := range k.allocated {
		resp, err := proto.Marshal(a.response)
		if err != nil {
			k.mu.Unlock()
			return fmt.Errorf("write the device checkpoint: %w", err)
		}
		data.PodDeviceEntries = append(data.PodDeviceEntries,
			checkpointEntry{key.uid, key.container, key.resource, a.byNode, resp})
	}
	for resource, devices := range k.devices {
		data.RegisteredDevices[resource] = []string{}
		for id, d := range devices {
			if d.GetHealth() == pluginapi.Healthy {
				data.RegisteredDevices[resource] = append(data.RegisteredDevices[resource], id)
			}
		}
	}
	k.mu.Unlock()
	text, err := json.Marshal(data)
	if err != nil {
		return fmt.Errorf("write the device checkpoint: %w", err)
	}
	// Not kubelet's checksum, which is one over the print-out of its Go types.
	sum := fnv.New32a()
	_, _ = sum.Write(text)
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	text, err = json.Marshal(checkpointFile{data, uint64(sum.Sum32()), strings.TrimSpace(string(boot))})
	if err == nil {
		err = renameio.WriteFile(k.CheckpointPath(), text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write the device checkpoint: %w", err)
	}
	return nil
}

// readCheckpoint takes the allocations from the checkpoint. k.mu is held.
func (k *Kubelet) readCheckpoint() error {
	k.allocated = make(map[allocationKey]allocation)
	text, err := os.ReadFile(k.CheckpointPath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var file checkpointFile
	if err == nil {
		err = json.Unmarshal(text, &file)
	}
	if err != nil {
		return fmt.Errorf("read the device checkpoint: %w", err)
	}
	for _, e := range file.Data.PodDeviceEntries {
		resp := &pluginapi.ContainerAllocateResponse{}
		if err := proto.Unmarshal(e.AllocResp, resp); err != nil {
			return fmt.Errorf("read the device checkpoint: %w", err)
		}
		k.allocated[allocationKey{e.PodUID, e.ContainerName, e.ResourceName}] = allocation{e.DeviceIDs, resp}
	}
	return nil
}
