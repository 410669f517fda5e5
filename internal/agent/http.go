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
)

// serveHTTP serves /healthz (the process works), /readyz (kubelet knows all pools and the node was looked at) and /statusz
// (devices, leases, losses, as JSON).
func (a *Agent) serveHTTP(ctx context.Context) error {
	if a.config.HTTPAddress == "" {
		return nil
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := a.ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /statusz", a.serveStatus)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", a.config.HTTPAddress)
	if err != nil {
		return fmt.Errorf("serve health: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve health: %w", err)
	}
	return nil
}

func (a *Agent) ready() error {
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
