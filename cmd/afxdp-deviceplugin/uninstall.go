package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/afxdp-project/afxdp/internal/kube"
)

const uninstallUsage = `afxdp-deviceplugin uninstall has all node agents of a cluster undo what they have changed on their nodes, and waits for
their reports. It is to be run before the agents are deleted; the Helm chart does so in a hook. Leases end, also those of
pods that run: their sockets receive nothing more.

Usage:
  afxdp-deviceplugin uninstall --namespace NAMESPACE --selector LABELS [flags]

Needs: get and patch of nodes, list of pods in the namespace.
Exit codes: 0 all nodes uninstalled, 1 some not (says which, and what to do), 2 wrong flags.

Flags:
`

// runUninstall is the subcommand uninstall.
func runUninstall(args []string, stdout, stderr io.Writer) int {
	flags := pflag.NewFlagSet("afxdp-deviceplugin uninstall", pflag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.SortFlags = false
	var (
		namespace  = flags.String("namespace", "", "namespace of the agents' pods")
		selector   = flags.String("selector", "", "labels of the agents' pods, such as app.kubernetes.io/name=afxdp")
		timeout    = flags.Duration("timeout", 2*time.Minute, "how long to wait for the reports")
		kubeconfig = flags.String("kubeconfig", "", "file that says how to reach the API server; empty: as a pod does")
	)
	flags.Usage = func() { _, _ = fmt.Fprint(stdout, uninstallUsage+flags.FlagUsages()) }
	err := flags.Parse(args)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return 0
	case err != nil:
	case flags.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case *namespace == "":
		err = errors.New("--namespace is missing")
	case *selector == "":
		err = errors.New("--selector is missing: it tells the agents from other pods of the namespace")
	case *timeout <= 0:
		err = fmt.Errorf("--timeout: %v is not positive", *timeout)
	}
	if err != nil {
		return refuse(stderr, err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	client, err := kube.Connect(*kubeconfig)
	if err == nil {
		err = kube.Uninstallation{Client: client, Namespace: *namespace, Selector: *selector, Out: stdout}.Run(ctx)
	}
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "afxdp-deviceplugin:", err)
		return exitFailure
	}
	return 0
}
