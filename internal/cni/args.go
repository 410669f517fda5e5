package cni

import (
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/afxdp-project/afxdp/internal/kubelet"
)

// isPodName reports whether s may be a UID (of a static pod too, which is a hash), a namespace or a name. It is no regular
// expression, as compiling that would take a good part of the time that the plugin takes for a pod.
func isPodName(s string) bool {
	const inner = "_.-"
	for _, c := range []byte(s) {
		if (c|0x20 < 'a' || c|0x20 > 'z') && (c < '0' || c > '9') && strings.IndexByte(inner, c) < 0 {
			return false
		}
	}
	return s != "" && len(s) <= 253 && !strings.ContainsAny(s[:1]+s[len(s)-1:], inner)
}

// parsePod reads the pod from CNI_ARGS ("K=V;K=V"). It returns nil when they name none: the container is not a pod's.
// The UID may be missing, as some runtimes do not pass it. Arguments of others are left alone, whether or not
// IgnoreUnknown is among them, because a chained plugin must not fail pods over what is meant for its neighbours.
func parsePod(args string) (*kubelet.Pod, error) {
	pod := &kubelet.Pod{}
	fields := map[string]*string{"K8S_POD_UID": &pod.UID, "K8S_POD_NAMESPACE": &pod.Namespace, "K8S_POD_NAME": &pod.Name}
	for pair := range strings.SplitSeq(args, ";") {
		key, value, _ := strings.Cut(pair, "=")
		field := fields[key]
		switch {
		case field == nil || value == "":
		case !isPodName(value):
			return nil, failf(types.ErrInvalidEnvironmentVariables, "CNI_ARGS: %s: %q is not a valid value", key, value)
		case *field != "" && *field != value:
			return nil, failf(types.ErrInvalidEnvironmentVariables, "CNI_ARGS: %s is given twice: %q and %q",
				key, *field, value)
		default:
			*field = value
		}
	}
	switch {
	case *pod == kubelet.Pod{}:
		return nil, nil
	case pod.Namespace == "" || pod.Name == "":
		return nil, types.NewError(types.ErrInvalidEnvironmentVariables,
			"CNI_ARGS name a pod but lack K8S_POD_NAMESPACE or K8S_POD_NAME",
			"the container runtime has to pass both, and K8S_POD_UID")
	}
	return pod, nil
}
