// Command chart writes what is made from the Helm chart: deployments/, the same objects as plain manifests, and the table
// of values in the chart's README. It takes the repository's root.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

const chartDir = "charts/afxdp"

// The release that deployments/ is.
const (
	releaseName = "afxdp"
	namespace   = "afxdp-system"
)

func main() {
	if len(os.Args) != 2 {
		_, _ = fmt.Fprintln(os.Stderr, "Usage: chart DIRECTORY")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "chart:", err)
		os.Exit(1)
	}
}

func write(root string) error {
	files, err := derived(root)
	if err != nil {
		return err
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(root, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// derived returns the files that are made from the chart, by their paths in the repository.
func derived(root string) (map[string]string, error) {
	install, uninstall, err := manifests(root)
	if err != nil {
		return nil, err
	}
	text, err := readme(root)
	if err != nil {
		return nil, err
	}
	return map[string]string{
		"deployments/afxdp.yaml": install, "deployments/uninstall.yaml": uninstall, chartDir + "/README.md": text,
	}, nil
}

const generated = "# Generated from charts/afxdp by `make manifests`: change the chart, not this file.\n"

const installHead = generated + `#
#   kubectl apply -f deployments/afxdp.yaml
#   kubectl -n afxdp-system edit configmap afxdp    # write your pools (docs/configuration.md)
---
# The agent uses the node's network and directories: the pod security standards call that privileged.
apiVersion: v1
kind: Namespace
metadata:
  name: afxdp-system
  labels:
    pod-security.kubernetes.io/enforce: privileged
`

const uninstallHead = generated + `# It has every agent put its node back and report. Then delete the rest:
#
#   kubectl apply -f deployments/uninstall.yaml
#   kubectl -n afxdp-system logs -f job/afxdp-uninstall
#   kubectl delete -f deployments/uninstall.yaml -f deployments/afxdp.yaml
`

// manifests returns the objects of the chart's default values, and those of the uninstallation.
func manifests(root string) (install, uninstall string, err error) {
	files, _, err := render(filepath.Join(root, chartDir), release{Name: releaseName, Namespace: namespace})
	if err != nil {
		return "", "", err
	}
	install, uninstall = installHead, uninstallHead
	for _, f := range files {
		for _, object := range f.Objects {
			object = "---\n" + withoutHelm(object)
			switch {
			case f.Template == "uninstall.yaml":
				uninstall += object
			case !strings.HasPrefix(f.Template, "tests/"):
				install += object
			}
		}
	}
	return install, uninstall, nil
}

var (
	helmLabels = regexp.MustCompile(`(?m)^ *(helm\.sh/chart|app\.kubernetes\.io/managed-by): .*\n`)
	helmHooks  = regexp.MustCompile(`(?m)^  annotations:\n(    (#.*|helm\.sh/.*)\n)+`)
)

// withoutHelm removes what only helm reads or writes.
func withoutHelm(object string) string {
	return helmHooks.ReplaceAllString(helmLabels.ReplaceAllString(object, ""), "")
}
