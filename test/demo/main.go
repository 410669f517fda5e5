// Command demo hands two queues of a NIC to an unprivileged process, end to end, without a cluster: the node agent, the
// CNI plugin and afxdp-bench are the real programs; a stand-in speaks kubelet's gRPC APIs, a veth pair is the NIC, and
// network, mount and PID namespaces are node and pod. It needs root and changes nothing on the machine: all that it
// makes lives in namespaces that go with it, however it ends.
//
// It shows what it does on stderr, and its last line, on stdout, is a JSON object with the outcome.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/pflag"
)

// The program starts itself in three roles, which it knows by the name that it is called.
const (
	roleNode      = "demo-node"      // in the namespaces of the node
	roleAgent     = "demo-agent"     // becomes the agent, with the capabilities that it needs
	roleContainer = "demo-container" // sets up the pod's container and becomes its program
)

const usage = `demo hands two NIC queues to an unprivileged process, end to end, on this machine and without a cluster.

It needs root and Linux 6.4 or later, takes about ten seconds and leaves nothing behind. "make demo" builds what it
needs and runs it.

Flags:
`

func main() {
	switch os.Args[0] {
	case roleNode:
		os.Exit(nodeMain(os.Args[1:]))
	case roleAgent:
		fmt.Fprintln(os.Stderr, "start the agent:", agentMain(os.Args[1:])) // it returns only when it fails
		os.Exit(1)
	case roleContainer:
		fmt.Fprintln(os.Stderr, "set up the container:", containerMain()) // it returns only when it fails
		os.Exit(1)
	}
	os.Exit(command(os.Args[1:], os.Stdout, os.Stderr))
}

// command returns 0 only when all that the demo claims was seen, 1 when it was not, and 2 when it was called wrongly.
func command(args []string, stdout, stderr io.Writer) int {
	flags := pflag.NewFlagSet("demo", pflag.ContinueOnError)
	flags.SetOutput(stderr)
	bin := flags.String("bin", "build/bin", "directory with afxdp-deviceplugin, afxdp-cni, afxdp-bench and the CNI plugin loopback")
	logs := flags.Bool("logs", false, "show the agent's log at the end, also when all went well")
	flags.Usage = func() { _, _ = fmt.Fprint(stderr, usage+flags.FlagUsages()) }
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return 0
		}
		_, _ = fmt.Fprintln(stderr, "demo:", err)
		return 2
	}
	if flags.NArg() > 0 {
		_, _ = fmt.Fprintf(stderr, "demo: unexpected argument %q\n", flags.Arg(0))
		return 2
	}
	if err := check(*bin); err != nil {
		_, _ = fmt.Fprintln(stderr, "demo:", err)
		return 2
	}
	outcome, err := onHost(*bin, *logs)
	failures := []error{err}
	if err == nil {
		failures = outcome.failures()
	}
	for _, f := range failures {
		_, _ = fmt.Fprintln(stderr, "demo: failed:", f)
	}
	if err := outcome.write(stdout); err != nil {
		_, _ = fmt.Fprintln(stderr, "demo: failed:", err)
		return 1
	}
	return min(len(failures), 1)
}
