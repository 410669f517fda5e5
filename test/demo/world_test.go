package main

import (
	"os"
	"slices"
	"strings"
	"testing"
)

func TestChangesNameWhatCameWentAndChanged(t *testing.T) {
	before := world{"mount /run": "tmpfs", "xdp": "none", "mtu": "1500"}
	after := world{"xdp": "native", "mtu": "1500", "process 7": "afxdp-bench"}
	want := []string{"process 7: afxdp-bench, was not there before", "xdp: native, was none", "mount /run: gone, was tmpfs"}
	if got := before.changes(after); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := before.changes(before); len(got) != 0 {
		t.Errorf("no change is reported as %q", got)
	}
}

func TestMountinfoIsRead(t *testing.T) {
	for line, want := range map[string]mount{
		"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n": {"/mnt1", "/mnt2", "ext3"},
		"99 35 0:4 net:[4026532305] /run/demo/netns rw - nsfs nsfs rw\n":                   {"net:[4026532305]", "/run/demo/netns", "nsfs"},
		"36 35 98:0": {},
	} {
		if got := parseMount(line); got != want {
			t.Errorf("%q: %+v, want %+v", line, got, want)
		}
	}
}

const status = `Name:	afxdp-bench
Uid:	65534	65534	65534	65534
Groups:	
CapInh:	0000000000000001
CapPrm:	0000000000000002
CapEff:	0000000000000004
CapBnd:	0000000000000008
CapAmb:	0000010000000000
NoNewPrivs:	1
`

func TestRightsAreOfAllSetsAndThreads(t *testing.T) {
	r, err := parseRights(status)
	if want := (rights{uid: 65534, caps: 0x1000000000f, noNewPrivs: true}); err != nil || r != want {
		t.Errorf("%+v, %v; want %+v", r, err, want)
	}
	other, err := parseRights(strings.NewReplacer("65534\n", "0\n", "Groups:\t", "Groups:\t0 10 ", "Privs:\t1", "Privs:\t0").Replace(status))
	if want := (rights{uid: -1, caps: 0x1000000000f, groups: "0 10"}); err != nil || other != want {
		t.Errorf("%+v, %v; want %+v", other, err, want)
	}
	r.add(other)
	if r != other {
		t.Errorf("together %+v, want %+v", r, other)
	}
	for _, broken := range []string{"", "Uid:\t1\t1\t1\t1\n", strings.Replace(status, "\t65534\n", "\n", 1), strings.Replace(status, "CapAmb", "Cap", 1)} {
		if _, err := parseRights(broken); err == nil {
			t.Errorf("no error for %q", broken)
		}
	}
}

func TestRightsOfAProcessComeFromTheKernel(t *testing.T) {
	r, err := rightsOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if r.uid != os.Getuid() {
		t.Errorf("uid %d, want %d", r.uid, os.Getuid())
	}
	if _, err := lockLimitOf(os.Getpid()); err != nil {
		t.Error(err)
	}
}

func TestBenchReportsAddUp(t *testing.T) {
	c := &container{change: make(chan struct{})}
	c.report([]byte(`{"mode":"l2fwd","end":"running","resumes":1,"queues":[
		{"netdev":"demo0","queue":1,"rx_packets":5,"drops":{"rx_dropped":1,"rx_ring_full":2,"rx_fill_ring_empty":4,"rx_invalid":8,"tx_invalid":16}},
		{"netdev":"demo0","queue":2,"rx_packets":6,"drops":{"rx_dropped":32}}]}`))
	r := c.latest()
	if got := r.received(); got != 11 {
		t.Errorf("received %d, want 11", got)
	}
	if got, err := r.dropped(); err != nil || got != 63 {
		t.Errorf("dropped %d, %v; want 63", got, err)
	}
	if got := r.devices(); !slices.Equal(got, []string{"demo0-q1", "demo0-q2"}) {
		t.Errorf("devices %q", got)
	}
	c.report([]byte(`{"queues":[{"drops":null}]}`))
	r = c.latest()
	if _, err := r.dropped(); err == nil {
		t.Error("no error for statistics that could not be read")
	}
	c.report([]byte("panic: no"))
	if !strings.Contains(c.said(), "panic: no") {
		t.Errorf("said: %q", c.said())
	}
}
