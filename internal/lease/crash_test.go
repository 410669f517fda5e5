package lease

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/pkg/netdev"
	"github.com/afxdp-project/afxdp/pkg/xsk"
)

// storyEnv has the test binary be an agent that is killed: "life 12" lives the life of two pods and is killed at its
// 12th step, "start 3" only starts and is killed at its third, "uninstall 5" uninstalls below two pods. At step 0 nothing
// is killed. What follows is its world.
const storyEnv = "AFXDP_LEASE_STORY"

// tellStory is the main function of such an agent. It prints the steps that it takes.
func tellStory() int {
	var which string
	var kill, steps int
	var w world
	if _, err := fmt.Sscan(os.Getenv(storyEnv), &which, &kill, &w.state, &w.pins, &w.sysfs); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	fault := func(step string) error {
		fmt.Println(step)
		if steps++; steps == kill {
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
			select {}
		}
		return nil
	}
	if err := liveAndDie(which, w, fault); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func liveAndDie(which string, w world, fault func(string) error) error {
	nics, err := netdev.Config{SysfsRoot: w.sysfs}.Open()
	if err != nil {
		return err
	}
	m, findings, err := New(Config{StateDir: w.state, PinDir: w.pins, NICs: nics, Fault: fault, napis: &fakeNAPIs{oldest: true}})
	if err = errors.Join(append(findings, err)...); err != nil || which == "start" {
		return err
	}
	link, err := nics.LinkByName(near)
	if err != nil {
		return err
	}
	add := func(p pod, queues ...int) error {
		r := Request{Pod: Pod{UID: "uid-" + p.name, Namespace: "default", Name: p.name}, NetnsCookie: p.cookie,
			Attachment: p.attachment("eth0")}
		for _, q := range queues {
			s := pooled
			s.DeferHardIRQs += uint32(q) // the last device changes what the earlier ones have set
			r.Devices = append(r.Devices, DeviceRequest{Device{deviceID(q), link, q}, s})
		}
		return m.Activate(r)
	}
	story := []func() error{
		func() error { return add(alice, 0, 1) },
		func() error { return add(bob, 2) },
		func() error { return openAndClose(m, link) },
	}
	if which == "uninstall" {
		story = append(story, func() error { return uninstall(m) })
	} else {
		story = append(story,
			func() error { return m.Detach(bob.attachment("eth0")) },
			func() error { return m.Detach(alice.attachment("eth0")) },
			func() error { return maintain(m) })
	}
	for _, chapter := range story {
		if err := chapter(); err != nil {
			return err
		}
	}
	return nil
}

func openAndClose(m *Manager, link netdev.Link) error {
	g, err := m.Grant(deviceID(0), alice.cookie)
	if err != nil {
		return err
	}
	s, err := xsk.NewSocket()
	if err != nil {
		return err
	}
	umem, err := xsk.NewUMEM(xsk.UMEMConfig{Frames: 2})
	if err != nil {
		return err
	}
	if err := s.RegisterUMEM(umem.Bytes(), umem.Config); err != nil {
		return err
	}
	if err := s.SetRings(portRings); err != nil {
		return err
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		err := s.Bind(xsk.BindConfig{Ifindex: link.Index, Mode: xsk.ZeroCopyOff})
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return err
		}
	}
	c, err := s.Cookie()
	if err != nil {
		return err
	}
	if err := m.Opened(g, s, Socket{Cookie: c, Group: c}, ignored); err != nil {
		return err
	}
	m.Closed(g.Device, g.Epoch, true)
	return nil
}

// maintain waits until nothing is left to do.
func maintain(m *Manager) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		pending, err := m.Maintain()
		if err != nil || !pending {
			return err
		}
		if time.Now().After(deadline) {
			return errors.New("there is still something left to do")
		}
	}
}

// run runs an agent that is killed at a step, and returns the steps that it took, and whether it was killed.
func (n *node) run(story string, kill int) (steps []string, killed bool) {
	n.tb.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0", "GOMAXPROCS=1",
		fmt.Sprintf("%s=%s %d %s %s %s", storyEnv, story, kill, n.state, n.pins, n.sysfs))
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output() // in the namespace of this goroutine's thread
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		n.tb.Fatal(err)
	}
	status := cmd.ProcessState.Sys().(syscall.WaitStatus)
	killed = status.Signaled() && status.Signal() == unix.SIGKILL
	if err != nil && !killed {
		n.tb.Fatalf("%s, to be killed at step %d: %v: %s", story, kill, err, errs.String())
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n"), killed
}

// Field case 22: an agent that is killed, at whatever step, leaves leases that are whole or a NIC that the next one
// makes as it was. The next one may be killed while it does that.
func TestKilledAtEveryStep(t *testing.T) {
	t.Parallel()
	n := emptyNode(t)
	before := n.now()
	steps, _ := n.run("life", 0)
	n.wantState("after a whole life", before)
	if len(steps) < 30 {
		t.Errorf("the story has only %d steps: %v", len(steps), steps)
	}
	const worlds = 5 // they share the work
	for w := range worlds {
		t.Run(strconv.Itoa(w), func(t *testing.T) {
			t.Parallel()
			n := emptyNode(t)
			n.setKnobs(1, 5000)
			before := n.now()
			for at := w; at < len(steps) && !t.Failed(); at += worlds {
				n.killAndRecover(at, steps[at], before)
			}
		})
	}
}

func (n *node) killAndRecover(at int, step string, before nicState) {
	n.tb.Helper()
	when := fmt.Sprintf("killed at step %d, %s:", at+1, step)
	if _, killed := n.run("life", at+1); !killed {
		n.tb.Fatalf("%s it was not", when)
	}
	// So is each other next agent, if it has so much to do.
	if at%2 == 0 {
		if steps, killed := n.run("start", 1+at/2%7); killed {
			when += fmt.Sprintf(" and again at %s:", steps[len(steps)-1])
		}
	}
	n.start()
	n.wantWholeOrNothing(when, before)
	if at%3 == 0 { // the runtime tries again
		n.ok(n.Activate(n.request(alice, 0, 1)))
		n.ok(n.Activate(n.request(bob, 2)))
		n.wantWholeOrNothing(when+" and added again", before)
	}
	n.del(alice)
	n.del(bob)
	n.ok(maintain(n.Manager))
	n.ok(n.Close())
	n.wantState(when, before)
	n.wantNothingLeft()
}

// wantWholeOrNothing checks that each lease is whole, or the NIC as it was.
func (n *node) wantWholeOrNothing(when string, before nicState) {
	n.tb.Helper()
	active := 0
	for _, l := range n.Leases() {
		switch l.State {
		case StateActive:
			active++
			g, err := n.Grant(l.Device, l.NetnsCookie)
			if err != nil || !g.Tuning.Deferral {
				n.tb.Errorf("%s %s cannot be opened: %v, %+v", when, l.Device, err, g.Tuning)
			}
		case StateHeld:
		default:
			n.tb.Errorf("%s %s is %s", when, l.Device, l.State)
		}
	}
	if active == 0 {
		n.wantState(when, before)
		return
	}
	n.wantAttached(when)
	var most uint64
	for _, l := range n.Leases() {
		if l.State == StateActive {
			most = max(most, uint64(l.Settings.DeferHardIRQs))
		}
	}
	n.wantKnobs(when, strconv.FormatUint(most, 10), "200000")
}
