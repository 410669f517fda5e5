package main

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/afxdp-project/afxdp/internal/install"
)

const installUsage = `afxdp-deviceplugin install puts on the node what the node agent needs: the CNI plugin, and a BPF filesystem where
there is none. It is the agent's init container, and the only one that is privileged: mounting needs that. It can be
repeated, and leaves alone what is as it should be.

Usage:
  afxdp-deviceplugin install [flags]

Flags:
`

// runInstall is the subcommand install.
func runInstall(args []string, stdout, stderr io.Writer) int {
	flags := pflag.NewFlagSet("afxdp-deviceplugin install", pflag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.SortFlags = false
	var (
		binDir = flags.String("cni-bin-dir", "/opt/cni/bin", "directory in which the container runtime looks for CNI plugins; empty: no plugin is installed")
		plugin = flags.String("cni-plugin", "/afxdp-cni", "the CNI plugin to install there")
		bpffs  = flags.String("bpffs", "/sys/fs/bpf", "where to mount a BPF filesystem if there is none; empty: nowhere")
	)
	flags.Usage = func() { _, _ = fmt.Fprint(stdout, installUsage+flags.FlagUsages()) }
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return 0
		}
		return refuse(stderr, err)
	}
	if flags.NArg() > 0 {
		return refuse(stderr, fmt.Errorf("unexpected argument %q", flags.Arg(0)))
	}
	code := 0
	did := func(err error, changed bool, now, before string) {
		switch {
		case err != nil:
			_, _ = fmt.Fprintln(stderr, "afxdp-deviceplugin:", err)
			code = exitFailure
		case changed:
			_, _ = fmt.Fprintln(stdout, now)
		default:
			_, _ = fmt.Fprintln(stdout, before)
		}
	}
	if *binDir != "" {
		path := filepath.Join(*binDir, install.PluginName)
		changed, err := install.Plugin(*plugin, *binDir)
		did(err, changed, path+": installed", path+": is up to date")
	}
	if *bpffs != "" {
		changed, err := install.BPFFS(*bpffs)
		did(err, changed, *bpffs+": BPF filesystem mounted", *bpffs+": is a BPF filesystem already")
	}
	return code
}
