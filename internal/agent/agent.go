package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/afxdp-project/afxdp/internal/agentapi"
	"github.com/afxdp-project/afxdp/internal/config"
	"github.com/afxdp-project/afxdp/internal/conflist"
	"github.com/afxdp-project/afxdp/internal/deviceplugin"
	"github.com/afxdp-project/afxdp/internal/handoff"
	"github.com/afxdp-project/afxdp/internal/kube"
	"github.com/afxdp-project/afxdp/internal/kubelet"
	"github.com/afxdp-project/afxdp/internal/lease"
	"github.com/afxdp-project/afxdp/internal/metrics"
	"github.com/afxdp-project/afxdp/internal/wire"
	"github.com/afxdp-project/afxdp/pkg/netdev"
	"github.com/afxdp-project/afxdp/pkg/xsk"
)

// Config says where the agent works. Every field but those that may be empty is needed.
type Config struct {
	Pools       *config.Config
	ConfigFile  string // that Pools was read from, and is read from again when it changes; empty: never
	KubeletRoot string // kubelet's root directory, such as /var/lib/kubelet
	RunDir      string // /run/afxdp: state, allocations and the CNI plugin's socket
	PinDir      string // /sys/fs/bpf/afxdp
	IRQDir      string // /proc/irq, writable; empty: that one
	HTTPAddress string // of /healthz, /readyz, /statusz and /metrics; empty: not served
	// MetricsAddress is where /metrics is served beside that; empty: nowhere.
	MetricsAddress string
	CNIConfDir     string // the runtime's network configuration; empty: not touched
	Chain          bool   // keep the CNI plugin in the first list there; else an agent's entry is taken out
	CNIBinDir      string // where the plugin is installed; needed with CNIConfDir. An uninstallation removes it from there
	CNICacheDir    string // /var/lib/cni: tells an uninstallation who needs the plugin still
	// Node is the way to the API server; nil: there is none, and so neither Events nor an uninstallation.
	Node *kube.Node
	// PodUID is that of the agent's own pod, by which it is asked to uninstall; empty: it cannot be.
	PodUID  string
	Version string
	Log     *slog.Logger

	fault func(step string) // called before each step of an uninstallation; tests end the process there
}

// Agent is the node agent.
type Agent struct {
	config      Config
	log         *slog.Logger
	nics        *netdev.Handle
	leases      *lease.Manager
	inventory   *inventory
	allocations *allocations
	server      *handoff.Server
	plugin      *deviceplugin.Manager
	kubelet     *kubelet.Client
	observer    *netdev.Handle // of the metrics, so that a slow NIC holds up nothing else
	metrics     *metrics.Metrics
	chain       *conflist.Keeper // nil: not wanted
	teller      *teller

	announcing sync.Mutex
	withdrawn  bool // no device is announced any more

	// Of the uninstallation, which is one goroutine's.
	dismantled  bool          // there is no journal any more
	dismantling kube.Report   // of that part
	ended       []lease.Lease // by it

	// onReload, if set, is told of each changed configuration: an error when it was refused, else nil. It must not block.
	onReload func(err error)

	rescans     chan struct{}
	maintenance chan struct{}
	scanned     atomic.Bool // the node's NICs were looked at
	announced   atomic.Bool // kubelet was told of their devices, not only of the pools
	closers     []func() error
}

// socketName is that of the CNI plugin's socket in the run directory.
const socketName = "agent.sock"

// stopTimeout is how long a stop waits for what is under way.
const stopTimeout = 5 * time.Second

// New makes an agent: it opens the journal, puts back or takes up what an earlier agent left, and has the sockets of all
// allocations listen. The caller calls Run, then Close.
func New(c Config) (_ *Agent, err error) {
	a := &Agent{config: c, log: c.Log, rescans: make(chan struct{}, 1), maintenance: make(chan struct{}, 1)}
	a.chain = newChain(c, a.rescan)
	defer func() {
		if err != nil {
			err = errors.Join(err, a.Close())
		}
	}()
	if err := xsk.ProbeMapBound(); err != nil {
		if errors.Is(err, xsk.ErrUnsupported) {
			return nil, fmt.Errorf("this kernel cannot hand out queues: Linux 6.4 or later is needed: %w", err)
		}
		return nil, err
	}
	if err := os.MkdirAll(c.RunDir, 0o711); err != nil {
		return nil, fmt.Errorf("make run directory: %w", err)
	}
	if a.nics, err = (netdev.Config{IRQDir: c.IRQDir}).Open(); err != nil {
		return nil, err
	}
	a.closers = append(a.closers, a.nics.Close)
	var findings []error
	a.leases, findings, err = lease.New(lease.Config{
		StateDir: filepath.Join(c.RunDir, "state"), PinDir: c.PinDir, NICs: a.nics,
	})
	if err != nil {
		return nil, err
	}
	a.closers = append(a.closers, a.leases.Close)
	for _, f := range findings {
		a.log.Error("take up the journal", "error", f)
	}
	a.teller = &teller{node: c.Node}
	a.onReload = a.teller.reloaded
	a.inventory = &inventory{nics: a.nics, leases: a.leases, log: a.log, config: c.Pools,
		former: make(map[string]config.Pool), devices: make(map[string]device)}
	if a.observer, err = netdev.Open(); err != nil {
		return nil, err
	}
	a.closers = append(a.closers, a.observer.Close)
	a.metrics = metrics.New(c.Version, a.look, a.log)
	a.closers = append(a.closers, a.metrics.Close)
	a.server = handoff.NewServer(a.leases, a.log)
	a.server.OnOpen, a.server.OnRefused = a.opened, a.teller.opening
	a.closers = append(a.closers, a.closeServer)
	if a.allocations, err = newAllocations(filepath.Join(c.RunDir, "alloc"), a.leases, a.server); err != nil {
		return nil, err
	}
	if a.kubelet, err = kubelet.NewClient(c.KubeletRoot); err != nil {
		return nil, err
	}
	a.closers = append(a.closers, a.kubelet.Close)
	a.plugin, err = deviceplugin.NewManager(deviceplugin.Config{
		KubeletRoot: c.KubeletRoot, Domain: config.ResourceDomain, Backend: a, Logger: a.log,
	})
	return a, err
}

// Run serves until ctx is done. Leases, attachments and the pods' sockets outlive it, unless the agent is asked to
// uninstall.
func (a *Agent) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return a.serveHTTP(ctx) })
	marks := make(chan kube.Mark, 1)
	g.Go(func() error { a.followMark(ctx, marks); return nil })
	g.Go(func() error { return a.live(ctx, marks) })
	err := g.Wait()
	a.log.Info("agent stopped", "error", err)
	return err
}

// serve serves kubelet, the CNI plugin and the pods until ctx is done.
func (a *Agent) serve(ctx context.Context) error {
	listener, err := a.listen()
	if err != nil {
		return err
	}
	rpc := grpc.NewServer(grpc.MaxRecvMsgSize(1 << 20))
	agentapi.RegisterAgentServer(rpc, service{Agent: a})

	// Registered before the node is looked at: a kubelet that does not know the resource rejects pods that it admits
	// again, after a restart.
	empty := make(map[string][]deviceplugin.Device)
	for _, name := range a.inventory.pools() {
		empty[name] = nil
	}
	a.announce(empty)
	a.log.Info("agent started", "version", a.config.Version, "pools", a.inventory.pools(), "netnsCookie", a.nics.NetnsCookie())

	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return a.plugin.Run(ctx) })
	g.Go(func() error {
		if err := rpc.Serve(listener); !errors.Is(err, grpc.ErrServerStopped) { // stopped before it began
			return err
		}
		return nil
	})
	g.Go(func() error { return a.watch(ctx) })
	g.Go(func() error { return a.follow(ctx) })
	g.Go(func() error { return a.keep(ctx) })
	g.Go(func() error { return a.keepChained(ctx) })
	g.Go(func() error {
		<-ctx.Done()
		stopped := make(chan struct{})
		go func() { rpc.GracefulStop(); close(stopped) }()
		select {
		case <-stopped:
		case <-time.After(stopTimeout):
			rpc.Stop()
		}
		return nil
	})
	return g.Wait()
}

// announce has kubelet know the pools' devices, unless these were withdrawn. Before the CNI plugin is in its chain no device is
// announced: a pod that is started then has a network without it, and is never given another one.
func (a *Agent) announce(devices map[string][]deviceplugin.Device) {
	looked := a.chain == nil || a.chain.Looked()
	if !looked {
		none := make(map[string][]deviceplugin.Device)
		for pool := range devices {
			none[pool] = nil
		}
		devices = none
	}
	a.announcing.Lock()
	defer a.announcing.Unlock()
	if !a.withdrawn {
		a.plugin.Update(devices)
		a.announced.Store(looked)
	}
}

// withdraw takes all devices from kubelet, for good.
func (a *Agent) withdraw() {
	a.announcing.Lock()
	defer a.announcing.Unlock()
	a.withdrawn = true
	a.plugin.Update(nil)
}

func (a *Agent) isWithdrawn() bool {
	a.announcing.Lock()
	defer a.announcing.Unlock()
	return a.withdrawn
}

// Close closes everything, in the reverse order of its making.
func (a *Agent) Close() error {
	var errs []error
	for i := len(a.closers) - 1; i >= 0; i-- {
		errs = append(errs, a.closers[i]())
	}
	a.closers = nil
	return errors.Join(errs...)
}

// listen listens on the CNI plugin's socket, which only root can connect to.
func (a *Agent) listen() (net.Listener, error) {
	path := filepath.Join(a.config.RunDir, socketName)
	temp := path + ".new"
	if err := wire.CheckPath(temp); err != nil {
		return nil, err
	}
	if err := os.Remove(temp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: temp, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen for the CNI plugin: %w", err)
	}
	l.SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(temp, 0o600), os.Rename(temp, path)); err != nil {
		return nil, errors.Join(fmt.Errorf("listen for the CNI plugin: %w", err), l.Close())
	}
	return l, nil
}

// rescan has the node looked at soon.
func (a *Agent) rescan() { poke(a.rescans) }

// maintain has unfinished ends of leases looked at soon.
func (a *Agent) maintain() { poke(a.maintenance) }

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
