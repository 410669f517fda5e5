package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"time"

	"golang.org/x/net/netutil"
	"golang.org/x/sync/errgroup"
)

// serveHTTP serves /healthz (the process works), /readyz (kubelet has the devices of all pools), /statusz
// (devices, leases, losses, as JSON) and /metrics at one address, and /metrics alone at another.
func (a *Agent) serveHTTP(ctx context.Context) error {
	scrapes := http.NewServeMux()
	scrapes.Handle("GET /metrics", a.metrics.Handler())
	all := http.NewServeMux()
	all.Handle("GET /metrics", scrapes)
	all.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	all.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := a.ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, "ok")
		// Not a condition: pods may get their queues by Multus, and a rollout must not stop at such a node.
		if a.chain != nil && !a.chain.Status().Chained {
			_, _ = fmt.Fprintln(w, "CNI plugin not chained:", a.chain.Status().Reason)
		}
	})
	all.HandleFunc("GET /statusz", a.serveStatus)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return serveAt(ctx, "health and metrics", a.config.HTTPAddress, all) })
	g.Go(func() error { return serveAt(ctx, "metrics", a.config.MetricsAddress, scrapes) })
	return g.Wait()
}

// maxHTTPConnections is how many connections an HTTP address has at once; more wait.
const maxHTTPConnections = 32

// serveAt serves until ctx is done; nothing at an empty address.
func serveAt(ctx context.Context, what, address string, h http.Handler) error {
	if address == "" {
		return nil
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("serve %s: %w", what, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	// Whoever reaches the address must not use up the descriptors that pods' sockets need.
	if err := server.Serve(netutil.LimitListener(listener, maxHTTPConnections)); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", what, err)
	}
	return nil
}

// ready returns nil when kubelet has the node's devices.
func (a *Agent) ready() error {
	if a.isWithdrawn() {
		return nil // there is nothing left to wait for
	}
	if err := a.registered(); err != nil {
		return err
	}
	if !a.announced.Load() {
		return errors.New("kubelet is told of the devices once the node's CNI configuration has been looked at")
	}
	return nil
}

// registered returns nil when the node was looked at and kubelet knows all pools.
func (a *Agent) registered() error {
	if !a.scanned.Load() {
		return errors.New("the node's NICs have not been looked at yet")
	}
	var errs []error
	registered := a.plugin.Registered()
	for _, pool := range slices.Sorted(maps.Keys(registered)) {
		if err := registered[pool]; err != nil {
			errs = append(errs, fmt.Errorf("pool %s: %w", pool, err))
		}
	}
	return errors.Join(errs...)
}
