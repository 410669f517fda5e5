package busypoll

import (
	"errors"
	"maps"
	"os"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/testutil"
	"github.com/afxdp-project/afxdp/pkg/xsk"
)

func TestMain(m *testing.M) { os.Exit(testutil.Main(m)) }

// fakeSocket keeps options by number and refuses to set some.
type fakeSocket struct {
	values map[int]int
	refuse map[int]error // by option
	order  []string
}

func (f *fakeSocket) get(o option) (int, error) {
	if v, ok := f.values[o.number]; ok {
		return v, nil
	}
	return 0, unix.ENOPROTOOPT
}

func (f *fakeSocket) set(o option, v int) error {
	f.order = append(f.order, o.name)
	if err := f.refuse[o.number]; err != nil {
		return err
	}
	f.values[o.number] = v
	return nil
}

func TestOptionsAreSetInOrder(t *testing.T) {
	f := &fakeSocket{values: map[int]int{}}
	if err := enable(f, Options{Budget: 64, Timeout: 20 * time.Microsecond}); err != nil {
		t.Fatal(err)
	}
	if want := []string{"SO_PREFER_BUSY_POLL", "SO_BUSY_POLL", "SO_BUSY_POLL_BUDGET"}; !reflect.DeepEqual(f.order, want) {
		t.Errorf("set %v, want %v", f.order, want)
	}
	want := map[int]int{unix.SO_PREFER_BUSY_POLL: 1, unix.SO_BUSY_POLL: 20, unix.SO_BUSY_POLL_BUDGET: 64}
	if !maps.Equal(f.values, want) {
		t.Errorf("values %v, want %v", f.values, want)
	}
}

// Field case 26: a later option is refused: the earlier ones are put back to what they were, and it is reported.
func TestRefusedOptionPutsTheEarlierOnesBack(t *testing.T) {
	for _, before := range []map[int]int{
		{unix.SO_PREFER_BUSY_POLL: 0, unix.SO_BUSY_POLL: 0},
		{unix.SO_PREFER_BUSY_POLL: 1, unix.SO_BUSY_POLL: 50, unix.SO_BUSY_POLL_BUDGET: 16},
		{unix.SO_PREFER_BUSY_POLL: 0, unix.SO_BUSY_POLL: 7, unix.SO_BUSY_POLL_BUDGET: 0},
	} {
		for _, refused := range []option{preferBusyPoll, busyPoll, busyPollBudget} {
			for _, errno := range []error{unix.EPERM, unix.ENOPROTOOPT} {
				f := &fakeSocket{values: maps.Clone(before), refuse: map[int]error{refused.number: errno}}
				err := enable(f, Options{Budget: 64, Timeout: DefaultTimeout})
				var e *Error
				if !errors.As(err, &e) || e.Option != refused.name || !errors.Is(err, errno) || e.NotRestored != nil {
					t.Errorf("%s refused with %v: %v", refused.name, errno, err)
				}
				if got, want := errors.Is(err, ErrUnsupported), errors.Is(errno, unix.ENOPROTOOPT); got != want {
					t.Errorf("%v is ErrUnsupported: %v, want %v", err, got, want)
				}
				if !maps.Equal(f.values, before) {
					t.Errorf("%s refused: options are %v, were %v", refused.name, f.values, before)
				}
			}
		}
	}
}

// breakingSocket refuses everything from the given call on.
type breakingSocket struct {
	fakeSocket
	after int
}

func (b *breakingSocket) set(o option, v int) error {
	if b.after--; b.after < 0 {
		return unix.ENODEV
	}
	return b.fakeSocket.set(o, v)
}

func TestWhatCannotBePutBackIsReported(t *testing.T) {
	b := &breakingSocket{fakeSocket{values: map[int]int{}}, 2}
	err := enable(b, Options{Budget: 64, Timeout: DefaultTimeout})
	var e *Error
	if !errors.As(err, &e) || e.NotRestored == nil || !strings.Contains(err.Error(), "SO_BUSY_POLL to 0") ||
		!strings.Contains(err.Error(), "SO_PREFER_BUSY_POLL to 0") {
		t.Errorf("%v; want both options that were not put back", err)
	}
}

func TestBadOptionsAreRefusedBeforeAnyChange(t *testing.T) {
	for _, o := range []Options{
		{Budget: -1, Timeout: DefaultTimeout}, {Budget: 65536, Timeout: DefaultTimeout},
		{Budget: 64}, {Budget: 64, Timeout: -time.Microsecond}, {Budget: 64, Timeout: 1500 * time.Nanosecond},
		{Budget: 64, Timeout: 1 << 31 * time.Microsecond},
	} {
		f := &fakeSocket{values: map[int]int{}}
		if err := enable(f, o); err == nil || f.order != nil {
			t.Errorf("%+v: %v after setting %v; want a refusal before", o, err, f.order)
		}
	}
	for _, o := range []Options{
		{}, {Timeout: -5}, {Budget: 1, Timeout: time.Microsecond}, {Budget: 65535, Timeout: time.Second},
	} {
		if err := o.Validate(); err != nil {
			t.Errorf("%+v is refused: %v", o, err)
		}
	}
}

func newSocket(t *testing.T) *xsk.Socket {
	t.Helper()
	testutil.NeedKernel(t)
	s, err := xsk.NewSocket()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestKernelTakesTheOptions(t *testing.T) {
	s := newSocket(t)
	for _, o := range []Options{
		{Budget: DefaultBudget, Timeout: DefaultTimeout}, {Budget: MaxBudget, Timeout: time.Second}, {Budget: 1, Timeout: time.Microsecond},
	} {
		if err := Enable(s.FD(), o); err != nil {
			t.Fatal(err)
		}
		st, err := Read(s.FD())
		if err != nil || !st.Preferred || st.Timeout != o.Timeout || st.NAPI != 0 || st.Budget != -1 && st.Budget != o.Budget {
			t.Errorf("enabled %+v, the kernel shows %+v, %v", o, st, err)
		}
	}
	for name, off := range map[string]func() error{
		"Disable":             func() error { return Disable(s.FD()) },
		"Enable of budget 0":  func() error { return Enable(s.FD(), Options{Timeout: DefaultTimeout}) },
		"Disable once more":   func() error { return Disable(s.FD()) },
		"Enable of the zeros": func() error { return Enable(s.FD(), Options{}) },
	} {
		if err := off(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		st, err := Read(s.FD())
		if err != nil || st.Preferred || st.Timeout != 0 {
			t.Errorf("after %s the kernel shows %+v, %v", name, st, err)
		}
	}
}

// withoutNetAdmin runs f on a thread that has no CAP_NET_ADMIN.
func withoutNetAdmin(t *testing.T, f func() error) error {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // not unlocked: the thread ends with the goroutine
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var data [2]unix.CapUserData
		if err := unix.Capget(&header, &data[0]); err != nil {
			done <- err
			return
		}
		data[0].Effective &^= 1 << unix.CAP_NET_ADMIN
		if err := unix.Capset(&header, &data[0]); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}

// Field case 26: without the capability nothing stays half on.
func TestWithoutCapabilityNothingChanges(t *testing.T) {
	s := newSocket(t)
	on := Options{Budget: 64, Timeout: DefaultTimeout}
	err := withoutNetAdmin(t, func() error { return Enable(s.FD(), on) })
	if !errors.Is(err, unix.EPERM) || errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "CAP_NET_ADMIN") {
		t.Errorf("enable without CAP_NET_ADMIN: %v", err)
	}
	if st, err := Read(s.FD()); err != nil || st.Preferred || st.Timeout != 0 {
		t.Errorf("after a refused enable the kernel shows %+v, %v", st, err)
	}
	// The last option is refused when the others are not: a larger budget than what is set.
	if err := Enable(s.FD(), Options{Budget: 8, Timeout: 5 * time.Microsecond}); err != nil {
		t.Fatal(err)
	}
	if err := withoutNetAdmin(t, func() error { return Enable(s.FD(), on) }); !errors.Is(err, unix.EPERM) {
		t.Errorf("a larger budget without CAP_NET_ADMIN: %v", err)
	}
	if st, err := Read(s.FD()); err != nil || !st.Preferred || st.Timeout != 5*time.Microsecond {
		t.Errorf("after a refused change the kernel shows %+v, %v; want what was set before", st, err)
	}
	if err := withoutNetAdmin(t, func() error { return Disable(s.FD()) }); err != nil {
		t.Errorf("disable without CAP_NET_ADMIN: %v", err)
	}
}

func TestNoSocketIsAnError(t *testing.T) {
	if _, err := Read(-1); !errors.Is(err, unix.EBADF) {
		t.Errorf("state of descriptor -1: %v", err)
	}
	if err := Enable(-1, Options{Budget: 64, Timeout: DefaultTimeout}); !errors.Is(err, unix.EBADF) {
		t.Errorf("enable on descriptor -1: %v", err)
	}
	if err := Disable(-1); !errors.Is(err, unix.EBADF) {
		t.Errorf("disable on descriptor -1: %v", err)
	}
}

// Nothing is called active unless the options are on, the NAPI is known and its deferral was read back.
func TestActiveOnlyWhenAllIsSeen(t *testing.T) {
	on := State{Preferred: true, Timeout: DefaultTimeout, NAPI: 8193, Budget: -1}
	napi := func(id uint32) *uint32 { return &id }
	deferred := &Deferral{HardIRQs: 2, GROFlushTimeout: 200 * time.Microsecond}
	all := Facts{Deferral: deferred, QueueNAPI: napi(8193), ZeroCopy: true}
	with := func(f func(*State, *Facts)) (State, Facts) { s, c := on, all; f(&s, &c); return s, c }

	for _, tc := range []struct {
		name   string
		change func(*State, *Facts)
		active bool
		reason string
	}{
		{"all is seen", func(*State, *Facts) {}, true, "polling NAPI 8193"},
		{"the kernel has no queue-get", func(_ *State, f *Facts) { f.QueueNAPI = nil }, true, "polling NAPI 8193"},
		{"queue-get knows no NAPI and the socket does", func(_ *State, f *Facts) { f.QueueNAPI = napi(0) }, true, "polling NAPI 8193"},
		{"copy mode", func(_ *State, f *Facts) { f.ZeroCopy = false }, true, "polling NAPI 8193"},
		{"turned off by the pod", func(s *State, _ *Facts) { s.Timeout, s.Preferred = 0, false }, false, "is off on the socket"},
		{"time turned off by the pod", func(s *State, _ *Facts) { s.Timeout = 0 }, false, "SO_BUSY_POLL is 0"},
		{"preference turned off by the pod", func(s *State, _ *Facts) { s.Preferred = false }, false, "SO_PREFER_BUSY_POLL is off"},
		{"no NAPI on the queue", func(s *State, f *Facts) { s.NAPI, f.QueueNAPI = 0, napi(0) }, false, "links this queue to no NAPI"},
		{"NAPI unknown to a copy-mode socket", func(s *State, f *Facts) { s.NAPI, f.ZeroCopy = 0, false }, false, "in copy mode"},
		{"NAPI unknown", func(s *State, f *Facts) { s.NAPI, f.QueueNAPI = 0, nil }, false, "no packet has come yet"},
		{"stale NAPI", func(s *State, _ *Facts) { s.NAPI = 8190 }, false, "NAPI 8190, which is gone: the queue has NAPI 8193"},
		{"deferral not read", func(_ *State, f *Facts) { f.Deferral = nil }, false, "could not be read"},
		// Field case 25: busy polling without deferral has no effect, and that is said.
		{"deferral off", func(_ *State, f *Facts) { f.Deferral = &Deferral{} }, false, "not deferred"},
		{"deferral without timer", func(_ *State, f *Facts) { f.Deferral = &Deferral{HardIRQs: 2} }, false, "gro_flush_timeout 0s"},
		{"timer without deferral", func(_ *State, f *Facts) { f.Deferral = &Deferral{GROFlushTimeout: 1} }, false, "napi_defer_hard_irqs 0"},
		{"the zero State", func(s *State, _ *Facts) { *s = State{} }, false, "is off on the socket"},
		{"the zero Facts", func(_ *State, f *Facts) { *f = Facts{} }, false, "could not be read"},
	} {
		got := Assess(with(tc.change))
		if got.Active != tc.active || !strings.Contains(got.Reason, tc.reason) {
			t.Errorf("%s: %+v; want active=%v, %q", tc.name, got, tc.active, tc.reason)
		}
	}
}
