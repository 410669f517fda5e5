package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/afxdp-project/afxdp/internal/testutil"
	"github.com/afxdp-project/afxdp/internal/xdpprog"
	"github.com/afxdp-project/afxdp/pkg/busypoll"
	"github.com/afxdp-project/afxdp/pkg/client"
	"github.com/afxdp-project/afxdp/pkg/xsk"
)

const patience = 20 * time.Second

// fakeLease is a connection to the agent that the test ends.
type fakeLease struct {
	done chan struct{}
	err  error
}

func newLease() *fakeLease                 { return &fakeLease{done: make(chan struct{})} }
func (f *fakeLease) Done() <-chan struct{} { return f.done }
func (f *fakeLease) Err() error            { return f.err }
func (f *fakeLease) Pool() string          { return "fast" }
func (f *fakeLease) Resumes() uint64       { return 3 }

const queues = 2

// veth returns the ports of both ends of a veth pair.
func veth(t *testing.T) (near, far []*port) {
	t.Helper()
	testutil.Veth(t, testutil.VethPair{Near: "bnear", Far: "bfar", Queues: queues})
	return openPorts(t, "bnear"), openPorts(t, "bfar")
}

func openPorts(t *testing.T, name string) (ports []*port) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ifi, err := net.InterfaceByName(name)
	must(err)
	prog, err := xdpprog.Attach(xdpprog.Config{Ifindex: ifi.Index, Queues: queues, PinDir: "/sys/fs/bpf/" + name})
	must(err)
	t.Cleanup(func() {
		if err := prog.Detach(); err != nil {
			t.Error(err)
		}
	})
	const perQueue = 256
	umem, err := xsk.NewUMEM(xsk.UMEMConfig{Frames: queues * perQueue, FrameSize: 2048})
	must(err)
	t.Cleanup(func() { _ = umem.Close() })
	var first *xsk.Socket
	for i := range queues {
		socket, err := xsk.NewSocket()
		must(err)
		t.Cleanup(func() { _ = socket.Close() })
		if first == nil {
			must(socket.RegisterUMEM(umem.Bytes(), umem.Config))
		}
		sizes := xsk.RingSizes{Fill: 128, Completion: 128, RX: 128, TX: 128}
		must(socket.SetRings(sizes))
		must(socket.Bind(xsk.BindConfig{
			Ifindex: ifi.Index, Queue: uint32(i), Mode: xsk.ZeroCopyOff, NeedWakeup: true, Shared: first,
		}))
		rings, err := socket.Map(sizes)
		must(err)
		t.Cleanup(func() { _ = rings.Close() })
		must(prog.Insert(i, socket.FD()))
		if first == nil {
			first = socket
		}
		p := &port{device: client.Device{Netdev: name, Queue: i, NUMANode: -1}, mode: client.Mode{NeedWakeup: true}}
		p.ask = func() (busypoll.Status, error) { return busypoll.Status{Reason: "busy polling is off in a test"}, nil }
		p.queue = &busypoll.Queue{
			Name: p.name(), Socket: socket, Rings: rings, UMEM: umem,
			Frames: xsk.NewFrames(umem.Config, uint32(i*perQueue), perQueue),
		}
		ports = append(ports, p)
	}
	return ports
}

func prepared(t *testing.T, ports []*port, l lease, args ...string) *run {
	t.Helper()
	r, err := newRun(parse(t, args...), ports, l)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// started runs r in the background.
func started(ctx context.Context, r *run) <-chan error {
	done := make(chan error, 1)
	go func() { done <- r.run(ctx, &liveLine{}) }()
	return done
}

func wait(t *testing.T, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(patience):
		t.Fatal("the run goes on")
		return nil
	}
}

func TestReceivesWhatIsSent(t *testing.T) {
	nearPorts, farPorts := veth(t)
	near := prepared(t, nearPorts, newLease(), "rxdrop", "-n", "5000")
	far := prepared(t, farPorts, newLease(), "txonly", "--packet-size", "100")
	ctx, cancel := context.WithCancel(t.Context())
	received, sent := started(t.Context(), near), started(ctx, far)
	if err := wait(t, received); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := wait(t, sent); err != nil {
		t.Fatal(err)
	}
	in, out := near.report(), far.report()
	if in.End != endPackets || out.End != endSignal {
		t.Errorf("ended by %q and %q", in.End, out.End)
	}
	if in.Total.RXPackets < 5000 || in.Total.RXBytes != 100*in.Total.RXPackets || in.Total.TXPackets != 0 {
		t.Errorf("received: %+v", in.Total)
	}
	if out.Total.TXPackets < in.Total.RXPackets || out.Total.RXPackets != 0 {
		t.Errorf("sent: %+v; received: %+v", out.Total, in.Total)
	}
	for _, q := range append(in.Queues, out.Queues...) {
		if q.RXPackets+q.Completed == 0 || q.BusyPoll.Active || q.BusyPoll.Reason == "" || q.NotCompleted != 0 || q.Drops == nil {
			t.Errorf("queue %+v", q)
		}
	}
}

func TestSendsExactlyAsManyAsAsked(t *testing.T) {
	ports, _ := veth(t)
	r := prepared(t, ports, newLease(), "txonly", "-n", "1001")
	if err := wait(t, started(t.Context(), r)); err != nil {
		t.Fatal(err)
	}
	s := r.report()
	if s.End != endPackets || s.Total.TXPackets != 1001 || s.Queues[0].Completed+s.Queues[1].Completed != 1001 {
		t.Errorf("%+v", s)
	}
}

func TestForwardsWithSwappedAddresses(t *testing.T) {
	nearPorts, farPorts := veth(t)
	near := prepared(t, nearPorts, newLease(), "l2fwd", "--threads", "1")
	const count = 2000
	var sent, got, wrong int
	out := newGenerator(net.HardwareAddr{2, 0, 0, 0, 0, 1}, net.HardwareAddr{2, 0, 0, 0, 0, 2}, 60, count)
	q := farPorts[1].queue
	q.Generate = func(q *busypoll.Queue, frames []xsk.Desc) int {
		n := out.generate(q, frames[:max(0, min(len(frames), 64-(sent-got)))])
		sent += n
		return n
	}
	q.Handle = func(q *busypoll.Queue, packets []xsk.Desc) int {
		for _, d := range packets {
			p := q.UMEM.Packet(d)
			if got++; !bytes.Equal(p[:12], []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2}) || !bytes.Equal(p[38:], out.packet[38:]) {
				wrong++
			}
		}
		return 0
	}
	loop, err := busypoll.NewLoop([]*busypoll.Queue{q}, busypoll.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := started(ctx, near)
	deadline := time.Now().Add(patience)
	for nearPorts[1].queue.Counters().Sleeps == 0 && time.Now().Before(deadline) { // it is not ready yet
		time.Sleep(time.Millisecond)
	}
	for got < count && time.Now().Before(deadline) {
		if _, err := loop.Round(); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	if err := wait(t, done); err != nil {
		t.Fatal(err)
	}
	s := near.report()
	if got != count || wrong != 0 || s.Total.RXPackets != count || s.Total.TXPackets != count || s.Threads != 1 {
		t.Errorf("%d of %d came back, %d otherwise; %+v", got, count, wrong, s)
	}
}

func TestProgressIsToldOnceReceptionIsPreparedAndThenAtAnInterval(t *testing.T) {
	ports, _ := veth(t)
	r := prepared(t, ports, newLease(), "rxdrop", "--json", "--progress", "1ms")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	told := 0
	r.progress = func(s *report) error {
		for _, p := range ports {
			if fill := p.queue.Rings.Fill; told == 0 && fill.Pending() != fill.Size() {
				t.Errorf("%s was told ready with %d of %d frames for reception", p.name(), fill.Pending(), fill.Size())
			}
		}
		if told++; told == 5 {
			cancel()
		}
		if s.End != endNone || s.Error != "" || len(s.Queues) != queues || s.Queues[0].Drops == nil {
			t.Errorf("%+v", s)
		}
		return nil
	}
	if err := wait(t, started(ctx, r)); err != nil {
		t.Fatal(err)
	}
	if s := r.report(); told < 5 || s.End != endSignal {
		t.Errorf("told %d times, then %+v", told, s)
	}
}

func TestEndsAfterItsDuration(t *testing.T) {
	ports, _ := veth(t)
	r := prepared(t, ports, newLease(), "rxdrop", "-d", "50ms")
	if err := wait(t, started(t.Context(), r)); err != nil {
		t.Fatal(err)
	}
	if s := r.report(); s.End != endDuration || s.DurationSeconds < 0.05 || s.Error != "" {
		t.Errorf("%+v", s)
	}
}

func TestEndOfTheLeaseIsAnErrorWithASummary(t *testing.T) {
	ports, _ := veth(t)
	l := newLease()
	l.err = errors.New("the pod was deleted")
	r := prepared(t, ports, l, "rxdrop")
	done := started(t.Context(), r)
	close(l.done)
	if err := wait(t, done); !errors.Is(err, l.err) {
		t.Errorf("the run ended with %v", err)
	}
	if s := r.report(); s.End != endError || !strings.Contains(s.Error, "the pod was deleted") || len(s.Queues) != queues {
		t.Errorf("%+v", s)
	}
}

// Field case 21: the device goes away while it runs.
func TestRemovedDeviceIsAnErrorWithASummary(t *testing.T) {
	for _, mode := range []string{"rxdrop", "txonly", "l2fwd"} {
		t.Run(mode, func(t *testing.T) {
			ports, _ := veth(t)
			r := prepared(t, ports, newLease(), mode)
			done := started(t.Context(), r)
			time.Sleep(50 * time.Millisecond)
			if err := testutil.DelLink("bnear"); err != nil {
				t.Fatal(err)
			}
			if err := wait(t, done); err == nil || !strings.Contains(err.Error(), "its device is") {
				t.Errorf("the run ended with %v", err)
			}
			if s := r.report(); s.End != endError || s.Error == "" || s.Queues[0].Drops == nil {
				t.Errorf("%+v", s)
			}
		})
	}
}

func TestReportIsOneJSONObjectAndATable(t *testing.T) {
	ports, _ := veth(t)
	r := prepared(t, ports, newLease(), "txonly", "-n", "100")
	if err := wait(t, started(t.Context(), r)); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := r.report().writeJSON(&out); err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(&out)
	d.DisallowUnknownFields()
	var s report
	if err := d.Decode(&s); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Token(); err != io.EOF {
		t.Errorf("more than one object: %v", err)
	}
	if s.Mode != "txonly" || s.Pool != "fast" || s.Resumes != 3 || len(s.Queues) != queues || s.Total.TXPackets != 100 ||
		s.Queues[1].Queue != 1 || s.Queues[1].NUMANode != -1 || s.Queues[0].Completed != 50 || s.Queues[0].TXCalls == 0 {
		t.Errorf("%+v", s)
	}
	s.Queues[0].Drops.RXRingFull, s.Queues[1].BusyPoll = 17, busyPollReport{Active: true, Reason: "polling NAPI 8193"}
	var table strings.Builder
	if err := s.writeTable(&table); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"bnear-q0", "bnear-q1", "total", "rx_ring_full 17", "polling NAPI 8193", "active", "ended by packets", "resumed 3 times", "copy",
	} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("the table does not say %q:\n%s", want, table.String())
		}
	}
}

func TestLiveLineShowsRates(t *testing.T) {
	start := time.Now()
	r := &run{start: start, ports: []*port{{device: client.Device{Netdev: "ens1", Queue: 3}}}}
	before := sample{at: start.Add(time.Second), queues: []busypoll.Counters{{RXPackets: 10, Completed: 5}}}
	now := sample{at: start.Add(3 * time.Second), queues: []busypoll.Counters{{RXPackets: 4000010, Completed: 1000005}}}
	if got, want := r.liveText(before, now), "   3s  Mpps rx/tx 2.00/0.50   ens1-q3 2.00/0.50"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	var out strings.Builder
	l := &liveLine{w: &out, width: 10}
	l.draw("0123456789abc")
	l.end()
	if got, want := out.String(), "\r\x1b[K012345678\r\x1b[K"; got != want {
		t.Errorf("drawn %q, want %q", got, want)
	}
}

func TestGeneratedPacketsAreUDPOfSeveralFlows(t *testing.T) {
	g := newGenerator(net.HardwareAddr{2, 0, 0, 0, 0, 1}, net.HardwareAddr{2, 0, 0, 0, 0, 2}, 128, 300)
	umem, err := xsk.NewUMEM(xsk.UMEMConfig{Frames: 2, FrameSize: 2048})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = umem.Close() }()
	q := &busypoll.Queue{UMEM: umem}
	ports := map[uint16]bool{}
	for made := 0; ; {
		frames := []xsk.Desc{{Addr: 0}, {Addr: 2048}}
		n := g.generate(q, frames)
		if made += n; n == 0 {
			if made != 300 || len(ports) != 256 {
				t.Errorf("%d packets, %d flows", made, len(ports))
			}
			return
		}
		for _, d := range frames[:n] {
			p := umem.Packet(d)
			ports[binary.BigEndian.Uint16(p[34:])] = true
			// The checksum of a header with its checksum in it is 0.
			if len(p) != 128 || checksum(p[14:34]) != 0 || p[23] != 17 || binary.BigEndian.Uint16(p[16:]) != 114 ||
				binary.BigEndian.Uint16(p[38:]) != 94 {
				t.Fatalf("packet %x", p)
			}
		}
	}
}

func TestShareSplitsWithoutRest(t *testing.T) {
	for _, total := range []uint64{1, 7, 64, 1000} {
		var sum uint64
		for i := range 7 {
			sum += share(total, i, 7)
		}
		if sum != total {
			t.Errorf("%d packets were split into %d", total, sum)
		}
	}
}
