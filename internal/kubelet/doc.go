// Package kubelet reads what kubelet knows about the devices of pods: its pod-resources API and its device checkpoint.
// Neither is complete alone. The API leaves out ordinary init containers and has no pod UIDs; the checkpoint has no pod
// names and is absent where no device plugin ever registered. [PodAllocations] puts the two together.
package kubelet

import "strings"

// DefaultRoot is kubelet's root directory unless it was started with another one.
const DefaultRoot = "/var/lib/kubelet"

// InDomain reports whether a resource name belongs to a domain: "afxdp.io/fast" to "afxdp.io".
func InDomain(resource, domain string) bool {
	rest, ok := strings.CutPrefix(resource, domain)
	return ok && strings.HasPrefix(rest, "/")
}
