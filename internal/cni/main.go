package cni

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
)

const help = `afxdp-cni is the CNI plugin that gives pods their AF_XDP queues: it finds the queues that kubelet
allocated to a pod and has the node agent (afxdp-deviceplugin) put them into force for the pod's
network namespace. Pods without such queues pass through unchanged.

A container runtime runs it, with CNI_COMMAND and the other CNI_ variables set and a network
configuration on stdin. To install it, put it into the runtime's plugin directory (/opt/cni/bin)
and append it to the plugins of the node's network configuration (/etc/cni/net.d/*.conflist), or
have the agent do so (--cni-conf-dir):

    {"type": "afxdp-cni"}

Keys, all of them optional:

    agentSocket   the agent's socket; default ` + defaultAgentSocket + `
    kubeletRoot   kubelet's --root-dir; default /var/lib/kubelet
    timeout       of one invocation, from "1s" to "2m"; default "30s"
    standalone    true: STATUS and GC fail when the agent cannot be reached; default false

By hand:

    afxdp-cni --version
    afxdp-cni --help
`

// Main runs the plugin as a program and returns its exit code. version is the build's, empty to take it from the
// module; args are the command line's without the program's name.
func Main(buildVersion string, args []string) int {
	if os.Getenv("CNI_COMMAND") == "" && len(args) > 0 {
		return byHand(buildVersion, args, os.Stdout, os.Stderr)
	}
	// The library compares the two namespaces only after a verb has done its work and printed its result, and fails
	// DEL as well. Add makes the comparison itself, before the agent is asked and for pods with our devices only.
	if err := os.Setenv("CNI_NETNS_OVERRIDE", "true"); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "afxdp-cni:", err)
		return 1
	}
	p := &Plugin{Stdout: os.Stdout, Stderr: os.Stderr}
	cniErr := skel.PluginMainFuncsWithError(
		skel.CNIFuncs{Add: p.Add, Del: p.Del, Check: p.Check, GC: p.GC, Status: p.Status},
		supported, versionText(buildVersion)+"\nA CNI plugin, run by a container runtime. Try --help.")
	if cniErr == nil {
		return 0
	}
	if err := cniErr.Print(); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "afxdp-cni: write the error to stdout:", err)
	}
	return 1
}

// byHand serves a person who runs the program in a shell.
func byHand(buildVersion string, args []string, stdout, stderr io.Writer) int {
	switch args[0] {
	case "--version", "-version", "version":
		_, _ = fmt.Fprintf(stdout, "%s\nCNI protocol versions supported: %s\n",
			versionText(buildVersion), strings.Join(supported.SupportedVersions(), ", "))
		return 0
	case "--help", "-help", "-h", "help":
		_, _ = io.WriteString(stdout, help)
		return 0
	}
	_, _ = fmt.Fprintf(stderr, "afxdp-cni: unknown argument %q; try --help\n", args[0])
	return 2
}

func versionText(buildVersion string) string {
	if buildVersion == "" {
		buildVersion = "(devel)"
		if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
			buildVersion = info.Main.Version
		}
	}
	return fmt.Sprintf("afxdp-cni %s, %s", buildVersion, runtime.Version())
}
