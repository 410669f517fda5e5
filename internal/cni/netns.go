package cni

import (
	"fmt"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/pkg/ns"
	"golang.org/x/sys/unix"
)

// podCookie returns the cookie of the network namespace at path, which must not be the one that the plugin runs in.
func podCookie(path string) (uint64, error) {
	pod, err := cookieAt(path)
	if err != nil {
		return 0, failf(types.ErrInvalidNetNS, "read the cookie of network namespace %q: %v", path, err)
	}
	host, err := cookieHere()
	if err != nil {
		return 0, failf(types.ErrInternal, "read the cookie of the node's network namespace: %v", err)
	}
	if pod == host {
		return 0, types.NewError(types.ErrInvalidNetNS,
			fmt.Sprintf("network namespace %q is the node's own: host-network pods are not supported", path),
			"remove hostNetwork or the AF_XDP resource from the pod")
	}
	return pod, nil
}

// cookieAt makes a socket in the namespace at path and reads its cookie.
func cookieAt(path string) (cookie uint64, err error) {
	err = ns.WithNetNSPath(path, func(ns.NetNS) error {
		cookie, err = cookieHere()
		return err
	})
	return cookie, err
}

// cookieHere reads the cookie of the calling thread's network namespace, from SO_NETNS_COOKIE (Linux 5.14).
func cookieHere() (uint64, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("make a socket: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0, fmt.Errorf("get SO_NETNS_COOKIE: %w", err)
	}
	return cookie, nil
}
