package netdev

import (
	"errors"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"
	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/netlink"
	"github.com/mdlayher/netlink/nltest"

	"github.com/afxdp-project/afxdp/internal/testutil"
)

// vethNAPI returns the only NAPI of a veth, which has it as long as it runs an XDP program.
func vethNAPI(t *testing.T, h *Handle) (Link, NAPI) {
	t.Helper()
	l := veth(t, h, 1)
	attachXDP(t, l.Index, link.XDPDriverMode)
	napis, err := h.NAPIs(l.Index)
	if err != nil || len(napis) != 1 || napis[0].ID == 0 || napis[0].Index != l.Index {
		t.Fatalf("NAPIs of link %d with an XDP program: %+v, %v; want one", l.Index, napis, err)
	}
	return l, napis[0]
}

func TestNAPISettingsAreThoseOfOneNAPI(t *testing.T) {
	h := open(t)
	l, n := vethNAPI(t, h)
	s := n.Settings
	if s.DeferHardIRQs == nil || s.GROFlushTimeout == nil || s.IRQSuspendTimeout == nil || s.Threaded == nil {
		t.Fatalf("settings that this kernel has are not returned: %+v", s)
	}
	if *s.DeferHardIRQs != 0 || *s.GROFlushTimeout != 0 || *s.Threaded != ThreadedOff || n.PID != 0 || n.IRQ != -1 {
		t.Errorf("an untouched NAPI: %+v", n)
	}
	must(t, h.SetNAPI(n.ID, NAPISettings{
		DeferHardIRQs:     new(uint32(2)),
		GROFlushTimeout:   new(200 * time.Microsecond),
		IRQSuspendTimeout: new(20 * time.Second),
	}))
	expect := func(deferral uint32, flush, suspend time.Duration) {
		t.Helper()
		got, err := h.NAPI(n.ID)
		must(t, err)
		s := got.Settings
		if *s.DeferHardIRQs != deferral || *s.GROFlushTimeout != flush || *s.IRQSuspendTimeout != suspend {
			t.Errorf("settings %d %v %v, want %d %v %v",
				*s.DeferHardIRQs, *s.GROFlushTimeout, *s.IRQSuspendTimeout, deferral, flush, suspend)
		}
	}
	expect(2, 200*time.Microsecond, 20*time.Second) // 20 s do not fit 32 bits of nanoseconds
	must(t, h.SetNAPI(n.ID, NAPISettings{DeferHardIRQs: new(uint32(5))}))
	expect(5, 200*time.Microsecond, 20*time.Second) // what is nil stays
	must(t, h.SetNAPI(n.ID, NAPISettings{}))
	expect(5, 200*time.Microsecond, 20*time.Second)
	must(t, h.SetNAPI(n.ID, s))
	expect(0, 0, *s.IRQSuspendTimeout) // put back
	if d, err := h.DeviceSettings(l.Index); err != nil || *d.DeferHardIRQs != 0 || *d.GROFlushTimeout != 0 {
		t.Errorf("the device's settings moved with the NAPI's: %+v, %v", d, err)
	}
}

func TestThreadedNAPINamesItsThread(t *testing.T) {
	h := open(t)
	_, n := vethNAPI(t, h)
	must(t, h.SetNAPI(n.ID, NAPISettings{Threaded: new(ThreadedOn)}))
	got, err := h.NAPI(n.ID)
	if err != nil || *got.Settings.Threaded != ThreadedOn || got.PID == 0 {
		t.Errorf("threaded NAPI: %+v, %v; want a thread", got, err)
	}
	must(t, h.SetNAPI(n.ID, NAPISettings{Threaded: new(ThreadedOff)}))
	if got, err = h.NAPI(n.ID); err != nil || *got.Settings.Threaded != ThreadedOff {
		t.Errorf("NAPI set back: %+v, %v", got, err)
	}
}

func TestNAPIIDIsGoneWhenTheLinkWasDown(t *testing.T) {
	h := open(t)
	l, n := vethNAPI(t, h)
	must(t, testutil.SetDown("nvnear"))
	if napis, err := h.NAPIs(l.Index); err != nil || len(napis) != 0 {
		t.Errorf("NAPIs of a device that is down: %+v, %v; want none", napis, err)
	}
	must(t, testutil.SetUp("nvnear"))
	for name, err := range map[string]error{
		"read": second(h.NAPI(n.ID)),
		"set":  h.SetNAPI(n.ID, NAPISettings{DeferHardIRQs: new(uint32(1))}),
	} {
		if !errors.Is(err, ErrNoNAPI) || errors.Is(err, ErrNoDevice) {
			t.Errorf("%s a NAPI of before: %v, want ErrNoNAPI", name, err)
		}
	}
}

func second(_ NAPI, err error) error { return err }

func TestBadNAPISettingsAreRefusedBeforeAnyIsSet(t *testing.T) {
	h := open(t)
	_, n := vethNAPI(t, h)
	for name, s := range map[string]NAPISettings{
		"deferral beyond 31 bits": {DeferHardIRQs: new(uint32(1 << 31))},
		"negative flush timeout":  {DeferHardIRQs: new(uint32(3)), GROFlushTimeout: new(time.Duration(-1))},
		"negative suspension":     {DeferHardIRQs: new(uint32(3)), IRQSuspendTimeout: new(time.Duration(-1))},
		"unknown threaded mode":   {DeferHardIRQs: new(uint32(3)), Threaded: new(ThreadedMode(99))}, // by the kernel
	} {
		if err := h.SetNAPI(n.ID, s); err == nil {
			t.Errorf("%s: no error", name)
		}
		if got, err := h.NAPI(n.ID); err != nil || *got.Settings.DeferHardIRQs != 0 {
			t.Errorf("%s: the deferral is set all the same: %+v, %v", name, got, err)
		}
	}
}

func TestNAPISettingThatTheKernelDoesNotReturnIsUnsupported(t *testing.T) {
	// Linux 6.13: a NAPI without the attribute "threaded".
	var commands []uint8
	h := &Handle{netdev: family{name: "netdev", id: 30}, generic: &conn{nl: nltest.Dial(
		func(req []netlink.Message) ([]netlink.Message, error) {
			var g genetlink.Message
			if err := g.UnmarshalBinary(req[0].Data); err != nil {
				return nil, err
			}
			commands = append(commands, g.Header.Command)
			ae := netlink.NewAttributeEncoder()
			ae.Uint32(netdevNAPIID, 513)
			ae.Uint32(netdevNAPIDeferHardIRQs, 7)
			ae.Uint32(netdevNAPIGROFlush, 9) // a uint as 4 bytes
			attrs, err := ae.Encode()
			if err != nil {
				return nil, err
			}
			data, err := genetlink.Message{Header: g.Header, Data: attrs}.MarshalBinary()
			return []netlink.Message{{
				Header: netlink.Header{Sequence: req[0].Header.Sequence, PID: nltest.PID}, Data: data,
			}}, err
		})}}
	n, err := h.NAPI(513)
	if err != nil || *n.Settings.DeferHardIRQs != 7 || *n.Settings.GROFlushTimeout != 9 || n.Settings.Threaded != nil {
		t.Fatalf("read: %+v, %v", n, err)
	}
	err = h.SetNAPI(513, NAPISettings{DeferHardIRQs: new(uint32(2)), Threaded: new(ThreadedOn)})
	if !errors.Is(err, ErrUnsupported) {
		t.Errorf("set: %v, want ErrUnsupported", err)
	}
	for _, c := range commands {
		if c == netdevCmdNAPISet {
			t.Error("something was set although part of it is not supported")
		}
	}
}
