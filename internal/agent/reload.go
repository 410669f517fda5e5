package agent

import (
	"context"
	"errors"
	"path/filepath"
	"reflect"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/afxdp-project/afxdp/internal/config"
)

const (
	// quiet is how long nothing has to happen in the configuration's directory before the file is read: editors, and
	// kubelet for a ConfigMap, change it in several steps.
	quiet = 200 * time.Millisecond
	// unrest bounds that wait.
	unrest = 2 * time.Second
	// rereadPeriod is for changes that no notification tells, as of a file that the configuration is a link to.
	rereadPeriod = 30 * time.Second
)

// follow has a changed configuration file take effect. What is watched is its directory: the file that is changed is
// usually another one, by a rename of the file or of a link on the way to it.
func (a *Agent) follow(ctx context.Context) error {
	if a.config.ConfigFile == "" {
		return nil
	}
	var events <-chan fsnotify.Event // nil: none come
	var failures <-chan error
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		a.log.Warn("cannot watch the configuration: a change takes longer to be seen", "error", err, "period", rereadPeriod)
	} else {
		defer func() { _ = watcher.Close() }()
		events, failures = watcher.Events, watcher.Errors
	}
	ticker := time.NewTicker(rereadPeriod)
	defer ticker.Stop()
	dir, refused := filepath.Dir(a.config.ConfigFile), ""
	for {
		if watcher != nil {
			_ = watcher.Remove(dir) // of a directory that had the name before
			if err := watcher.Add(dir); err != nil {
				a.log.Warn("cannot watch the configuration's directory", "error", err, "period", rereadPeriod)
			}
		}
		refused = a.reread(refused)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case err := <-failures:
			a.log.Warn("lost events of the configuration's directory", "error", err)
		case <-events:
			calm(ctx, events)
		}
	}
}

// calm waits until nothing has happened for a while.
func calm(ctx context.Context, events <-chan fsnotify.Event) {
	end, timer := time.After(unrest), time.NewTimer(quiet)
	defer timer.Stop()
	for {
		select {
		case <-events:
			timer.Reset(quiet)
		case <-timer.C:
			return
		case <-end:
			return
		case <-ctx.Done():
			return
		}
	}
}

// reread reads the configuration and has it take effect if it is another one. What is wrong with it is told once:
// refused is what was told last, and what the result is for the next time.
func (a *Agent) reread(refused string) string {
	next, warnings, err := config.Load(a.config.ConfigFile)
	if err != nil {
		if err.Error() == refused {
			return refused
		}
		var mistakes config.Errors
		if errors.As(err, &mistakes) {
			for _, m := range mistakes {
				a.log.Error("mistake in the configuration", "mistake", m)
			}
		}
		a.log.Error("the changed configuration is refused as a whole; the one before stays in force", "error", err)
		a.reloaded(err)
		return err.Error()
	}
	now := a.inventory.current()
	same := reflect.DeepEqual(now, next)
	if same && refused == "" {
		return ""
	}
	for _, w := range warnings {
		a.log.Warn("configuration", "warning", w.String())
	}
	a.inventory.use(next)
	a.log.Info("configuration taken", "added", missing(next, now), "removed", missing(now, next), "changed", changed(now, next))
	a.reloaded(nil)
	a.rescan()
	return ""
}

// reloaded tells that a changed configuration was taken, or refused for an error.
func (a *Agent) reloaded(err error) {
	a.metrics.Reloaded(err == nil)
	if a.onReload != nil {
		a.onReload(err)
	}
}

// missing returns the names of the pools that only the first configuration has.
func missing(a, b *config.Config) []string {
	var names []string
	for _, p := range a.Pools {
		if _, ok := b.Pool(p.Name); !ok {
			names = append(names, p.Name)
		}
	}
	slices.Sort(names)
	return names
}

// changed returns the names of the pools that both configurations have, but not alike.
func changed(a, b *config.Config) []string {
	var names []string
	for _, p := range a.Pools {
		if other, ok := b.Pool(p.Name); ok && !reflect.DeepEqual(p, other) {
			names = append(names, p.Name)
		}
	}
	slices.Sort(names)
	return names
}
