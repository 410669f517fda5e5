package lease

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/pkg/netdev"
)

// knob is a setting that was changed: the NAPI of one queue, or the whole device where the kernel or driver has no
// settings by NAPI. NAPI ids are not kept, since they change: the queue is.
type knob struct {
	Name  knobName  `json:"name"`
	Scope knobScope `json:"scope"`
	// Original is the value before the first change. It is written before that, and once.
	Original setting `json:"original"`
	// Ours are the values that we may have set, the last one last. A setting with any other value was changed by someone
	// else since, and is left alone.
	Ours []setting `json:"ours"`
	// Holders are the devices that want the knob, with the value each wants. The largest is set. A knob that nobody holds
	// is put back.
	Holders map[string]setting `json:"holders"`

	set bool // to our value, so that another one is someone else's
	of  int  // the NAPI, or its thread, that was set; one that is made anew is set again
}

// setting is the value of a knob: a number, or CPUs as netdev.CPUs has them.
type setting string

func number[T ~uint32 | ~uint64 | ~int64](n T) setting {
	return setting(strconv.FormatUint(uint64(n), 10))
}

func (s setting) number() uint64 {
	n, _ := strconv.ParseUint(string(s), 10, 64)
	return n
}

func compareSettings(a, b setting) int {
	return cmp.Or(cmp.Compare(a.number(), b.number()), cmp.Compare(a, b))
}

type knobName string

const (
	knobDefer    knobName = "napi_defer_hard_irqs" // count
	knobFlush    knobName = "gro_flush_timeout"    // ns
	knobSuspend  knobName = "irq_suspend_timeout"  // ns; of a NAPI only
	knobThreaded knobName = "threaded"             // netdev.ThreadedMode; of a NAPI only
	knobThread   knobName = "thread_affinity"      // CPUs; of a NAPI's thread only
	knobIRQ      knobName = "smp_affinity"         // CPUs; of the interrupt of an rx queue's NAPI only
)

// knobScope is scopeDevice, or a queue whose NAPI is set: the first one that the NAPI serves.
type knobScope struct {
	Type  netdev.QueueType `json:"type,omitempty"`
	Queue int              `json:"queue"`
}

var scopeDevice = knobScope{Type: "", Queue: -1}

// Tuning is how the interrupts of a device are deferred, as read back.
type Tuning struct {
	NAPIKnown      bool   // the kernel tells which NAPI a queue has
	RXNAPI, TXNAPI uint32 // the NAPIs of the queue; 0: none, or one without an id. They change when the link goes down and up
	// Deferral reports whether the settings are at least what the pool wants, and have an effect.
	Deferral        bool
	DeferHardIRQs   uint32
	GROFlushTimeout time.Duration
	// Missing lists settings of the pool, by commas, that cannot be set for this queue alone, and so are not set.
	Missing string
	// Unpinned says why the thread of the queue's NAPI does not run on the CPUs that the pool wants; empty when it does, or
	// the pool wants none.
	Unpinned string
}

// Unmet says in words what the pool asks for that the lease does not have; empty when it has everything.
func (t Tuning) Unmet() string {
	var all []string
	if t.Missing != "" {
		all = append(all, "not set, since kernel or driver have it for the whole NIC only, if at all: "+t.Missing)
	}
	if t.Unpinned != "" {
		all = append(all, t.Unpinned)
	}
	return strings.Join(all, "; ")
}

// want is a value that settings ask of a knob.
type want struct {
	knob  knobName
	value setting
	// must says that without the knob the lease cannot be; else it is told of in Tuning.Unmet.
	must bool
}

// wanted returns what settings ask for, in the order in which it is set.
func wanted(s Settings) []want {
	var all []want
	if s.BusyPollBudget > 0 {
		all = append(all, want{knobDefer, number(s.DeferHardIRQs), true}, want{knobFlush, number(s.GROFlushTimeout), true})
	}
	if s.IRQSuspendTimeout > 0 {
		all = append(all, want{knobSuspend, number(s.IRQSuspendTimeout), false})
	}
	if s.Threaded {
		all = append(all, want{knobThreaded, number(netdev.ThreadedOn), false})
	}
	if s.Threaded && s.ThreadCPUs != "" {
		all = append(all, want{knobThread, setting(s.ThreadCPUs), false})
	}
	if s.IRQCPUs != "" {
		all = append(all, want{knobIRQ, setting(s.IRQCPUs), false})
	}
	return all
}

// scopesOf returns where a knob of a queue is, given where its NAPIs are tuned.
func (n knobName) scopesOf(queue int, tuned []knobScope) []knobScope {
	if n == knobIRQ {
		return []knobScope{{netdev.RX, queue}}
	}
	return tuned
}

// tune sets the knobs of a NIC to what its leases want, and puts back those that none wants any more.
func (m *Manager) tune(n *nic) error {
	n.away = false
	// Looked up only now: an attach or a trial bind may have made the NAPIs anew.
	link, err := m.find(n.doc.Identity)
	gone := errors.Is(err, netdev.ErrNoDevice)
	switch {
	case gone && !m.inUse(n):
		// It has taken its settings along, and one made anew starts clean.
		n.doc.Knobs = nil
		return nil
	case gone:
		return nil // it may have been moved away, and come back as it is
	case err != nil:
		return err
	}
	for _, k := range n.doc.Knobs {
		for device := range k.Holders {
			if l := m.leases[device]; l == nil || !l.needs(n) {
				n.letGo(k, device)
			}
		}
	}
	errs := []error{m.holdAll(n, link), m.settle(n, link)}
	if slices.ContainsFunc(m.sorted(), func(l *lease) bool { return l.needs(n) && l.doc.Settings.ThreadCPUs != "" }) {
		// Only now there are threads to be pinned.
		errs = append(errs, m.holdAll(n, link), m.settle(n, link))
	}
	return errors.Join(errs...)
}

// holdAll has all leases of a NIC hold their knobs.
func (m *Manager) holdAll(n *nic, link netdev.Link) error {
	var errs []error
	for _, l := range m.sorted() {
		// While a NIC is down it does not tell its NAPIs.
		if link.Up && l.needs(n) {
			errs = append(errs, m.hold(n, link, l))
		}
	}
	return errors.Join(errs...)
}

// napiPatience is how long a driver may have its NAPIs away while it resets its rings.
const napiPatience = time.Second

// tunePatiently tunes a NIC that was just changed: its driver may be making the NAPIs anew.
func (m *Manager) tunePatiently(n *nic) error {
	for deadline := time.Now().Add(napiPatience); ; time.Sleep(20 * time.Millisecond) {
		err := m.tune(n)
		if !n.away && !isAway(err) || time.Now().After(deadline) {
			return err
		}
	}
}

// isAway reports whether an error says that a queue has no NAPI at the moment.
func isAway(err error) bool { return errors.Is(err, netdev.ErrNoNAPI) || errors.Is(err, errNoNAPI) }

// hold has a lease hold the knobs that its settings ask for, and no others. What it changes is not in the journal yet.
func (m *Manager) hold(n *nic, link netdev.Link, l *lease) error {
	want := wanted(l.doc.Settings)
	if want == nil {
		return nil
	}
	scopes, err := m.scopes(link, l.doc.Queue)
	if err != nil {
		return err
	}
	device := l.doc.Device
	held := slices.DeleteFunc(slices.Clone(n.doc.Knobs), func(k *knob) bool {
		_, holds := k.Holders[device]
		return !holds
	})
	if (scopes == nil || scopes[0] == scopeDevice) && slices.ContainsFunc(held, func(k *knob) bool {
		return k.Scope != scopeDevice && k.Name != knobIRQ
	}) {
		return nil // the driver is just making the NAPIs anew
	}
	for _, k := range held {
		if !slices.Contains(k.Name.scopesOf(l.doc.Queue, scopes), k.Scope) {
			n.letGo(k, device)
		}
	}
	for _, w := range want {
		for _, scope := range w.knob.scopesOf(l.doc.Queue, scopes) {
			k, err := m.knob(n, link, w.knob, scope)
			if !w.must && (errors.Is(err, netdev.ErrUnsupported) || errors.Is(err, errNoNAPI)) {
				continue
			}
			if err != nil && w.knob == knobThread {
				n.unpinned[scope] = err
				continue
			}
			if err != nil {
				return err
			}
			if v, holds := k.Holders[device]; !holds || v != w.value {
				k.Holders[device] = w.value
				n.intend(k)
			}
		}
	}
	return nil
}

// knob returns a knob of a NIC. A new one has no holders yet.
func (m *Manager) knob(n *nic, link netdev.Link, name knobName, scope knobScope) (*knob, error) {
	for _, k := range n.doc.Knobs {
		if k.Name == name && k.Scope == scope {
			return k, nil
		}
	}
	original, _, err := m.readKnob(link, name, scope)
	if err == nil && (name == knobIRQ || name == knobThread) {
		// The kernel refuses to move interrupts that it manages itself, and threads without CAP_SYS_NICE: found out by
		// setting what is set already.
		err = m.writeUnchecked(link, name, scope, original)
	}
	if err != nil {
		return nil, err
	}
	k := &knob{Name: name, Scope: scope, Original: original, Holders: make(map[string]setting)}
	n.doc.Knobs = append(n.doc.Knobs, k)
	return k, nil
}

func (n *nic) letGo(k *knob, device string) {
	delete(k.Holders, device)
	n.intend(k)
}

// intend notes the value that a knob is to be set to.
func (n *nic) intend(k *knob) {
	n.dirty = true
	if len(k.Holders) == 0 {
		return
	}
	value := slices.MaxFunc(slices.Collect(maps.Values(k.Holders)), compareSettings)
	k.Ours = append(slices.DeleteFunc(k.Ours, func(v setting) bool { return v == value }), value)
}

// settle sets the knobs that are held, and puts back those that are not, the last one first.
func (m *Manager) settle(n *nic, link netdev.Link) error {
	var errs []error
	held := slices.DeleteFunc(slices.Clone(n.doc.Knobs), func(k *knob) bool { return len(k.Holders) == 0 })
	if len(held) > 0 && n.dirty {
		errs = append(errs, m.writeNIC(n))
	}
	if errors.Join(errs...) == nil {
		for _, k := range held {
			err := m.apply(link, k)
			if k.Name == knobThread {
				n.unpinned[k.Scope], err = err, nil // the lease goes on without
			}
			errs = append(errs, err)
		}
	}
	for i, k := range slices.Backward(slices.Clone(n.doc.Knobs)) {
		if len(k.Holders) > 0 {
			continue
		}
		done, err := m.restore(link, k)
		if isAway(err) {
			n.away = true // the knob stays, and is put back when there is a NAPI again
			continue
		}
		errs = append(errs, err)
		if done {
			n.doc.Knobs = slices.Delete(n.doc.Knobs, i, i+1)
			n.dirty = true
		}
	}
	// That settings have been put back need not be known of a NIC that is about to be forgotten.
	if n.dirty && m.inUse(n) {
		errs = append(errs, m.writeNIC(n))
	}
	return errors.Join(errs...)
}

// apply sets a knob to our value unless someone else has changed it.
func (m *Manager) apply(link netdev.Link, k *knob) error {
	now, of, err := m.readKnob(link, k.Name, k.Scope)
	if errors.Is(err, errNoNAPI) || errors.Is(err, netdev.ErrNoThread) {
		return nil // until there is one
	}
	if err != nil {
		return err
	}
	value := k.Ours[len(k.Ours)-1]
	anew := k.of != 0 && k.of != of
	if k.set && !anew && now != k.Original && !slices.Contains(k.Ours, now) {
		return nil
	}
	if now != value {
		if err := m.step("set " + string(k.Name)); err != nil {
			return err
		}
		if err := m.writeKnob(link, k.Name, k.Scope, value); err != nil {
			return err
		}
	}
	k.Ours, k.set, k.of = []setting{value}, true, of
	return nil
}

// restore sets a knob to its original value if its value is still one of ours. It is not done while the queue has no NAPI,
// since its NIC is down or the driver is resetting it: the kernel may have kept the setting; nor while a thread cannot be
// moved, since this agent has not the rights of an earlier one, or its CPUs are not online: that must not keep a lease from
// ending.
func (m *Manager) restore(link netdev.Link, k *knob) (done bool, err error) {
	now, _, err := m.readKnob(link, k.Name, k.Scope)
	switch {
	case isAway(err):
		if !link.Up {
			return false, nil // nothing to wait for
		}
		if there, otherErr := m.hasQueue(link, k.Scope); otherErr != nil || !there {
			return otherErr == nil, otherErr
		}
		return false, err
	case errors.Is(err, netdev.ErrNoThread):
		return true, nil
	case k.Name == knobThread && err != nil:
		return false, nil
	case errors.Is(err, netdev.ErrNoDevice), errors.Is(err, netdev.ErrUnsupported):
		return true, nil
	case err != nil:
		return false, err
	case now == k.Original || !slices.Contains(k.Ours, now):
		return true, nil
	}
	if err := m.step("restore " + string(k.Name)); err != nil {
		return false, err
	}
	err = m.writeKnob(link, k.Name, k.Scope, k.Original)
	if k.Name == knobThread && err != nil {
		return false, nil
	}
	return err == nil, err
}

// Retune sets the knobs of all leases again where they are not as the leases want them: a link that flaps and a driver
// that resets make NAPIs anew, with other settings. A value that someone else has set is left.
func (m *Manager) Retune() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var errs []error
	for _, n := range m.nics {
		errs = append(errs, m.tune(n))
		if !m.inUse(n) {
			errs = append(errs, m.retire(n))
		}
	}
	return errors.Join(errs...)
}

// tuning reads back how the interrupts of a lease's queue are deferred.
func (m *Manager) tuning(link netdev.Link, l *lease) (Tuning, error) {
	queues, err := m.queues(link)
	if err != nil {
		return Tuning{}, err
	}
	t := Tuning{
		NAPIKnown: queues != nil,
		RXNAPI:    napiOf(queues, knobScope{netdev.RX, l.doc.Queue}),
		TXNAPI:    napiOf(queues, knobScope{netdev.TX, l.doc.Queue}),
	}
	want := wanted(l.doc.Settings)
	if want == nil {
		return t, nil
	}
	scopes, err := m.scopes(link, l.doc.Queue)
	if err != nil {
		return Tuning{}, err
	}
	t.Deferral = l.doc.Settings.BusyPollBudget > 0
	var missing []string
	for _, w := range want {
		at := w.knob.scopesOf(l.doc.Queue, scopes)
		if len(at) == 0 && w.must {
			t.Deferral = false
		}
		if len(at) == 0 && !w.must {
			missing = append(missing, string(w.knob))
		}
		for i, scope := range at {
			if w.knob == knobThread {
				t.Unpinned = cmp.Or(t.Unpinned, m.unpinned(link, l, scope))
				continue
			}
			now, _, err := m.readKnob(link, w.knob, scope)
			unable := errors.Is(err, netdev.ErrUnsupported) || errors.Is(err, errNoNAPI) || err == nil && w.knob == knobIRQ && now != w.value
			if !w.must && unable {
				if i == 0 {
					missing = append(missing, string(w.knob))
				}
				continue
			}
			if err != nil {
				return Tuning{}, err
			}
			if w.must { // the two that defer interrupts
				t.Deferral = t.Deferral && now.number() > 0 && now.number() >= w.value.number()
			}
			switch {
			case i > 0: // what is told is the rx queue's
			case w.knob == knobDefer:
				t.DeferHardIRQs = uint32(now.number())
			case w.knob == knobFlush:
				t.GROFlushTimeout = time.Duration(now.number())
			}
		}
	}
	t.Missing = strings.Join(missing, ", ")
	return t, nil
}

// unpinned says why the thread of a lease's NAPI does not run on the CPUs that are wanted; empty when it does, or when a
// NAPI cannot have a thread, which is another matter.
func (m *Manager) unpinned(link netdev.Link, l *lease, scope knobScope) string {
	want := l.doc.Settings.ThreadCPUs
	now, _, err := m.readKnob(link, knobThread, scope)
	switch {
	case errors.Is(err, netdev.ErrUnsupported), errors.Is(err, errNoNAPI), err == nil && now == setting(want):
		return ""
	case err == nil:
		err = m.nics[l.doc.NIC].unpinned[scope]
	}
	switch {
	case err == nil:
		return fmt.Sprintf("the NAPI's thread is not on CPUs %s: someone else has put it on %s", want, now)
	case errors.Is(err, netdev.ErrThreadHidden), errors.Is(err, unix.EPERM):
		return fmt.Sprintf("the NAPI's thread is not pinned to CPUs %s: %v (in the chart, napiThreads.pin: true gives the agent "+
			"CAP_SYS_NICE and the host's PID namespace)", want, err)
	}
	return fmt.Sprintf("the NAPI's thread is not pinned to CPUs %s: %v", want, err)
}

// Unmet says in words, by device, what its pool asks for that a lease does not have.
func (m *Manager) Unmet() map[string]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make(map[string]string)
	for _, l := range m.sorted() {
		if l.doc.State != StateActive {
			continue
		}
		_, link, err := m.inForce(l)
		if err != nil {
			continue // Problems has it
		}
		if t, err := m.tuning(link, l); err != nil {
			all[l.doc.Device] = err.Error()
		} else if unmet := t.Unmet(); unmet != "" {
			all[l.doc.Device] = unmet
		}
	}
	return all
}
