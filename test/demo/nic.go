package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/afxdp-project/afxdp/pkg/netdev"
)

const (
	nearNIC = "demo0" // the node's
	farNIC  = "demo1" // the other end of its cable
	// nicQueues is how many queues each of them has.
	nicQueues = 4
)

// setNIC gives the NIC settings other than the kernel's, so that putting them back is not the same as setting them to 0.
func setNIC(h *netdev.Handle, index int) error {
	deferral, flush := uint32(1), 20*time.Microsecond
	return h.SetDeviceSettings(index, netdev.DeviceSettings{DeferHardIRQs: &deferral, GROFlushTimeout: &flush})
}

// lookAtNIC sees everything of a NIC that the agent may change, and some that it must not.
func lookAtNIC(h *netdev.Handle, name string) (world, error) {
	link, err := h.LinkByName(name)
	if err != nil {
		return nil, err
	}
	channels, err := h.Channels(link.Index)
	if err != nil {
		return nil, err
	}
	w := world{
		"xdp": string(link.XDP.Mode), "program": fmt.Sprint(link.XDP.ProgID), "channels": fmt.Sprintf("%+v", channels),
		"address": link.MAC.String(), "state": string(link.OperState),
	}
	dir := filepath.Join("/sys/class/net", name)
	for _, file := range []string{"napi_defer_hard_irqs", "gro_flush_timeout", "threaded", "mtu", "flags", "tx_queue_len"} {
		value, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			return nil, err
		}
		w[file] = strings.TrimSpace(string(value))
	}
	queues, err := filepath.Glob(filepath.Join(dir, "queues/*"))
	if err != nil {
		return nil, err
	}
	for _, q := range queues {
		w["queue "+filepath.Base(q)] = "there"
	}
	return w, nil
}
