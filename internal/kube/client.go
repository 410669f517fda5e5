package kube

import (
	"errors"
	"fmt"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// ErrNoCredentials is what errors.Is finds when there is no way to the API server: the process runs in no pod, or in one
// without a service account token.
var ErrNoCredentials = errors.New("no credentials for the API server")

// Connect returns a client of the API server that a kubeconfig file names, or without one of that of the pod that the
// process runs in. The server is not asked yet.
func Connect(kubeconfig string) (kubernetes.Interface, error) {
	config, err := restConfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	rest.AddUserAgent(config, "afxdp-deviceplugin")
	// Else five requests a second, on which an uninstallation of a few hundred nodes runs out of time. Few are made, most of
	// them one after the other, and the server has limits of its own.
	config.QPS = -1
	config.WarningHandler = rest.NoWarnings{} // would write to stderr in its own format
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("connect to the API server: %w", err)
	}
	return client, nil
}

func restConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrNoCredentials, err)
		}
		return config, nil
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig %s: %w", kubeconfig, err)
	}
	return config, nil
}
