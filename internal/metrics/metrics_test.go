package metrics

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/afxdp-project/afxdp/pkg/xsk"
)

// full is a snapshot of which every metric is made.
func full() Snapshot {
	return Snapshot{
		Taken: time.Unix(1700000000, 0), Pools: []string{"fast", "slow"},
		Devices: []Device{{Pool: "fast"}, {Pool: "fast"}, {"fast", "no_link"}, {"gone", "held"}},
		Leases:  []Lease{{"fast", "active"}, {"fast", "held"}, {"gone", "active"}}, Allocations: map[string]int{"fast": 2},
		Sockets: []Socket{
			{
				Pool: "fast", Netdev: "eth1", Queue: 3, Namespace: "default", Pod: "a", BusyPolling: true, ZeroCopy: true,
				Frames: 4096, RXPackets: new(uint64(77)),
				Statistics: &xsk.Statistics{
					RXDropped: 1, RXInvalid: 2, TXInvalid: 3, RXRingFull: 4, FillRingEmpty: 5, TXRingEmpty: 6,
				},
			},
			{Pool: "fast", Netdev: "eth\xff", Queue: 0, Namespace: "default", Pod: "b"}, // of which little is known
		},
		Unclaimed: []Unclaimed{{"eth1", 2, 9}}, Chained: new(true),
	}
}

func newMetrics(look func() Snapshot) *Metrics {
	m := New("v1", look, slog.New(slog.DiscardHandler))
	m.Opened("fast", time.Millisecond, "")
	m.Opened("fast", time.Millisecond, "busy")
	return m
}

func TestSnapshotIsToldAsMetrics(t *testing.T) {
	m := newMetrics(full)
	want := `
# HELP afxdp_allocations Allocations whose socket is served.
# TYPE afxdp_allocations gauge
afxdp_allocations{pool="fast"} 2
afxdp_allocations{pool="slow"} 0
# HELP afxdp_busy_polling_active Whether the socket busy-polls now.
# TYPE afxdp_busy_polling_active gauge
afxdp_busy_polling_active{namespace="default",netdev="eth1",pod="a",pool="fast",queue="3"} 1
afxdp_busy_polling_active{namespace="default",netdev="eth�",pod="b",pool="fast",queue="0"} 0
# HELP afxdp_cni_chained Whether the node's network configuration calls the CNI plugin.
# TYPE afxdp_cni_chained gauge
afxdp_cni_chained 1
# HELP afxdp_devices Devices of the pools, by health and what is in its way.
# TYPE afxdp_devices gauge
afxdp_devices{pool="fast",reason="",state="healthy"} 2
afxdp_devices{pool="fast",reason="no_link",state="unhealthy"} 1
afxdp_devices{pool="gone",reason="held",state="unhealthy"} 1
afxdp_devices{pool="slow",reason="",state="healthy"} 0
# HELP afxdp_drops_total Packets and descriptors that were lost.
# TYPE afxdp_drops_total counter
afxdp_drops_total{cause="rx_dropped",namespace="default",netdev="eth1",pod="a",pool="fast",queue="3"} 1
afxdp_drops_total{cause="rx_invalid_descs",namespace="default",netdev="eth1",pod="a",pool="fast",queue="3"} 2
afxdp_drops_total{cause="rx_ring_full",namespace="default",netdev="eth1",pod="a",pool="fast",queue="3"} 4
afxdp_drops_total{cause="tx_invalid_descs",namespace="default",netdev="eth1",pod="a",pool="fast",queue="3"} 3
# HELP afxdp_leases Leases of devices.
# TYPE afxdp_leases gauge
afxdp_leases{pool="fast",state="active"} 1
afxdp_leases{pool="fast",state="held"} 1
afxdp_leases{pool="gone",state="active"} 1
afxdp_leases{pool="slow",state="active"} 0
# HELP afxdp_rx_fill_ring_empty_total Times that a packet found no frame in the fill ring.
# TYPE afxdp_rx_fill_ring_empty_total counter
afxdp_rx_fill_ring_empty_total{namespace="default",netdev="eth1",pod="a",pool="fast",queue="3"} 5
# HELP afxdp_rx_packets_total Packets that the socket's queue received, as its driver counts them.
# TYPE afxdp_rx_packets_total counter
afxdp_rx_packets_total{namespace="default",netdev="eth1",pod="a",pool="fast",queue="3"} 77
# HELP afxdp_snapshot_timestamp_seconds When the node was looked at for the metrics of devices, leases and sockets.
# TYPE afxdp_snapshot_timestamp_seconds gauge
afxdp_snapshot_timestamp_seconds 1.7e+09
# HELP afxdp_tx_ring_empty_total Times that the driver found nothing to send; no loss.
# TYPE afxdp_tx_ring_empty_total counter
afxdp_tx_ring_empty_total{namespace="default",netdev="eth1",pod="a",pool="fast",queue="3"} 6
# HELP afxdp_umem_frames Frames of the UMEM that the socket uses.
# TYPE afxdp_umem_frames gauge
afxdp_umem_frames{namespace="default",netdev="eth1",pod="a",pool="fast",queue="3"} 4096
# HELP afxdp_unclaimed_packets_total Packets that found no socket on their queue and went on to the node's stack.
# TYPE afxdp_unclaimed_packets_total counter
afxdp_unclaimed_packets_total{netdev="eth1",queue="2"} 9
# HELP afxdp_zero_copy Whether the socket is in zero-copy mode.
# TYPE afxdp_zero_copy gauge
afxdp_zero_copy{namespace="default",netdev="eth1",pod="a",pool="fast",queue="3"} 1
afxdp_zero_copy{namespace="default",netdev="eth�",pod="b",pool="fast",queue="0"} 0
`
	if err := testutil.CollectAndCompare(newNode(m.observer), strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}

func TestWhatIsDoneIsCounted(t *testing.T) {
	m := newMetrics(full)
	m.Done(Add, time.Now().Add(-3*time.Second), errors.New("no"))
	m.Done(Add, time.Now(), nil)
	m.Reloaded(true)
	read := testutil.ToFloat64(m.lastReloadAt)
	m.Reloaded(false)
	want := `
# HELP afxdp_config_last_reload_successful Whether the configuration, as it was last read, is in force.
# TYPE afxdp_config_last_reload_successful gauge
afxdp_config_last_reload_successful 0
# HELP afxdp_config_reloads_total Changed configurations that were read after the start.
# TYPE afxdp_config_reloads_total counter
afxdp_config_reloads_total{result="failure"} 1
afxdp_config_reloads_total{result="success"} 1
# HELP afxdp_opens_total Sockets that pods asked for, by what came of it.
# TYPE afxdp_opens_total counter
afxdp_opens_total{pool="fast",result="busy"} 1
afxdp_opens_total{pool="fast",result="success"} 1
# HELP afxdp_operation_errors_total Operations that failed.
# TYPE afxdp_operation_errors_total counter
afxdp_operation_errors_total{operation="add"} 1
afxdp_operation_errors_total{operation="allocate"} 0
afxdp_operation_errors_total{operation="del"} 0
afxdp_operation_errors_total{operation="open"} 1
`
	err := testutil.GatherAndCompare(m.registry, strings.NewReader(want), "afxdp_config_last_reload_successful",
		"afxdp_config_reloads_total", "afxdp_opens_total", "afxdp_operation_errors_total")
	if err != nil {
		t.Error(err)
	}
	if now := testutil.ToFloat64(m.lastReloadAt); now != read || now < float64(time.Now().Unix()-60) {
		t.Errorf("the configuration in force was read at %f; before one was refused it was %f", now, read)
	}
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "afxdp_operation_duration_seconds" {
			continue
		}
		for _, metric := range f.Metric {
			h, op := metric.Histogram, metric.Label[0].GetValue()
			if want := map[string]uint64{"add": 2, "open": 2}[op]; h.GetSampleCount() != want {
				t.Errorf("%d operations %s, want %d", h.GetSampleCount(), op, want)
			}
			if op == "add" && (h.GetSampleSum() < 3 || h.GetSampleSum() > 4) {
				t.Errorf("both took %f s, want a little more than 3", h.GetSampleSum())
			}
		}
	}
}

// A scrape gets what there is when the node takes longer to look at than it waits, and looks do not pile up.
func TestScrapeDoesNotWaitForASlowNode(t *testing.T) {
	looks, slow := make(chan struct{}, 100), make(chan struct{})
	quick := true
	m := newMetrics(func() Snapshot {
		looks <- struct{}{}
		if !quick {
			<-slow
		}
		return full()
	})
	scrape := func() string {
		t.Helper()
		w := httptest.NewRecorder()
		m.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		if w.Code != 200 {
			t.Fatalf("scrape: %d: %s", w.Code, w.Body)
		}
		return w.Body.String()
	}
	m.observer.patience = time.Minute
	if !strings.Contains(scrape(), `afxdp_devices{pool="fast",reason="",state="healthy"} 2`) {
		t.Error("the first scrape has no devices")
	}
	quick, m.observer.patience = false, 20*time.Millisecond
	for range 5 {
		if !strings.Contains(scrape(), `afxdp_devices{pool="fast",reason="",state="healthy"} 2`) {
			t.Error("a scrape of a slow node has no devices")
		}
	}
	if len(looks) != 2 {
		t.Errorf("the node was looked at %d times, want 2", len(looks))
	}
	close(slow)
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	scrape()
	if len(looks) != 2 {
		t.Error("the node was looked at after Close")
	}
}

func TestNamesFollowPrometheusRules(t *testing.T) {
	problems, err := testutil.GatherAndLint(newMetrics(full).registry)
	if err != nil || len(problems) > 0 {
		t.Error(problems, err)
	}
}

const docsPath = "../../docs/metrics.md"

// gathered returns the metrics that m has, each with its type and its labels, sorted.
func gathered(t *testing.T, m *Metrics) []string {
	t.Helper()
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), prefix) {
			continue
		}
		labels := make(map[string]bool)
		for _, metric := range f.Metric {
			for _, l := range metric.Label {
				labels[l.GetName()] = true
			}
		}
		row := []string{f.GetName(), strings.ToLower(f.GetType().String())}
		rows = append(rows, strings.Join(append(row, slices.Sorted(maps.Keys(labels))...), " "))
	}
	return rows
}

// docs/metrics.md is the reference: its tables have every metric with type and labels, and no other.
func TestDocumentationHasEveryMetric(t *testing.T) {
	m := newMetrics(full)
	have := gathered(t, m)
	// The snapshot above is full only if everything that is registered was gathered.
	described := make(chan *prometheus.Desc, 1000)
	m.registry.Describe(described)
	close(described)
	for d := range described {
		name := regexp.MustCompile(`fqName: "(afxdp_\w+)"`).FindStringSubmatch(d.String())
		if name != nil && !slices.ContainsFunc(have, func(row string) bool { return strings.HasPrefix(row, name[1]+" ") }) {
			t.Errorf("%s is registered and was not gathered", name[1])
		}
	}

	docs, err := os.ReadFile(docsPath)
	if err != nil {
		t.Fatal(err)
	}
	var told []string
	for _, row := range regexp.MustCompile("(?m)^\\| `(afxdp_\\w+)` \\| (\\w+) \\|([^|]*)\\|").FindAllSubmatch(docs, -1) {
		labels := regexp.MustCompile(`\w+`).FindAllString(string(row[3]), -1)
		slices.Sort(labels)
		told = append(told, strings.TrimSpace(fmt.Sprintf("%s %s %s", row[1], row[2], strings.Join(labels, " "))))
	}
	slices.Sort(told)
	if !slices.Equal(have, told) {
		t.Errorf("metrics:\n%s\ndocumentation:\n%s", strings.Join(have, "\n"), strings.Join(told, "\n"))
	}
	// Wherever else the text names a metric, there is one.
	for _, name := range regexp.MustCompile(`afxdp_\w+`).FindAllString(string(docs), -1) {
		if !known(name, have) {
			t.Errorf("the documentation speaks of %s, which there is not", name)
		}
	}
}

// known reports whether there is a metric of a name, or a histogram with that series.
func known(name string, have []string) bool {
	return slices.ContainsFunc(have, func(row string) bool {
		metric, rest, _ := strings.Cut(row, " ")
		series, is := strings.CutPrefix(name, metric)
		return is && (series == "" || strings.HasPrefix(rest, "histogram") && slices.Contains([]string{"_bucket", "_sum", "_count"}, series))
	})
}
