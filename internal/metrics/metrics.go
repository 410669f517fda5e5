package metrics

import (
	"log/slog"
	"net/http"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	prefix = "afxdp_"
	// patience is how long a scrape waits for a snapshot. Prometheus gives up after 10 s, if not told otherwise.
	patience = 2 * time.Second
	// maxScrapes is how many scrapes may wait at the same time.
	maxScrapes = 8

	success, failure = "success", "failure"
)

// Operation is something that the agent is asked to do, and of which the time is taken.
type Operation string

// The operations.
const (
	Allocate Operation = "allocate" // kubelet's
	Add      Operation = "add"      // the CNI plugin's, the agent's part of it
	Del      Operation = "del"
	Open     Operation = "open" // the pods'
)

// Metrics are the agent's metrics. Its methods may be called from any goroutine.
type Metrics struct {
	registry *prometheus.Registry
	observer *observer
	log      *slog.Logger

	durations    *prometheus.HistogramVec
	errors       *prometheus.CounterVec
	opens        *prometheus.CounterVec
	reloads      *prometheus.CounterVec
	lastReload   prometheus.Gauge
	lastReloadAt prometheus.Gauge
}

// New makes the metrics of an agent that has just read its configuration. look is called for a scrape, in a goroutine of
// its own and not twice at the same time; where it takes longer than a scrape waits, the scrape gets the snapshot before.
func New(version string, look func() Snapshot, log *slog.Logger) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		observer: &observer{look: look, patience: patience},
		log:      log,
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: prefix + "operation_duration_seconds", Help: "Time that operations took.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, []string{"operation"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "operation_errors_total", Help: "Operations that failed.",
		}, []string{"operation"}),
		opens: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "opens_total", Help: "Sockets that pods asked for, by what came of it.",
		}, []string{"pool", "result"}),
		reloads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "config_reloads_total", Help: "Changed configurations that were read after the start.",
		}, []string{"result"}),
		lastReload: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: prefix + "config_last_reload_successful",
			Help: "Whether the configuration, as it was last read, is in force.",
		}),
		lastReloadAt: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: prefix + "config_last_reload_success_timestamp_seconds",
			Help: "When the configuration in force was read.",
		}),
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: prefix + "build_info", Help: "The agent's version.",
		ConstLabels: prometheus.Labels{"version": version, "goversion": runtime.Version()},
	})
	build.Set(1)
	for _, op := range []Operation{Allocate, Add, Del, Open} {
		m.durations.WithLabelValues(string(op))
		m.errors.WithLabelValues(string(op))
	}
	for _, result := range []string{success, failure} {
		m.reloads.WithLabelValues(result)
	}
	m.lastReload.Set(1)
	m.lastReloadAt.SetToCurrentTime()
	m.registry.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		build, m.durations, m.errors, m.opens, m.reloads, m.lastReload, m.lastReloadAt, newNode(m.observer),
	)
	return m
}

// Close waits for a look that is under way. Scrapes get the last snapshot from then on.
func (m *Metrics) Close() error {
	m.observer.close()
	return nil
}

// Handler serves the metrics.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		ErrorLog:            slog.NewLogLogger(m.log.Handler(), slog.LevelError),
		ErrorHandling:       promhttp.ContinueOnError, // what can be told is
		MaxRequestsInFlight: maxScrapes,
	})
}

// Done counts an operation that began at a time and ended now, with an error or nil.
func (m *Metrics) Done(op Operation, begin time.Time, err error) {
	m.durations.WithLabelValues(string(op)).Observe(time.Since(begin).Seconds())
	if err != nil {
		m.errors.WithLabelValues(string(op)).Inc()
	}
}

// Opened counts a socket that a pod asked for: the pool, how long it took, and in one word what it was refused for, or
// "".
func (m *Metrics) Opened(pool string, took time.Duration, refusal string) {
	m.durations.WithLabelValues(string(Open)).Observe(took.Seconds())
	result := success
	if refusal != "" {
		m.errors.WithLabelValues(string(Open)).Inc()
		result = refusal
	}
	m.opens.WithLabelValues(pool, result).Inc()
}

// Reloaded counts a changed configuration that was read, and taken or refused.
func (m *Metrics) Reloaded(taken bool) {
	if !taken {
		m.reloads.WithLabelValues(failure).Inc()
		m.lastReload.Set(0)
		return
	}
	m.reloads.WithLabelValues(success).Inc()
	m.lastReload.Set(1)
	m.lastReloadAt.SetToCurrentTime()
}
