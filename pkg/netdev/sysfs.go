package netdev

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// location returns the PCI address and the NUMA node of a device, given its parent on a bus. /sys/bus and /sys/devices
// are the same in every network namespace, unlike /sys/class/net, so any sysfs will do.
func (h *Handle) location(bus, dev string) (pci string, node int) {
	node = -1
	if bus == "" || dev == "" || strings.ContainsRune(bus+dev, '/') {
		return "", node
	}
	dir, err := filepath.EvalSymlinks(filepath.Join(h.sysfs, "bus", bus, "devices", dev))
	if err != nil {
		if bus == "pci" {
			pci = dev
		}
		return pci, node
	}
	// A virtio device or a subfunction sits on a PCI function; what hangs on USB does so too, further up, but is not
	// identified by its host controller.
	onFunction := true
	for range 32 { // no device tree is deeper
		subsystem, err := os.Readlink(filepath.Join(dir, "subsystem"))
		if err != nil {
			break
		}
		switch filepath.Base(subsystem) {
		case "pci":
			if onFunction {
				pci, onFunction = filepath.Base(dir), false
			}
		case "virtio", "auxiliary":
		default:
			onFunction = false
		}
		if b, err := os.ReadFile(filepath.Join(dir, "numa_node")); err == nil {
			if n, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil && n >= 0 {
				return pci, n
			}
		}
		dir = filepath.Dir(dir)
	}
	return pci, node
}
