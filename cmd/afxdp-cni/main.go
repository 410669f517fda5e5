// Command afxdp-cni is the CNI plugin that gives pods their AF_XDP queues. See docs/cni.md.
package main

import (
	"os"

	"github.com/afxdp-project/afxdp/internal/cni"
)

// version is set by the linker (-X main.version=v1.2.3); empty, the module's is shown.
var version string

func main() { os.Exit(cni.Main(version, os.Args[1:])) }
