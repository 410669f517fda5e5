// Package fakekubelet stands in for kubelet where there is no cluster. It speaks kubelet's real gRPC APIs over Unix
// sockets below a root directory of the caller's: it registers device plugins and watches their devices, admits pods,
// allocates devices to their containers, starts those, keeps the device checkpoint, and serves pod-resources. It
// behaves as kubelet 1.37 does where a device plugin or a CNI plugin can tell, its peculiarities included.
package fakekubelet

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"

	"google.golang.org/grpc"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// Config says how a stand-in behaves.
type Config struct {
	// Root is kubelet's root directory. Sockets are made below it, so its path must be short (about 70 bytes).
	Root string
	// ListInitContainers has pod-resources list ordinary init containers, which kubelet leaves out.
	ListInitContainers bool
	// GetDisabled has pod-resources refuse Get, as kubelet does with its feature switched off.
	GetDisabled bool
	// GetUnimplemented has pod-resources not know Get, as kubelet before 1.27.
	GetUnimplemented bool
	// RateLimit bounds the calls to pod-resources per second, with a burst of 10; kubelet has 100. 0: no limit.
	RateLimit int
}

// Kubelet is a running stand-in. Its methods may be called concurrently, except for Stop, Resume, Restart and Close,
// which are for one caller at a time.
type Kubelet struct {
	cfg     Config
	limiter *limiter

	servers []*grpc.Server
	serving sync.WaitGroup // the servers
	running sync.WaitGroup // the plugins' streams

	mu            sync.Mutex
	changed       chan struct{} // closed and made anew with each change of what follows
	stopped       bool
	clients       map[string]*client                      // by resource
	devices       map[string]map[string]*pluginapi.Device // by resource and id, as last listed
	registrations map[string]int
	updates       map[string]int
	pods          []Pod
	allocated     map[allocationKey]allocation // of pods that are gone too, until kubelet cleans up

	admission  sync.Mutex // one pod at a time, as in kubelet
	checkpoint sync.Mutex // one writer
}

// Start runs a stand-in. The caller closes it.
func Start(cfg Config) (*Kubelet, error) {
	k := &Kubelet{
		cfg:           cfg,
		limiter:       newLimiter(cfg.RateLimit),
		changed:       make(chan struct{}),
		registrations: make(map[string]int),
		updates:       make(map[string]int),
	}
	if err := k.Resume(true); err != nil {
		return nil, err
	}
	return k, nil
}

// Close stops the stand-in. Checkpoint and directories stay.
func (k *Kubelet) Close() error { return k.Stop() }

// Restart does what a restart of kubelet does: Stop, then Resume.
func (k *Kubelet) Restart(wipe bool) error {
	if err := k.Stop(); err != nil {
		return err
	}
	return k.Resume(wipe)
}

// Stop closes kubelet's sockets and its connections to plugins. What the checkpoint has not is forgotten, except for
// the pods themselves, which the API server would tell of again.
func (k *Kubelet) Stop() error {
	k.mu.Lock()
	k.stopped = true
	for resource, c := range k.clients {
		_ = c.conn.Close()
		delete(k.clients, resource)
	}
	k.broadcast()
	k.mu.Unlock()
	for _, s := range k.servers {
		s.Stop()
	}
	k.servers = nil
	k.serving.Wait()
	k.running.Wait()
	return nil
}

// Resume starts a stand-in that was stopped. With wipe, which is what kubelet does, all sockets in the directory of
// the device plugins are removed first. Plugins have to register again.
func (k *Kubelet) Resume(wipe bool) error {
	plugins, resources := k.PluginDir(), filepath.Join(k.cfg.Root, "pod-resources")
	for _, dir := range []string{plugins, resources} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return fmt.Errorf("make kubelet's directory: %w", err)
		}
	}
	if wipe {
		if err := removeSockets(plugins); err != nil {
			return fmt.Errorf("wipe %s: %w", plugins, err)
		}
	}
	k.mu.Lock()
	k.stopped = false
	k.clients = make(map[string]*client)
	k.devices = make(map[string]map[string]*pluginapi.Device)
	err := k.readCheckpoint()
	k.mu.Unlock()
	if err != nil {
		return err
	}
	registration := grpc.NewServer(grpc.WaitForHandlers(true))
	pluginapi.RegisterRegistrationServer(registration, &registrar{k: k})
	err = k.serve(registration, filepath.Join(plugins, "kubelet.sock"))
	if err == nil {
		podServer := grpc.NewServer(grpc.WaitForHandlers(true), grpc.UnaryInterceptor(k.limiter.intercept))
		podresources.RegisterPodResourcesListerServer(podServer, &lister{k: k})
		err = k.serve(podServer, filepath.Join(resources, "kubelet.sock"))
	}
	if err != nil {
		return errors.Join(err, k.Stop())
	}
	return nil
}

// PluginDir returns the directory of the device plugins' sockets.
func (k *Kubelet) PluginDir() string { return filepath.Join(k.cfg.Root, "device-plugins") }

func (k *Kubelet) serve(s *grpc.Server, socket string) error {
	// A socket that was left behind.
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("serve kubelet's socket: %w", err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return fmt.Errorf("serve kubelet's socket: %w", err)
	}
	k.servers = append(k.servers, s)
	k.serving.Go(func() { _ = s.Serve(l) }) // ends with Stop, without an error
	return nil
}

func removeSockets(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Type()&fs.ModeSocket != 0 {
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

// broadcast wakes those who wait for a change. k.mu is held.
func (k *Kubelet) broadcast() {
	close(k.changed)
	k.changed = make(chan struct{})
}
