package lease

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/afxdp-project/afxdp/internal/testutil"
	"github.com/afxdp-project/afxdp/pkg/netdev"
)

// fakeNAPIs stands in for a driver that links its queues to NAPIs, which veth does not.
type fakeNAPIs struct {
	queues   []netdev.Queue
	settings map[uint32]fakeSettings // by NAPI
	oldest   bool                    // the kernel does not tell the queues' NAPIs
	older    bool                    // it has no settings by NAPI
	old      bool                    // it has no threaded and no irq-suspend-timeout by NAPI
	deaf     bool                    // the driver ignores what is set
	away     int                     // so many settings find the NAPI gone for a moment
	unlinked int                     // so many lists of queues show none
	cpus     map[int]netdev.CPUs     // by interrupt, which a NAPI has by its own number
	managed  bool                    // the kernel moves no interrupt for us
	threads  map[int]netdev.CPUs     // by number; those of NAPIs with a thread
	pids     map[uint32]int          // the numbers of their threads
	pinning  error                   // why threads cannot be pinned
}

type fakeSettings struct {
	deferral uint32
	flush    time.Duration
	suspend  time.Duration
	threaded netdev.ThreadedMode
}

func (f *fakeNAPIs) Queues(int) ([]netdev.Queue, error) {
	if f.oldest {
		return nil, fmt.Errorf("list queues: %w", netdev.ErrUnsupported)
	}
	if f.unlinked > 0 {
		f.unlinked--
		queues := slices.Clone(f.queues)
		for i := range queues {
			queues[i].NAPI = 0
		}
		return queues, nil
	}
	return f.queues, nil
}

func (f *fakeNAPIs) NAPIs(int) ([]netdev.NAPI, error) {
	if f.oldest {
		return nil, fmt.Errorf("list NAPIs: %w", netdev.ErrUnsupported)
	}
	var all []netdev.NAPI
	for _, id := range slices.Sorted(maps.Keys(f.settings)) {
		n, err := f.NAPI(id)
		if err != nil {
			return nil, err
		}
		all = append(all, n)
	}
	return all, nil
}

func (f *fakeNAPIs) NAPI(id uint32) (netdev.NAPI, error) {
	s, ok := f.settings[id]
	if !ok {
		return netdev.NAPI{}, fmt.Errorf("read NAPI %d: %w", id, netdev.ErrNoNAPI)
	}
	if f.older {
		return netdev.NAPI{ID: id, IRQ: int(id)}, nil
	}
	if _, running := f.threads[f.pids[id]]; running != (s.threaded == netdev.ThreadedOn) {
		f.thread(id, s.threaded)
	}
	settings := netdev.NAPISettings{DeferHardIRQs: &s.deferral, GROFlushTimeout: &s.flush}
	if !f.old {
		settings.IRQSuspendTimeout, settings.Threaded = &s.suspend, &s.threaded
	}
	return netdev.NAPI{ID: id, IRQ: int(id), PID: f.pids[id], Settings: settings}, nil
}

// thread starts or ends the thread of a NAPI. Each has a number of its own.
func (f *fakeNAPIs) thread(id uint32, mode netdev.ThreadedMode) {
	if mode == netdev.ThreadedOff {
		delete(f.threads, f.pids[id])
		delete(f.pids, id)
		return
	}
	if f.threads == nil {
		f.threads, f.pids = make(map[int]netdev.CPUs), make(map[uint32]int)
	}
	f.pids[id] = 1000*int(id) + len(f.threads)
	f.threads[f.pids[id]] = "0-7"
}

func (f *fakeNAPIs) ThreadAffinity(n netdev.NAPI) (netdev.CPUs, error) {
	cpus, ok := f.threads[n.PID]
	switch {
	case errors.Is(f.pinning, netdev.ErrThreadHidden):
		return "", f.pinning
	case !ok:
		return "", netdev.ErrNoThread
	}
	return cpus, nil
}

func (f *fakeNAPIs) SetThreadAffinity(n netdev.NAPI, cpus netdev.CPUs) error {
	if _, err := f.ThreadAffinity(n); err != nil {
		return err
	}
	if f.pinning != nil {
		return f.pinning
	}
	f.threads[n.PID] = cpus
	return nil
}

func (f *fakeNAPIs) IRQAffinity(irq int) (netdev.CPUs, error) {
	cpus, ok := f.cpus[irq]
	if !ok {
		return "", fmt.Errorf("interrupt %d: %w", irq, netdev.ErrUnsupported)
	}
	return cpus, nil
}

func (f *fakeNAPIs) SetIRQAffinity(irq int, cpus netdev.CPUs) error {
	if _, ok := f.cpus[irq]; !ok || f.managed {
		return fmt.Errorf("interrupt %d: %w", irq, netdev.ErrUnsupported)
	}
	f.cpus[irq] = cpus
	return nil
}

func (f *fakeNAPIs) SetNAPI(id uint32, change netdev.NAPISettings) error {
	s, ok := f.settings[id]
	if !ok {
		return fmt.Errorf("set NAPI %d: %w", id, netdev.ErrNoNAPI)
	}
	if f.away > 0 {
		f.away--
		return fmt.Errorf("set NAPI %d: %w", id, netdev.ErrNoNAPI)
	}
	if f.deaf {
		return nil
	}
	if change.DeferHardIRQs != nil {
		s.deferral = *change.DeferHardIRQs
	}
	if change.GROFlushTimeout != nil {
		s.flush = *change.GROFlushTimeout
	}
	if change.IRQSuspendTimeout != nil {
		s.suspend = *change.IRQSuspendTimeout
	}
	if change.Threaded != nil {
		s.threaded = *change.Threaded
	}
	f.settings[id] = s
	return nil
}

// link links queues to NAPIs, which get the given settings: rx and tx of queue i to ids[i].
func (f *fakeNAPIs) link(s fakeSettings, ids ...uint32) {
	f.queues, f.settings = nil, make(map[uint32]fakeSettings)
	for _, t := range []netdev.QueueType{netdev.RX, netdev.TX} {
		for i, id := range ids {
			f.queues = append(f.queues, netdev.Queue{Index: i, Type: t, NAPI: id})
			f.settings[id] = s
		}
	}
}

// napiNode is a node whose NIC has NAPIs of its own, with the given settings.
func napiNode(t *testing.T, s fakeSettings, ids ...uint32) (*node, *fakeNAPIs) {
	t.Helper()
	f := &fakeNAPIs{}
	f.link(s, ids...)
	n := newNode(t)
	n.napis = f
	n.restart()
	before := n.now()
	t.Cleanup(func() { n.wantState("at the end", before) })
	return n, f
}

func (f *fakeNAPIs) want(t *testing.T, when string, want map[uint32]fakeSettings) {
	t.Helper()
	if !maps.Equal(f.settings, want) {
		t.Errorf("%s the NAPIs have %v, want %v", when, f.settings, want)
	}
}

var (
	operators = fakeSettings{deferral: 1, flush: 5000}
	ours      = fakeSettings{deferral: 2, flush: 200 * time.Microsecond}
)

func TestOnlyTheNAPIOfTheQueueIsTuned(t *testing.T) {
	n, f := napiNode(t, operators, 11, 12, 13, 14)
	n.add(alice, 1)
	f.want(t, "leased", map[uint32]fakeSettings{11: operators, 12: ours, 13: operators, 14: operators})
	g, err := n.Grant(deviceID(1), alice.cookie)
	want := Tuning{NAPIKnown: true, RXNAPI: 12, TXNAPI: 12, Deferral: true, DeferHardIRQs: 2, GROFlushTimeout: ours.flush}
	if err != nil || g.Tuning != want {
		t.Errorf("a grant tells %+v, %v; want %+v", g.Tuning, err, want)
	}
	n.wantKnobs("leased, of the whole NIC", "0", "0")
	n.restart()
	n.del(alice)
	f.want(t, "at the end", map[uint32]fakeSettings{11: operators, 12: operators, 13: operators, 14: operators})
}

func TestNAPIOfTheTxQueueIsTunedToo(t *testing.T) {
	n, f := napiNode(t, operators, 11, 12, 13, 14)
	f.queues[4+1].NAPI = 22
	f.settings[22] = fakeSettings{deferral: 3, flush: 7000}
	n.add(alice, 1)
	f.want(t, "leased", map[uint32]fakeSettings{11: operators, 12: ours, 13: operators, 14: operators, 22: ours})
	n.del(alice)
	f.want(t, "at the end", map[uint32]fakeSettings{
		11: operators, 12: operators, 13: operators, 14: operators, 22: {deferral: 3, flush: 7000},
	})
}

// Field case 28: queues that share a NAPI share its settings, whichever lease goes first.
func TestQueuesOfOneNAPIShareItsKnobs(t *testing.T) {
	for _, first := range []pod{alice, bob} {
		t.Run(first.name+" goes first", func(t *testing.T) {
			n, f := napiNode(t, operators, 11, 11, 12, 12)
			n.add(alice, 0)
			r := n.request(bob, 1)
			r.Devices[0].Settings.DeferHardIRQs = 5
			n.ok(n.Activate(r))
			f.want(t, "both leased", map[uint32]fakeSettings{11: {deferral: 5, flush: ours.flush}, 12: operators})
			n.del(first)
			left := map[string]fakeSettings{"alice": {deferral: 5, flush: ours.flush}, "bob": ours}[first.name]
			f.want(t, "one left", map[uint32]fakeSettings{11: left, 12: operators})
			n.del(map[string]pod{"alice": bob, "bob": alice}[first.name])
			f.want(t, "at the end", map[uint32]fakeSettings{11: operators, 12: operators})
		})
	}
}

// Field case 24: NAPIs that a driver made anew, with the settings of the whole NIC, are tuned again. What someone else
// has set is left.
func TestNewNAPIsAreTunedAgain(t *testing.T) {
	n, f := napiNode(t, operators, 11, 12, 13, 14)
	n.add(alice, 0)
	f.link(fakeSettings{}, 31, 32, 33, 34)
	n.ok(n.Retune())
	f.want(t, "made anew", map[uint32]fakeSettings{31: ours, 32: {}, 33: {}, 34: {}})

	f.settings[31] = fakeSettings{deferral: 1, flush: 6000}
	now, err := n.Tuning(deviceID(0), alice.cookie)
	want := Tuning{NAPIKnown: true, RXNAPI: 31, TXNAPI: 31, DeferHardIRQs: 1, GROFlushTimeout: 6000}
	if err != nil || now != want {
		t.Errorf("changed by someone else it is %+v, %v; want %+v", now, err, want)
	}
	f.settings[31] = fakeSettings{deferral: 6, flush: 6000}
	n.ok(n.Retune())
	f.want(t, "changed by someone else", map[uint32]fakeSettings{31: {deferral: 6, flush: 6000}, 32: {}, 33: {}, 34: {}})
	n.del(alice)
	f.want(t, "at the end", map[uint32]fakeSettings{31: {deferral: 6, flush: 6000}, 32: {}, 33: {}, 34: {}})
}

// A driver that resets takes its NAPIs away for a moment: that must not turn into settings of the whole NIC.
func TestNAPIsThatAreAwayForAMoment(t *testing.T) {
	n, f := napiNode(t, operators, 11, 12, 13, 14)
	n.add(alice, 0)
	queues, settings := f.queues, f.settings
	f.queues, f.settings = slices.Clone(queues), nil
	for i := range f.queues {
		f.queues[i].NAPI = 0
	}
	n.ok(n.Retune())
	n.wantKnobs("without NAPIs", "0", "0")
	f.queues, f.settings = queues, settings
	f.settings[11] = operators
	n.ok(n.Retune())
	f.want(t, "with NAPIs again", map[uint32]fakeSettings{11: ours, 12: operators, 13: operators, 14: operators})
	n.del(alice)
	f.want(t, "at the end", map[uint32]fakeSettings{11: operators, 12: operators, 13: operators, 14: operators})
}

// An attach or a bind resets rings, and their NAPIs are away while it does: ADD and open wait for them.
func TestNAPIThatIsAwayDuringADDIsWaitedFor(t *testing.T) {
	n, f := napiNode(t, operators, 11, 12, 13, 14)
	f.away = 3
	n.add(alice, 0)
	f.want(t, "leased", map[uint32]fakeSettings{11: ours, 12: operators, 13: operators, 14: operators})
	f.settings[11], f.away = operators, 3
	if tuning, err := n.TuneAgain(deviceID(0), alice.cookie); err != nil || !tuning.Deferral {
		t.Errorf("after a bind: %+v, %v", tuning, err)
	}
	n.del(alice)
}

// A pod that ends closes its socket, and the driver resets the queue just when its settings are to be put back: they are
// waited for, and when that takes long, put back later.
func TestNAPIThatIsAwayDuringDELIsPutBack(t *testing.T) {
	before := map[uint32]fakeSettings{11: operators, 12: operators, 13: operators, 14: operators}
	for name, leave := range map[string]func(*fakeNAPIs){
		"writes fail": func(f *fakeNAPIs) { f.away = 5 },
		"unlinked":    func(f *fakeNAPIs) { f.unlinked = 5 },
	} {
		t.Run(name, func(t *testing.T) {
			n, f := napiNode(t, operators, 11, 12, 13, 14)
			n.add(alice, 0)
			leave(f)
			n.del(alice)
			f.want(t, "at the end", before)
		})
	}
	n, f := napiNode(t, operators, 11, 12, 13, 14)
	n.add(alice, 0)
	f.unlinked = math.MaxInt
	n.del(alice)
	f.unlinked = 0
	n.ok(n.Retune())
	f.want(t, "later", before)
	n.wantNothingLeft()
}

// Drivers keep the settings of a NAPI while the NIC is down, when it cannot be reached: it is put back when it can.
func TestNAPIOfANICThatIsDownIsPutBackLater(t *testing.T) {
	for _, restarted := range []bool{false, true} {
		t.Run(fmt.Sprintf("restarted %t", restarted), func(t *testing.T) {
			n, f := napiNode(t, operators, 11, 12, 13, 14)
			n.add(alice, 0)
			queues, settings := f.queues, f.settings
			n.ok(testutil.SetDown(near))
			f.queues, f.settings = nil, nil
			n.del(alice)
			n.wantLeases("while the NIC is down")
			if p := n.Problems(); len(p) > 0 {
				t.Errorf("problems of a NIC without leases: %v", p)
			}
			if restarted {
				n.restart()
			}
			n.ok(testutil.SetUp(near))
			f.queues, f.settings = queues, settings
			if restarted {
				r := n.request(bob, 1) // also when a lease comes first
				n.ok(n.Activate(r))
				n.del(bob)
			} else {
				n.ok(n.Retune())
			}
			f.want(t, "up again", map[uint32]fakeSettings{11: operators, 12: operators, 13: operators, 14: operators})
			n.wantNothingLeft()
		})
	}
}

// With another number of channels, queues can have other NAPIs than before.
func TestQueueThatGetsANAPIOfItsOwn(t *testing.T) {
	n, f := napiNode(t, operators, 11, 11, 12, 12)
	n.add(alice, 0)
	n.add(bob, 1)
	f.link(operators, 21, 22, 23, 24)
	n.ok(n.Retune())
	f.want(t, "apart", map[uint32]fakeSettings{21: ours, 22: ours, 23: operators, 24: operators})
	n.del(alice)
	f.want(t, "one left", map[uint32]fakeSettings{21: operators, 22: ours, 23: operators, 24: operators})
	n.del(bob)
	f.want(t, "at the end", map[uint32]fakeSettings{21: operators, 22: operators, 23: operators, 24: operators})
}

// Kernels without settings by NAPI have those of the whole NIC changed.
func TestWholeNICIsTunedOnOlderKernels(t *testing.T) {
	for name, age := range map[string]func(*fakeNAPIs){
		"before queue-get": func(f *fakeNAPIs) { f.oldest = true }, "before napi-set": func(f *fakeNAPIs) { f.older = true },
	} {
		t.Run(name, func(t *testing.T) {
			n, f := napiNode(t, operators, 11, 12, 13, 14)
			age(f)
			n.add(alice, 0)
			n.wantKnobs("leased", "2", "200000")
			g, err := n.Grant(deviceID(0), alice.cookie)
			if err != nil || !g.Tuning.Deferral || g.Tuning.NAPIKnown == f.oldest {
				t.Errorf("a grant tells %+v, %v", g.Tuning, err)
			}
			n.del(alice)
		})
	}
}

// Where a queue is linked to no NAPI, sockets poll nothing on kernels that have settings by NAPI: deferral would only have
// their packets wait for the timer. On older ones sockets may know a NAPI that the kernel does not tell.
func TestQueueWithoutANAPIIsNotTuned(t *testing.T) {
	for name, c := range map[string]struct {
		age   func(*fakeNAPIs)
		tuned bool
	}{
		"settings by NAPI":    {age: func(*fakeNAPIs) {}},
		"no settings by NAPI": {age: func(f *fakeNAPIs) { f.older = true }, tuned: true},
		"no NAPI at all":      {age: func(f *fakeNAPIs) { f.settings = nil }, tuned: true},
	} {
		t.Run(name, func(t *testing.T) {
			n, f := napiNode(t, operators, 11, 12, 13, 14)
			for i := range f.queues {
				f.queues[i].NAPI = 0
			}
			c.age(f)
			n.setKnobs(1, 5000)
			r := n.request(alice, 1)
			r.Devices[0].Settings.IRQSuspendTimeout = time.Millisecond
			n.ok(n.Activate(r))
			tuning, err := n.Tuning(deviceID(1), alice.cookie)
			if err != nil || tuning.Deferral != c.tuned || !tuning.NAPIKnown || tuning.Missing != "irq_suspend_timeout" {
				t.Errorf("tuning %+v, %v", tuning, err)
			}
			if c.tuned {
				n.wantKnobs("leased", "2", "200000")
			} else {
				n.wantKnobs("leased", "1", "5000")
			}
			n.del(alice)
			n.wantKnobs("at the end", "1", "5000")
			n.setKnobs(0, 0)
		})
	}
}

// The kernel that this test runs on links veth's queues to no NAPI. Before the XDP program is attached, the NIC has no
// NAPI at all, and it is not known yet.
func TestVethIsNotTunedWhereItCannotBePolled(t *testing.T) {
	n := newNode(t)
	n.napis = nil
	n.restart()
	n.setKnobs(1, 5000)
	n.add(alice, 1)
	n.wantKnobs("leased", "1", "5000")
	g, err := n.Grant(deviceID(1), alice.cookie)
	if want := (Tuning{NAPIKnown: true}); err != nil || g.Tuning != want {
		t.Errorf("a grant tells %+v, %v; want %+v", g.Tuning, err, want)
	}
	n.ok(n.Retune())
	n.restart()
	n.wantKnobs("after a restart", "1", "5000")
	n.del(alice)
	n.wantKnobs("at the end", "1", "5000")
}

// Field case 23: a setting that does not take is noticed, and the ADD undone.
func TestSettingThatDoesNotTake(t *testing.T) {
	n, f := napiNode(t, operators, 11, 12, 13, 14)
	f.deaf = true
	wantError(t, "ADD", n.Activate(n.request(alice, 0)), "set napi_defer_hard_irqs of "+near+" to 2", "shows 1 afterwards")
	n.wantNothingLeft()
}

// Busy polling is not the only way to run: a kernel thread can poll the queue, and interrupts can be suspended.
func TestThreadAndSuspensionAreThoseOfTheQueuesNAPI(t *testing.T) {
	n, f := napiNode(t, operators, 11, 12, 13, 14)
	r := n.request(alice, 1)
	s := &r.Devices[0].Settings
	s.BusyPollBudget, s.Threaded, s.IRQSuspendTimeout = 0, true, 20*time.Millisecond
	n.ok(n.Activate(r))
	threaded := operators
	threaded.threaded, threaded.suspend = netdev.ThreadedOn, 20*time.Millisecond
	f.want(t, "leased", map[uint32]fakeSettings{11: operators, 12: threaded, 13: operators, 14: operators})
	if g, err := n.Grant(deviceID(1), alice.cookie); err != nil || g.Tuning.Deferral || g.Tuning.Missing != "" {
		t.Errorf("a grant tells %+v, %v", g.Tuning, err)
	}
	n.restart()
	n.del(alice)
	f.want(t, "at the end", map[uint32]fakeSettings{11: operators, 12: operators, 13: operators, 14: operators})
}

// What an older kernel cannot set for one NAPI is not set for the whole NIC, and told.
func TestSettingsThatTheKernelDoesNotHaveAreTold(t *testing.T) {
	for name, age := range map[string]func(*fakeNAPIs){
		"no threads by NAPI": func(f *fakeNAPIs) { f.old = true }, "no settings by NAPI": func(f *fakeNAPIs) { f.older = true },
	} {
		t.Run(name, func(t *testing.T) {
			n, f := napiNode(t, operators, 11, 12, 13, 14)
			age(f)
			r := n.request(alice, 1)
			s := &r.Devices[0].Settings
			s.Threaded, s.IRQSuspendTimeout, s.IRQCPUs = true, 20*time.Millisecond, "2-3"
			n.ok(n.Activate(r))
			g, err := n.Grant(deviceID(1), alice.cookie)
			if err != nil || !g.Tuning.Deferral || g.Tuning.Missing != "irq_suspend_timeout, threaded, smp_affinity" {
				t.Errorf("a grant tells %+v, %v", g.Tuning, err)
			}
			n.del(alice)
			f.want(t, "at the end", map[uint32]fakeSettings{11: operators, 12: operators, 13: operators, 14: operators})
		})
	}
}

// Two cores: the application on one, the queue's interrupt on another.
func TestInterruptOfTheQueueIsMovedAndMovedBack(t *testing.T) {
	for name, age := range map[string]func(*fakeNAPIs){
		"settings by NAPI": func(*fakeNAPIs) {}, "no settings by NAPI": func(f *fakeNAPIs) { f.older = true },
	} {
		t.Run(name, func(t *testing.T) {
			n, f := napiNode(t, operators, 11, 12, 13, 14)
			age(f)
			f.cpus = map[int]netdev.CPUs{11: "0-7", 12: "0-7", 13: "0-7", 14: "0-7"}
			before := maps.Clone(f.cpus)
			r := n.request(alice, 1)
			s := &r.Devices[0].Settings
			s.BusyPollBudget, s.IRQCPUs = 0, "2-3"
			n.ok(n.Activate(r))
			n.ok(n.Retune())
			if want := (map[int]netdev.CPUs{11: "0-7", 12: "2-3", 13: "0-7", 14: "0-7"}); !maps.Equal(f.cpus, want) {
				t.Errorf("leased: %v, want %v", f.cpus, want)
			}
			n.restart()
			n.del(alice)
			if !maps.Equal(f.cpus, before) {
				t.Errorf("at the end: %v, want %v", f.cpus, before)
			}
		})
	}
}

func TestInterruptThatTheKernelManagesIsTold(t *testing.T) {
	n, f := napiNode(t, operators, 11, 12, 13, 14)
	f.cpus, f.managed = map[int]netdev.CPUs{12: "0-7"}, true
	r := n.request(alice, 1)
	r.Devices[0].Settings.IRQCPUs = "2-3"
	n.ok(n.Activate(r))
	if g, err := n.Grant(deviceID(1), alice.cookie); err != nil || !g.Tuning.Deferral || g.Tuning.Missing != "smp_affinity" {
		t.Errorf("a grant tells %+v, %v", g.Tuning, err)
	}
	n.del(alice)
}
