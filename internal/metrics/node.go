package metrics

import (
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// The states of a device.
const (
	healthy   = "healthy"
	unhealthy = "unhealthy"
)

// node makes metrics of one snapshot for each scrape, so that they fit together. There are as many series as the node
// has pools and leased queues.
type node struct {
	observer *observer

	snapshot, chained, devices, leases, allocations, unclaimed                  *prometheus.Desc
	drops, fillRingEmpty, txRingEmpty, busyPolling, zeroCopy, frames, rxPackets *prometheus.Desc
}

func newNode(o *observer) *node {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prefix+name, help, labels, nil)
	}
	socket := func(name, help string, more ...string) *prometheus.Desc {
		return desc(name, help, append([]string{"pool", "netdev", "queue", "namespace", "pod"}, more...)...)
	}
	return &node{
		observer: o,
		snapshot: desc("snapshot_timestamp_seconds",
			"When the node was looked at for the metrics of devices, leases and sockets."),
		chained:     desc("cni_chained", "Whether the node's network configuration calls the CNI plugin."),
		devices:     desc("devices", "Devices of the pools, by health and what is in its way.", "pool", "state", "reason"),
		leases:      desc("leases", "Leases of devices.", "pool", "state"),
		allocations: desc("allocations", "Allocations whose socket is served.", "pool"),
		unclaimed: desc("unclaimed_packets_total",
			"Packets that found no socket on their queue and went on to the node's stack.", "netdev", "queue"),
		drops:         socket("drops_total", "Packets and descriptors that were lost.", "cause"),
		fillRingEmpty: socket("rx_fill_ring_empty_total", "Times that a packet found no frame in the fill ring."),
		txRingEmpty:   socket("tx_ring_empty_total", "Times that the driver found nothing to send; no loss."),
		busyPolling:   socket("busy_polling_active", "Whether the socket busy-polls now."),
		zeroCopy:      socket("zero_copy", "Whether the socket is in zero-copy mode."),
		frames:        socket("umem_frames", "Frames of the UMEM that the socket uses."),
		rxPackets:     socket("rx_packets_total", "Packets that the socket's queue received, as its driver counts them."),
	}
}

// Describe implements [prometheus.Collector].
func (n *node) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		n.snapshot, n.chained, n.devices, n.leases, n.allocations, n.unclaimed,
		n.drops, n.fillRingEmpty, n.txRingEmpty, n.busyPolling, n.zeroCopy, n.frames, n.rxPackets,
	} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (n *node) Collect(ch chan<- prometheus.Metric) {
	s := n.observer.latest()
	if s.Taken.IsZero() {
		return
	}
	emit := emitter(ch)
	emit.gauge(n.snapshot, float64(s.Taken.UnixNano())/1e9)
	if s.Chained != nil {
		emit.gauge(n.chained, bit(*s.Chained))
	}
	for labels, count := range s.countDevices() {
		emit.gauge(n.devices, float64(count), labels[:]...)
	}
	for labels, count := range s.countLeases() {
		emit.gauge(n.leases, float64(count), labels[:]...)
	}
	for pool, count := range s.countAllocations() {
		emit.gauge(n.allocations, float64(count), pool)
	}
	for _, socket := range s.Sockets {
		n.socket(emit, socket)
	}
	for _, u := range s.Unclaimed {
		emit.counter(n.unclaimed, u.Packets, u.Netdev, strconv.Itoa(u.Queue))
	}
}

func (n *node) socket(emit emitter, s Socket) {
	labels := []string{s.Pool, s.Netdev, strconv.Itoa(s.Queue), s.Namespace, s.Pod}
	if st := s.Statistics; st != nil {
		// Under the kernel's names (struct xdp_statistics).
		for cause, count := range map[string]uint64{
			"rx_dropped": st.RXDropped, "rx_ring_full": st.RXRingFull,
			"rx_invalid_descs": st.RXInvalid, "tx_invalid_descs": st.TXInvalid,
		} {
			emit.counter(n.drops, count, append(labels[:len(labels):len(labels)], cause)...)
		}
		emit.counter(n.fillRingEmpty, st.FillRingEmpty, labels...)
		emit.counter(n.txRingEmpty, st.TXRingEmpty, labels...)
	}
	emit.gauge(n.busyPolling, bit(s.BusyPolling), labels...)
	emit.gauge(n.zeroCopy, bit(s.ZeroCopy), labels...)
	if s.Frames > 0 {
		emit.gauge(n.frames, float64(s.Frames), labels...)
	}
	if s.RXPackets != nil {
		emit.counter(n.rxPackets, *s.RXPackets, labels...)
	}
}

// countDevices returns how many devices there are by pool, state and reason. Those that are healthy are counted also
// where there is none.
func (s Snapshot) countDevices() map[[3]string]int {
	count := make(map[[3]string]int)
	for _, pool := range s.Pools {
		count[[3]string{pool, healthy, ""}] = 0
	}
	for _, d := range s.Devices {
		state := healthy
		if d.Cause != "" {
			state = unhealthy
		}
		count[[3]string{d.Pool, state, d.Cause}]++
	}
	return count
}

// countLeases returns how many leases there are by pool and state. Active ones are counted also where there is none.
func (s Snapshot) countLeases() map[[2]string]int {
	count := make(map[[2]string]int)
	for _, pool := range s.Pools {
		count[[2]string{pool, "active"}] = 0
	}
	for _, l := range s.Leases {
		count[[2]string{l.Pool, l.State}]++
	}
	return count
}

// countAllocations returns how many allocations there are, also of pools that have none.
func (s Snapshot) countAllocations() map[string]int {
	count := make(map[string]int)
	for _, pool := range s.Pools {
		count[pool] = 0
	}
	for pool, n := range s.Allocations {
		count[pool] = n
	}
	return count
}

type emitter chan<- prometheus.Metric

func (e emitter) gauge(d *prometheus.Desc, value float64, labels ...string) {
	e.emit(d, prometheus.GaugeValue, value, labels)
}

func (e emitter) counter(d *prometheus.Desc, value uint64, labels ...string) {
	e.emit(d, prometheus.CounterValue, float64(value), labels)
}

// emit emits one value. The name of a NIC may have any byte but a slash; a label is UTF-8.
func (e emitter) emit(d *prometheus.Desc, kind prometheus.ValueType, value float64, labels []string) {
	valid := make([]string, len(labels))
	for i, l := range labels {
		valid[i] = strings.ToValidUTF8(l, "\uFFFD")
	}
	e <- prometheus.MustNewConstMetric(d, kind, value, valid...)
}

func bit(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
