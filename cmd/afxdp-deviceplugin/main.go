// Command afxdp-deviceplugin is the node agent: it advertises NIC queues to kubelet, owns every change to a NIC and
// hands AF_XDP sockets to pods.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/afxdp-project/afxdp/internal/agent"
	"github.com/afxdp-project/afxdp/internal/config"
	"github.com/afxdp-project/afxdp/internal/kube"
)

// version is set by the linker.
var version = ""

// Exit codes.
const (
	exitFailure = 1 // the agent could not start, or failed
	exitUsage   = 2 // wrong flags or a configuration that was refused; nothing was changed
)

const usage = `afxdp-deviceplugin is the node agent of AF_XDP queues for Kubernetes. It runs as root, once a node.

It advertises NIC queues to kubelet as afxdp.io/<pool>, attaches an XDP program to a NIC while one of its queues is
leased to a pod, defers the interrupts of leased queues for busy polling, hands bound AF_XDP sockets to pods, and puts
everything back when they go. Stopping or restarting it leaves leases and traffic as they are.

Usage:
  afxdp-deviceplugin --config FILE [flags]
  afxdp-deviceplugin --config FILE --check     # only check the configuration
  afxdp-deviceplugin install [flags]           # put CNI plugin and BPF filesystem on the node; see install --help
  afxdp-deviceplugin uninstall [flags]         # have all agents of a cluster uninstall; see uninstall --help

Capabilities: NET_ADMIN, NET_RAW, BPF, IPC_LOCK. Linux 6.4 or later.
Exit codes: 0 stopped by a signal, 1 failed, 2 wrong flags or configuration.

Flags:
`

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	if len(args) > 0 {
		switch args[0] {
		case "install":
			return runInstall(args[1:], stdout, stderr)
		case "uninstall":
			return runUninstall(args[1:], stdout, stderr)
		}
	}
	flags := pflag.NewFlagSet("afxdp-deviceplugin", pflag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.SortFlags = false
	var (
		file        = flags.String("config", "/etc/afxdp/config.yaml", "pool configuration (deployments/config.example.yaml explains it)")
		check       = flags.Bool("check", false, "check the configuration and exit")
		kubeletRoot = flags.String("kubelet-root", "/var/lib/kubelet", "kubelet's root directory")
		runDir      = flags.String("run-dir", "/run/afxdp", "directory for state, allocations and sockets; must not outlive a boot")
		pinDir      = flags.String("pin-dir", "/sys/fs/bpf/afxdp", "directory on a bpffs for pinned links and maps")
		irqDir      = flags.String("irq-dir", "/proc/irq", "where the affinity of interrupts can be set (busyPoll.irqCPUs); in a container /proc/irq is read-only")
		httpAddress = flags.String("http-address", "127.0.0.1:9417", "address of /healthz, /readyz, /statusz (devices, leases, losses) and /metrics; empty: not served")
		metricsAddr = flags.String("metrics-address", "", "address that serves /metrics alone, for a Prometheus on another node; empty: none")
		cniConfDir  = flags.String("cni-conf-dir", "", "the container runtime's CNI configuration directory (/etc/cni/net.d); empty: not touched")
		cniChain    = flags.Bool("cni-chain", true, "add afxdp-cni to the first list in --cni-conf-dir and keep it there; false: take out what an agent has added")
		cniBinDir   = flags.String("cni-bin-dir", "", "directory in which the container runtime looks for CNI plugins (/opt/cni/bin)")
		cniCacheDir = flags.String("cni-cache-dir", "/var/lib/cni", "where libcni and Multus remember pods' networks: an uninstallation leaves afxdp-cni where a pod needs it for its end")
		nodeName    = flags.String("node-name", os.Getenv("NODE_NAME"), "name of this node at the API server, default $NODE_NAME; empty: no API server is used, for neither Events nor an uninstallation")
		podUID      = flags.String("pod-uid", os.Getenv("POD_UID"), "UID of the agent's own pod, by which it is asked to uninstall, default $POD_UID")
		kubeconfig  = flags.String("kubeconfig", "", "file that says how to reach the API server; empty: as a pod does")
		logFormat   = flags.String("log-format", "text", "text or json")
		logLevel    = flags.String("log-level", "info", "debug, info, warn or error")
		showVersion = flags.Bool("version", false, "print the version and exit")
	)
	flags.Usage = func() { _, _ = fmt.Fprint(stdout, usage+flags.FlagUsages()) }
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return 0
		}
		return refuse(stderr, err)
	}
	if *showVersion {
		_, _ = fmt.Fprintln(stdout, "afxdp-deviceplugin", buildVersion())
		return 0
	}
	if flags.NArg() > 0 {
		return refuse(stderr, fmt.Errorf("unexpected argument %q", flags.Arg(0)))
	}
	if *cniConfDir != "" && *cniBinDir == "" {
		return refuse(stderr, errors.New("--cni-conf-dir needs --cni-bin-dir: a list that names a plugin which is not there stops every pod"))
	}
	log, err := logger(stderr, *logFormat, *logLevel)
	if err != nil {
		return refuse(stderr, err)
	}
	pools, warnings, err := config.Load(*file)
	if err != nil {
		return refuse(stderr, fmt.Errorf("configuration refused:\n%w", err))
	}
	for _, w := range warnings {
		log.Warn("configuration", "warning", w.String())
	}
	if *check {
		_, _ = fmt.Fprintf(stdout, "%s: pools: %d, errors: 0, warnings: %d\n", *file, len(pools.Pools), len(warnings))
		return 0
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	node, err := ownNode(ctx, *nodeName, *kubeconfig, log)
	if err != nil {
		return refuse(stderr, err)
	}
	a, err := agent.New(agent.Config{
		ConfigFile: *file,
		Pools:      pools, KubeletRoot: *kubeletRoot, RunDir: *runDir, PinDir: *pinDir, IRQDir: *irqDir, HTTPAddress: *httpAddress, MetricsAddress: *metricsAddr,
		CNIConfDir: *cniConfDir, Chain: *cniChain, CNIBinDir: *cniBinDir, CNICacheDir: *cniCacheDir, Node: node, PodUID: *podUID,
		Version: buildVersion(), Log: log,
	})
	if err != nil {
		log.Error("start", "error", err)
		return exitFailure
	}
	err = errors.Join(a.Run(ctx), a.Close())
	if err != nil {
		log.Error("run", "error", err)
		return exitFailure
	}
	return 0
}

// ownNode returns the agent's node at the API server, or nil when there is no way to that.
func ownNode(ctx context.Context, name, kubeconfig string, log *slog.Logger) (*kube.Node, error) {
	if name == "" {
		log.Info("no API server is used: no Events, and no uninstallation by mark (no node name)")
		return nil, nil
	}
	client, err := kube.Connect(kubeconfig)
	if errors.Is(err, kube.ErrNoCredentials) {
		log.Warn("no API server is used: no Events, and no uninstallation by mark", "error", err)
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return kube.NewNode(ctx, client, name, log), nil
}

// refuse says what is wrong with flags or configuration.
func refuse(stderr io.Writer, err error) int {
	_, _ = fmt.Fprintln(stderr, "afxdp-deviceplugin:", err)
	return exitUsage
}

func logger(w io.Writer, format, level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("--log-level: %w", err)
	}
	options := &slog.HandlerOptions{Level: l}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, options)), nil
	}
	return nil, fmt.Errorf("--log-format: %q is neither text nor json", format)
}

// buildVersion returns the linker's version, or what the toolchain knows of the checkout.
func buildVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.Main.Version
	}
	return "unknown"
}
