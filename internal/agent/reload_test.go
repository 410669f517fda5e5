package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/afxdp-project/afxdp/internal/agentapi"
	"github.com/afxdp-project/afxdp/internal/config"
	"github.com/afxdp-project/afxdp/internal/handoff/handofftest"
	"github.com/afxdp-project/afxdp/internal/testutil"
	"github.com/afxdp-project/afxdp/pkg/client"
)

func (n *node) configFile() string { return filepath.Join(n.dir, "config", "config.yaml") }

// configure writes the configuration as kubelet writes a ConfigMap: into a directory of its own, to which one rename
// turns a link.
func (n *node) configure(yaml string) {
	n.Helper()
	dir := filepath.Dir(n.configFile())
	if err := os.MkdirAll(dir, 0o755); err != nil {
		n.Fatal(err)
	}
	version, err := os.MkdirTemp(dir, "..version")
	if err != nil {
		n.Fatal(err)
	}
	before, _ := os.Readlink(filepath.Join(dir, "..data"))
	err = errors.Join(
		os.WriteFile(filepath.Join(version, "config.yaml"), []byte(yaml), 0o644),
		os.Symlink(filepath.Base(version), filepath.Join(dir, "..data_tmp")),
		os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")),
	)
	if err != nil {
		n.Fatal(err)
	}
	if before != "" {
		if err := os.RemoveAll(filepath.Join(dir, before)); err != nil {
			n.Fatal(err)
		}
	}
	if err := os.Symlink("..data/config.yaml", n.configFile()); err != nil && !errors.Is(err, fs.ErrExist) {
		n.Fatal(err)
	}
}

// reloaded waits for the outcome of a change of the configuration.
func (n *node) reloaded() error {
	n.Helper()
	select {
	case err := <-n.reloads:
		return err
	case <-time.After(20 * time.Second):
		n.Fatal("the changed configuration was not noticed")
		return nil
	}
}

// notReloaded waits to see that nothing more happens.
func (n *node) notReloaded() {
	n.Helper()
	select {
	case err := <-n.reloads:
		n.Errorf("the configuration was read again: %v", err)
	case <-time.After(3 * quiet):
	}
}

// pools are pools of agnear with queues of their own, by name.
func pools(queues ...string) string {
	yaml := "apiVersion: afxdp.io/v1alpha1\nkind: Configuration\npools:\n"
	for _, q := range queues {
		name, set, _ := strings.Cut(q, ":")
		yaml += fmt.Sprintf("- name: %s\n  nics: {names: [\"agnear*\"]}\n  queues: %q\n", name, set)
	}
	return yaml
}

// advertised waits until kubelet sees exactly these devices of a pool; an unhealthy one begins with "!".
func (n *node) advertised(pool string, want ...string) {
	n.Helper()
	var got []string
	n.wait(fmt.Sprintf("pool %s has %q", pool, want), func() bool {
		got = nil
		for _, d := range n.kubelet.Devices("afxdp.io/" + pool) {
			id := d.ID
			if !d.Healthy {
				id = "!" + id
			}
			got = append(got, id)
		}
		return slices.Equal(got, want)
	})
}

// resources waits until kubelet has the plugins of exactly these pools.
func (n *node) resources(pools ...string) {
	n.Helper()
	n.wait(fmt.Sprintf("kubelet has the pools %q", pools), func() bool {
		var got []string
		for _, r := range n.kubelet.Resources() {
			got = append(got, strings.TrimPrefix(r, "afxdp.io/"))
		}
		return slices.Equal(got, pools)
	})
}

func TestChangedConfigurationTakesEffectWithoutTouchingLeases(t *testing.T) {
	n := newNode(t, pools("fast:1-2"))
	n.advertised("fast", "agnear-q1", "agnear-q2")
	far := handofftest.NewFarEndOf(t, "agfar", 4)
	p := n.admit("u1", 1)
	p.makeRoom()
	p.receives(far)
	before, _ := n.agent.leases.Lease("agnear-q1")

	// fast loses a queue and gets other limits, slow is new.
	n.configure(pools("fast:1", "slow:2-3") + "  limits: {maxRingSize: 128}\n" +
		"  busyPoll: {budget: 0}\n")
	if err := n.reloaded(); err != nil {
		t.Fatal(err)
	}
	n.advertised("fast", "agnear-q1")
	n.advertised("slow", "agnear-q2", "agnear-q3")
	p.receives(far)
	if l, ok := n.agent.leases.Lease("agnear-q1"); !ok || l.Epoch != before.Epoch || l.Settings.MaxRingSize != before.Settings.MaxRingSize {
		t.Errorf("the lease is %+v, was %+v", l, before)
	}
	select {
	case <-p.client.Done():
		t.Errorf("the pod's connection ended: %v", p.client.Err())
	default:
	}
	if _, err := n.kubelet.StartContainer(t.Context(), "u1", "app"); err != nil {
		t.Errorf("container restart: %v", err)
	}
	n.shows(`afxdp_config_reloads_total{result="success"} 1`, `afxdp_devices{pool="slow",reason="",state="healthy"} 2`)

	// The lease keeps what it was made with, the next one is made with what is in force.
	n.configure(pools("fast:1-2", "slow:3") + "  limits: {maxRingSize: 128}\n")
	if err := n.reloaded(); err != nil {
		t.Fatal(err)
	}
	n.configure(strings.Replace(pools("fast:1-2", "slow:3"), `queues: "1-2"`, `queues: "1-2"`+"\n  limits: {maxRingSize: 256}", 1))
	if err := n.reloaded(); err != nil {
		t.Fatal(err)
	}
	n.advertised("fast", "agnear-q1", "agnear-q2")
	second := n.admit("u2", 1)
	if got := second.client.MaxRingSize(); got != 256 {
		t.Errorf("ring size limit of a new lease: %d, want 256", got)
	}
	err := p.netns.Do(func() error {
		c, err := client.Connect(t.Context(), p.path)
		if err != nil {
			return err
		}
		defer c.Close()
		if got := c.MaxRingSize(); got != config.DefaultMaxRingSize {
			t.Errorf("ring size limit of the old lease: %d, want %d", got, config.DefaultMaxRingSize)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestBadConfigurationIsRefusedAsAWhole(t *testing.T) {
	n := newNode(t, pools("fast:1-2"))
	n.advertised("fast", "agnear-q1", "agnear-q2")
	bad := pools("fast:1", "slow:3") + "  quues: 1\n  busyPoll: {budget: 70000}\n"
	n.configure(bad)
	err := n.reloaded()
	var mistakes config.Errors
	if !errors.As(err, &mistakes) || len(mistakes) != 2 {
		t.Fatalf("a configuration with two mistakes: %v", err)
	}
	n.configure(bad) // once more, as a re-read would find it
	n.notReloaded()
	for _, words := range []string{"did you mean queues?", "70000 is out of range"} {
		if got := strings.Count(n.log.String(), words); got != 2 { // by itself and in the error of the whole
			t.Errorf("%q is %d times in the log, want 2", words, got)
		}
	}
	n.shows(`afxdp_config_last_reload_successful 0`, `afxdp_config_reloads_total{result="failure"} 1`)
	n.advertised("fast", "agnear-q1", "agnear-q2")
	n.resources("fast")
	if err := os.Remove(n.configFile()); err != nil {
		t.Fatal(err)
	}
	if err := n.reloaded(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a configuration that is gone: %v", err)
	}
	n.resources("fast")

	n.configure(pools("fast:1-2")) // as it was
	if err := n.reloaded(); err != nil {
		t.Error(err)
	}
	n.shows(`afxdp_config_last_reload_successful 1`, `afxdp_config_reloads_total{result="success"} 1`)
	n.configure("# another comment\n" + pools("fast:1-2"))
	n.notReloaded()
}

// Editors write in place, or a new file that takes the name.
func TestEditedFileIsReadWhenItIsWhole(t *testing.T) {
	n := newNode(t, pools("fast:1"))
	n.advertised("fast", "agnear-q1")
	temp := n.configFile() + "~"
	if err := errors.Join(os.WriteFile(temp, []byte(pools("fast:2")), 0o644), os.Rename(temp, n.configFile())); err != nil {
		t.Fatal(err)
	}
	if err := n.reloaded(); err != nil {
		t.Fatal(err)
	}
	n.advertised("fast", "agnear-q2")
	// In two halves, of which the first is no good.
	f, err := os.Create(n.configFile())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	yaml := pools("fast:3")
	for _, half := range []string{yaml[:len(yaml)/2], yaml[len(yaml)/2:]} {
		time.Sleep(quiet / 4)
		if _, err := f.WriteString(half); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.reloaded(); err != nil {
		t.Errorf("half a file was read: %v", err)
	}
	n.advertised("fast", "agnear-q3")
}

// kubelet fails the start of a container whose resource has no plugin, so a pool that pods have devices of keeps it.
func TestRemovedPoolServesItsPodsToTheirEnd(t *testing.T) {
	n := newNode(t, pools("fast:1-2"))
	n.advertised("fast", "agnear-q1", "agnear-q2")
	far := handofftest.NewFarEndOf(t, "agfar", 2)
	p := n.admit("u1", 1)
	p.makeRoom()
	n.configure(pools("new:1-3"))
	if err := n.reloaded(); err != nil {
		t.Fatal(err)
	}
	// The queue is not given away twice.
	n.advertised("new", "!agnear-q1", "agnear-q2", "agnear-q3")
	n.advertised("fast")
	check := func(when string) {
		t.Helper()
		n.resources("fast", "new")
		if _, err := n.kubelet.StartContainer(t.Context(), "u1", "app"); err != nil {
			t.Errorf("container restart %s: %v", when, err)
		}
		p.receives(far)
	}
	check("after the reload")
	n.shows(`afxdp_devices{pool="new",reason="other_pool",state="unhealthy"} 1`, `afxdp_leases{pool="fast",state="active"} 1`)
	if !strings.Contains(n.log.String(), "pod default/pod-u1 has the queue from pool fast") {
		t.Error("the log does not say who has the queue")
	}
	other := attachRequest("u2", cookieOf(t, testutil.NewNetns(t)), []string{"agnear-q1"})
	other.Allocations[0].Resource = "afxdp.io/new"
	if _, err := n.api.Attach(t.Context(), other); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("ADD of another pod for the queue: %v, want it refused", err)
	}

	n.stop()
	n.start(pools("new:1-3"))
	n.advertised("new", "!agnear-q1", "agnear-q2", "agnear-q3")
	check("after the agent's")

	// A new sandbox of the pod gets the queue again.
	if _, err := n.api.Detach(t.Context(), &agentapi.DetachRequest{Attachment: p.request.Attachment}); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.set.Close(), p.client.Close()); err != nil {
		t.Fatal(err)
	}
	again := attachRequest("u1", cookieOf(t, testutil.NewNetns(t)), []string{"agnear-q1"})
	again.Attachment.ContainerId = "sandbox-again"
	if _, err := n.api.Attach(t.Context(), again); err != nil {
		t.Errorf("ADD of a new sandbox: %v", err)
	}
	n.advertised("new", "!agnear-q1", "agnear-q2", "agnear-q3")
	if _, err := n.api.Detach(t.Context(), &agentapi.DetachRequest{Attachment: again.Attachment}); err != nil {
		t.Fatal(err)
	}
	// The lease is gone, but kubelet knows the pod still.
	devices, err := n.agent.inventory.scan()
	if err != nil || devices["new"][0].Cause != string(causeOtherPool) || devices["fast"] == nil {
		t.Errorf("after the pod's DEL the pools are %+v, %v", devices, err)
	}

	if err := n.kubelet.RemovePod("u1"); err != nil {
		t.Fatal(err)
	}
	n.agent.rescan()
	n.resources("new")
	n.advertised("new", "agnear-q1", "agnear-q2", "agnear-q3")
}

// A queue that was allocated is taken although there is no lease of it yet.
func TestAllocatedQueueStaysWithItsPod(t *testing.T) {
	n := newNode(t, pools("fast:1", "slow:2"))
	n.advertised("fast", "agnear-q1")
	n.advertised("slow", "agnear-q2")
	devices := n.addPod("u1", 1)
	n.configure(pools("fast:2", "slow:1"))
	if err := n.reloaded(); err != nil {
		t.Fatal(err)
	}
	n.advertised("slow", "!agnear-q1")
	n.advertised("fast", "agnear-q2")
	if err := n.agent.inventory.grant("slow", []string{"agnear-q1"}); err == nil {
		t.Error("the queue can be allocated a second time")
	}
	pod := testutil.NewNetns(t)
	if _, err := n.api.Attach(t.Context(), attachRequest("u1", cookieOf(t, pod), devices)); err != nil {
		t.Fatal(err)
	}
	if _, err := n.kubelet.StartContainer(t.Context(), "u1", "app"); err != nil {
		t.Error(err)
	}
	// Only what kubelet gave to the pod.
	stranger := attachRequest("u3", cookieOf(t, pod), devices)
	if _, err := n.api.Attach(t.Context(), stranger); status.Code(err) != codes.NotFound {
		t.Errorf("ADD of a pod that kubelet has not given the queue: %v", err)
	}
}

// What kubelet is about to be answered is in no checkpoint yet.
func TestGrantCountsBeforeKubeletHasWrittenIt(t *testing.T) {
	n := newNode(t, pools("fast:1", "slow:2"))
	n.advertised("fast", "agnear-q1")
	n.advertised("slow", "agnear-q2")
	if err := n.agent.inventory.grant("fast", []string{"agnear-q1"}); err != nil {
		t.Fatal(err)
	}
	n.configure(pools("slow:1-2"))
	if err := n.reloaded(); err != nil {
		t.Fatal(err)
	}
	n.advertised("slow", "!agnear-q1", "agnear-q2")
	time.Sleep(allocateGrace)
	n.agent.rescan()
	n.resources("slow")
	n.advertised("slow", "agnear-q1", "agnear-q2")
}
