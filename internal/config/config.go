package config

import (
	"fmt"
	"strings"
	"time"

	"github.com/afxdp-project/afxdp/pkg/netdev"
)

// What the head of a configuration file must say.
const (
	APIVersion = "afxdp.io/v1alpha1"
	Kind       = "Configuration"
)

// ResourceDomain is the domain of every pool's resource name.
const ResourceDomain = "afxdp.io"

// Defaults of a pool's fields. The fields that are not listed default to false.
const (
	DefaultZeroCopy        = ZeroCopyAuto
	DefaultNeedWakeup      = true
	DefaultBudget          = 64
	DefaultTimeout         = 20 * time.Microsecond
	DefaultDeferHardIRQs   = 2
	DefaultGROFlushTimeout = 200 * time.Microsecond
	DefaultMaxUMEM         = 256 << 20 // bytes
	DefaultMaxFrames       = 131072    // 256 MiB of the smallest frames, 2 KiB
	DefaultMaxRingSize     = 4096      // descriptors
	DefaultMaxConnections  = 8
)

// Bounds of a pool's fields, inclusive.
const (
	MaxQueue         = 65535 // highest queue number
	MaxBudget        = 65535 // what the kernel accepts: the option is a u16
	MaxTimeout       = time.Second
	MaxDeferHardIRQs = 10000
	MaxGROFlush      = time.Second
	MaxIRQSuspend    = time.Second
	MinUMEM          = 4 << 10
	MaxUMEM          = 16 << 30
	MaxFrames        = MaxUMEM / 2048
	MaxRingSize      = 65536
	MaxConnections   = 64
	MaxNUMANode      = 1023
	MaxPools         = 256
)

// Config is the content of a configuration file.
type Config struct {
	APIVersion string `yaml:"apiVersion"` // required, [APIVersion]
	Kind       string `yaml:"kind"`       // required, [Kind]
	Pools      []Pool `yaml:"pools"`      // required, at most [MaxPools], in the order of the file
}

// Pool is a set of devices behind one resource name, and how they are handed out. A pool that Go code makes starts from
// [DefaultPool]: the zero value of a number is not its default.
type Pool struct {
	// Name is the last part of the resource name: DNS labels joined by dots, at most 63 bytes. Required.
	Name string `yaml:"name"`
	// NICs selects the network devices. Required, with at least one criterion.
	NICs Selector `yaml:"nics"`
	// Queues are the queues of each selected NIC. The default is all that the NIC has.
	Queues QueueSet `yaml:"queues"`
	// ZeroCopy says whether sockets are bound zero-copy. The default is [ZeroCopyAuto].
	ZeroCopy ZeroCopy `yaml:"zeroCopy"`
	// NeedWakeup binds with XDP_USE_NEED_WAKEUP, so that the kernel tells when it waits for a kick. The default is true.
	NeedWakeup bool `yaml:"needWakeup"`
	// AllowGeneric falls back to generic (SKB) XDP on a NIC whose driver has no native XDP. The default is false: such a
	// NIC is unhealthy, with the reason.
	AllowGeneric bool `yaml:"allowGeneric"`
	// MultiBuffer attaches an xdp.frags program and binds with XDP_USE_SG, so that a packet may span frames and the MTU
	// may exceed a page. The default is false.
	MultiBuffer bool `yaml:"multiBuffer"`
	// CountUnclaimed counts for each queue the packets that found no socket and passed to the stack. The default is
	// false: the count costs every such packet a map lookup.
	CountUnclaimed bool `yaml:"countUnclaimed"`
	// AllowSharedNAPI advertises every queue where several share a NAPI. The default is false: only the first of them,
	// because leases on one NAPI poll, tune and starve each other.
	AllowSharedNAPI bool `yaml:"allowSharedNAPI"`
	// BusyPoll sets the busy polling of the sockets and their queues' NAPIs.
	BusyPoll BusyPoll `yaml:"busyPoll"`
	// Limits bound what one pod can ask of the agent and the kernel.
	Limits Limits `yaml:"limits"`
}

// BusyPoll sets the busy polling of a pool's sockets.
type BusyPoll struct {
	// Budget is SO_BUSY_POLL_BUDGET, packets per poll, 0 to [MaxBudget]. 0 turns busy polling off: no option is set and
	// no NAPI is tuned. The default is [DefaultBudget].
	Budget int `yaml:"budget"`
	// Timeout is SO_BUSY_POLL, whole microseconds from 0 to [MaxTimeout]. The default is [DefaultTimeout].
	Timeout time.Duration `yaml:"timeout"`
	// DeferHardIRQs is napi_defer_hard_irqs: how many empty polls in a row leave the queue's interrupt masked, 0 to
	// [MaxDeferHardIRQs]. The default is [DefaultDeferHardIRQs].
	DeferHardIRQs int `yaml:"deferHardIRQs"`
	// GROFlushTimeout is gro_flush_timeout: how long the interrupt stays masked after a poll before the kernel polls by
	// itself, 0 to [MaxGROFlush]. The default is [DefaultGROFlushTimeout].
	GROFlushTimeout time.Duration `yaml:"groFlushTimeout"`
	// IRQSuspendTimeout is irq-suspend-timeout: the longest that interrupts stay off altogether while the application
	// keeps polling with epoll, 0 to [MaxIRQSuspend]. 0, the default, leaves the NAPI's setting as it is. Settable by
	// NAPI only (Linux 6.13).
	IRQSuspendTimeout time.Duration `yaml:"irqSuspendTimeout"`
	// Threaded has a kernel thread poll the queue's NAPI instead of softirq. It is independent of Budget, which is
	// usually 0 then. Settable by NAPI only (Linux 6.17). The default is false.
	Threaded bool `yaml:"threaded"`
	// ThreadCPUs are the CPUs on which that thread may run, such as "2-3". The default leaves it where it is. Needs
	// Threaded, and an agent that may pin threads: CAP_SYS_NICE and the host's PID namespace.
	ThreadCPUs netdev.CPUs `yaml:"threadCPUs"`
	// IRQCPUs are the CPUs that serve the queue's interrupt, for applications on another one, such as "2-3". The default
	// leaves that as it is.
	IRQCPUs netdev.CPUs `yaml:"irqCPUs"`
}

// Enabled reports whether sockets are asked to busy-poll.
func (b BusyPoll) Enabled() bool { return b.Budget > 0 }

// Limits bound what one pod can ask for.
type Limits struct {
	// MaxUMEM is the largest size of one UMEM in bytes, [MinUMEM] to [MaxUMEM]. The default is [DefaultMaxUMEM].
	MaxUMEM Bytes `yaml:"maxUMEM"`
	// MaxFrames is the largest number of frames of one UMEM, 1 to [MaxFrames]; the kernel keeps a descriptor of each
	// that is charged to nobody. The default is [DefaultMaxFrames].
	MaxFrames int `yaml:"maxFrames"`
	// MaxRingSize is the largest size of each of a socket's rings in descriptors, a power of two from 1 to
	// [MaxRingSize]; ring memory is charged to nobody. The default is [DefaultMaxRingSize].
	MaxRingSize int `yaml:"maxRingSize"`
	// MaxConnections is how many connections to one allocation's socket may be open at once, 1 to [MaxConnections]. The
	// default is [DefaultMaxConnections].
	MaxConnections int `yaml:"maxConnections"`
}

// ZeroCopy says whether a pool's sockets are bound zero-copy.
type ZeroCopy string

// The values of ZeroCopy.
const (
	ZeroCopyAuto    ZeroCopy = "auto"    // zero-copy where every NIC of a UMEM can, else copy, reported
	ZeroCopyRequire ZeroCopy = "require" // a NIC that cannot is refused when its queue is leased
	// Copy mode. The word is not "off", which many YAML readers (Helm's among them) turn into the boolean false.
	ZeroCopyNever ZeroCopy = "never"
)

// DefaultPool returns a pool that has every default and neither a name nor a NIC.
func DefaultPool() Pool {
	return Pool{
		ZeroCopy:   DefaultZeroCopy,
		NeedWakeup: DefaultNeedWakeup,
		BusyPoll: BusyPoll{
			Budget:          DefaultBudget,
			Timeout:         DefaultTimeout,
			DeferHardIRQs:   DefaultDeferHardIRQs,
			GROFlushTimeout: DefaultGROFlushTimeout,
		},
		Limits: Limits{
			MaxUMEM:        DefaultMaxUMEM,
			MaxFrames:      DefaultMaxFrames,
			MaxRingSize:    DefaultMaxRingSize,
			MaxConnections: DefaultMaxConnections,
		},
	}
}

// Resource returns the pool's resource name, for example "afxdp.io/fast".
func (p Pool) Resource() string { return ResourceDomain + "/" + p.Name }

// MountPath returns where a container finds the directory of its allocation, for example "/run/afxdp/fast".
func (p Pool) MountPath() string { return "/run/afxdp/" + p.Name }

// EnvName returns the variable that tells a container the path of its socket, for example "AFXDP_FAST".
func (p Pool) EnvName() string {
	return "AFXDP_" + strings.NewReplacer("-", "_", ".", "_").Replace(strings.ToUpper(p.Name))
}

// Pool returns the pool of a name.
func (c *Config) Pool(name string) (Pool, bool) {
	for _, p := range c.Pools {
		if p.Name == name {
			return p, true
		}
	}
	return Pool{}, false
}

// UnmarshalText reads one of the values of ZeroCopy.
func (z *ZeroCopy) UnmarshalText(text []byte) error {
	switch v := ZeroCopy(text); v {
	case ZeroCopyAuto, ZeroCopyRequire, ZeroCopyNever:
		*z = v
		return nil
	}
	return fmt.Errorf("%q is none of %s, %s, %s", shorten(string(text)), ZeroCopyAuto, ZeroCopyRequire, ZeroCopyNever)
}
