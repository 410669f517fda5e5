// Package deviceplugin is the side of the agent that kubelet talks to: one device plugin for each pool, which stays
// registered whatever happens to kubelet, lists the pool's devices and answers for their allocation. What an
// allocation is made of is the business of a [Backend].
package deviceplugin

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/afxdp-project/afxdp/internal/kubelet"
)

// Device is one queue of one NIC, as kubelet counts it.
type Device struct {
	ID       string // unique in the pool, for example "eth1-q2"
	Healthy  bool
	Reason   string // why it is not healthy
	Cause    string // the reason in one word, of a few, for metrics
	NUMANode int    // -1: none
	NIC      string
	Queue    int
}

// Allocation is what a container gets: a directory of the host, mounted read-only, and environment variables.
type Allocation struct {
	HostDir      string
	ContainerDir string
	Env          map[string]string
}

// Backend makes allocations. Its methods are called concurrently, also for the same devices.
type Backend interface {
	// Allocate prepares devices, which exist and are healthy, for a container. kubelet may repeat it and must get
	// the same answer. The ids are in kubelet's order, which is arbitrary.
	Allocate(ctx context.Context, pool string, deviceIDs []string) (Allocation, error)
	// PreStart is called before each start of a container, with all its devices of the pool. They need not exist
	// any more. An error keeps the container from starting and is shown to the user.
	PreStart(ctx context.Context, pool string, deviceIDs []string) error
}

// Config configures a [Manager].
type Config struct {
	KubeletRoot string // kubelet's root directory; empty: /var/lib/kubelet
	Domain      string // of the resource names; empty: "afxdp.io"
	Backend     Backend
	Logger      *slog.Logger // nil: nothing is logged
	// HealthyHold is how long a device that was unhealthy or gone must have been healthy before kubelet is told, so
	// that one that flaps costs kubelet at most two updates in that time. 0: 5 seconds.
	HealthyHold time.Duration
	// StopTimeout bounds how long calls of kubelet that are under way may hold up the end of Run. 0: 5 seconds.
	StopTimeout time.Duration
}

func (c Config) withDefaults() (Config, error) {
	if c.Backend == nil {
		return c, errors.New("set up the device plugin: no backend")
	}
	if c.KubeletRoot == "" {
		c.KubeletRoot = kubelet.DefaultRoot
	}
	if c.Domain == "" {
		c.Domain = "afxdp.io"
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.HealthyHold == 0 {
		c.HealthyHold = 5 * time.Second
	}
	if c.StopTimeout == 0 {
		c.StopTimeout = 5 * time.Second
	}
	return c, nil
}
