package client_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/afxdp-project/afxdp/internal/handoff/handofftest"
	"github.com/afxdp-project/afxdp/internal/testutil"
	"github.com/afxdp-project/afxdp/pkg/client"
	"github.com/afxdp-project/afxdp/pkg/xsk"
)

func connect(t *testing.T, p *handofftest.Pod, path string) (c *client.Client, err error) {
	t.Helper()
	err = p.Netns.Do(func() (err error) {
		c, err = client.Connect(context.Background(), path)
		return err
	})
	return c, err
}

func TestConnectTakesDirectoryOrSocket(t *testing.T) {
	n := handofftest.New(t)
	p := n.NewPod("a")
	p.Add(handofftest.DefaultSettings, 1)
	path := n.Serve("x", 0, 1)
	for _, path := range []string{path, filepath.Dir(path), filepath.Dir(path) + "/"} {
		c, err := connect(t, p, path)
		if err != nil {
			t.Fatal(err)
		}
		s := handofftest.DefaultSettings
		if c.Pool() != "fast" || c.MaxUMEM() != s.MaxUMEM || c.MaxRingSize() != s.MaxRingSize || c.Resumes() != 0 {
			t.Errorf("pool %s, limits %d, %d, %d resumes", c.Pool(), c.MaxUMEM(), c.MaxRingSize(), c.Resumes())
		}
		want := client.Device{Index: 1, Netdev: handofftest.NIC, Queue: 1, NUMANode: n.Link.NUMANode, MTU: 1500, Leased: true}
		if d := c.Devices(); len(d) != 2 || d[1] != want || d[0] != (client.Device{NUMANode: -1}) {
			t.Errorf("devices %+v", d)
		}
		if err := errors.Join(c.Close(), c.Close(), c.Err()); err != nil {
			t.Error(err)
		}
		<-c.Done()
	}
}

func TestRefusalsHaveCodesAndReasons(t *testing.T) {
	n := handofftest.New(t)
	p := n.NewPod("a")
	path := n.Serve("x", 0)
	isRefused := func(err error, code client.Code, words ...string) {
		t.Helper()
		var refused *client.Error
		if !errors.As(err, &refused) || refused.Code != code {
			t.Errorf("got %v, want code %d", err, code)
		}
		for _, w := range words {
			if !says(err, w) {
				t.Errorf("got %v, want %q in it", err, w)
			}
		}
	}
	_, err := connect(t, p, path)
	isRefused(err, client.CodeNotLeased, "connect to the node agent at "+path, "the CNI plugin has not run for the pod yet")

	p.Add(handofftest.DefaultSettings, 0)
	c, err := connect(t, p, path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = c.Register(client.UMEMConfig{UMEMConfig: xsk.UMEMConfig{Frames: 1 << 20}})
	isRefused(err, client.CodeLimit, "4294967296 bytes are more than the pool's limit of 67108864")
	_, err = c.Register(client.UMEMConfig{UMEMConfig: xsk.UMEMConfig{Frames: 64}, ZeroCopy: xsk.ZeroCopyRequire})
	isRefused(err, client.CodeUnsupported, "register UMEM", "not all devices of the pod have it: hnear")
	if _, err := c.Register(client.UMEMConfig{}); !says(err, "frames: 0") {
		t.Errorf("no frames: %v", err)
	}
	if _, err = c.Open(0, nil, client.OpenConfig{}); !says(err, "neither Register nor Join was called") {
		t.Errorf("Open before Register: %v", err)
	}
	umem, err := c.Register(client.UMEMConfig{UMEMConfig: xsk.UMEMConfig{Frames: 64}, ZeroCopy: xsk.ZeroCopyOff})
	if err != nil {
		t.Fatal(err)
	}
	defer umem.Close()
	_, err = c.Open(0, umem, client.OpenConfig{Rings: xsk.RingSizes{RX: 4096}})
	isRefused(err, client.CodeLimit, "open hnear queue 0", "larger than the pool's limit of 1024")
	if _, err = c.Open(0, umem, client.OpenConfig{Rings: xsk.RingSizes{RX: 63}}); !says(err, "no power of two") {
		t.Errorf("ring of 63: %v", err)
	}
	if _, err = c.Open(1, umem, client.OpenConfig{}); !says(err, "open device 1: the allocation has 1") {
		t.Errorf("no such device: %v", err)
	}
	q, err := c.Open(0, umem, client.OpenConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if q.Rings.RX.Size() != 1024 || q.Mode.ZeroCopy || !q.Mode.NeedWakeup || q.Mode.Obstacle != "busy polling is off in pool fast" {
		t.Errorf("rx ring of %d, mode %+v", q.Rings.RX.Size(), q.Mode)
	}
	_, err = c.Open(0, umem, client.OpenConfig{})
	isRefused(err, client.CodeBusy, "this connection has it open")
	if err := errors.Join(q.Close(), q.Close()); err != nil {
		t.Error(err)
	}
	if err := c.Join(q); !says(err, "join the UMEM of hnear queue 0: the queue is closed") {
		t.Errorf("Join of a closed queue: %v", err)
	}
}

func TestOpenAllLeavesNothingOnError(t *testing.T) {
	n := handofftest.New(t)
	p := n.NewPod("a")
	p.Add(handofftest.DefaultSettings, 0, 1)
	path := n.Serve("x", 0, 1)
	holder, err := connect(t, p, path)
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Close()
	umem, err := holder.Register(client.UMEMConfig{UMEMConfig: xsk.UMEMConfig{Frames: 64}})
	if err != nil {
		t.Fatal(err)
	}
	defer umem.Close()
	q, err := holder.Open(1, umem, client.OpenConfig{})
	if err != nil {
		t.Fatal(err)
	}
	c, err := connect(t, p, path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	before := testutil.OpenFDs()
	if set, err := c.OpenAll(client.AllConfig{}); err == nil || set != nil || !strings.Contains(err.Error(), "open hnear queue 1") {
		t.Errorf("got %v, %v", set, err)
	}
	if leaked := testutil.LeakedFDs(before); leaked != nil {
		t.Errorf("left open: %v", leaked)
	}
	if n.IsOpen(handofftest.Device(0)) {
		t.Error("the device that was opened is still open")
	}
	if _, err := c.OpenAll(client.AllConfig{FramesPerQueue: 1 << 31}); !says(err, "too many") {
		t.Errorf("more frames than there can be: %v", err)
	}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	set, err := c.OpenAll(client.AllConfig{FramesPerQueue: 100})
	if err != nil {
		t.Fatal(err)
	}
	if len(set.Queues) != 2 || set.UMEM.Config.Frames != 200 || set.Frames[1].Free() != 100 {
		t.Errorf("%d queues, %d frames, %d free", len(set.Queues), set.UMEM.Config.Frames, set.Frames[1].Free())
	}
	if err := set.Close(); err != nil {
		t.Error(err)
	}
}

func TestConnectWithoutAnAgentSaysSo(t *testing.T) {
	n := handofftest.New(t)
	path := n.Serve("x", 0)
	n.Stop()
	defer n.Start()
	before := testutil.OpenFDs()
	for path, want := range map[string]string{
		path:                               "the agent is not running",
		filepath.Dir(path):                 "the agent is not running",
		t.TempDir():                        "not the directory of an allocation, or the agent has not run since the node was started",
		"/run/" + strings.Repeat("x", 103): "has 108 bytes, at most 107 are possible",
	} {
		if _, err := client.Connect(context.Background(), path); !says(err, want) {
			t.Errorf("%s: got %v, want %q", path, err, want)
		}
	}
	if leaked := testutil.LeakedFDs(before); leaked != nil {
		t.Errorf("left open: %v", leaked)
	}
}

func TestEnvironmentNamesThePools(t *testing.T) {
	t.Setenv("AFXDP_TEST_INSIDE", "1") // no path
	if _, err := client.DefaultPath(); !says(err, "no AFXDP_<POOL> variable is set") {
		t.Errorf("no pool: %v", err)
	}
	t.Setenv("AFXDP_FAST", "/run/afxdp/fast")
	if path, err := client.DefaultPath(); path != "/run/afxdp/fast" || err != nil {
		t.Errorf("one pool: %s, %v", path, err)
	}
	t.Setenv("AFXDP_SLOW_2", "/run/afxdp/slow-2")
	if _, err := client.DefaultPath(); !says(err, "2 AFXDP_<POOL> variables are set") {
		t.Errorf("two pools: %v", err)
	}
	if p := client.Pools(); len(p) != 2 || p["FAST"] != "/run/afxdp/fast" || p["SLOW_2"] != "/run/afxdp/slow-2" {
		t.Errorf("pools %v", p)
	}
}
