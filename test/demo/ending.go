package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/afxdp-project/afxdp/internal/lease"
)

// stopPod has the pod's program end by itself, after all that was sent is answered.
func (s *story) stopPod(ctx context.Context) error {
	if _, err := s.drain(ctx); err != nil {
		return err
	}
	ctx, cancel := s.within(ctx)
	defer cancel()
	last, err := s.pod.stop(ctx)
	if err != nil {
		return err
	}
	s.ended = append(s.ended, last)
	s.screen.step("source stopped, all %d packets answered; pod stopped", s.source.total().Answered)
	received := s.received()
	for _, l := range s.source.lanes {
		t, device := l.ledger.tally(), deviceOf(l.queue)
		s.screen.step("    %s: %d sent, %d received by the pod, %d answered", device, t.Sent, received[device], t.Answered)
		if received[device] != t.Sent {
			err = errors.Join(err, fmt.Errorf("%s: %d packets were sent, and the pod has received %d", device, t.Sent, received[device]))
		}
	}
	return err
}

// deviceOf returns how kubelet calls a queue of the NIC.
func deviceOf(queue int) string { return fmt.Sprintf("%s-q%d", nearNIC, queue) }

// received adds up what the runs of the pod's program have counted, by device.
func (s *story) received() map[string]uint64 {
	sum := make(map[string]uint64)
	for _, r := range s.ended {
		for i, device := range r.devices() {
			sum[device] += r.Queues[i].Received
		}
	}
	return sum
}

// detach takes the pod off the node as a container runtime does, with a DEL more than needed.
func (s *story) detach(ctx context.Context) error {
	ctx, cancel := s.within(ctx)
	defer cancel()
	for range 2 {
		if err := s.network.del(ctx); err != nil {
			return err
		}
	}
	if err := removePodNetns(); err != nil {
		return err
	}
	if err := s.kubelet.RemovePod(thePod.uid); err != nil {
		return err
	}
	s.screen.step("CNI DEL, and DEL again; the pod's network namespace is removed")
	return nil
}

func (s *story) stopAgent(ctx context.Context) error {
	// The agent goes on looking until the queues, which the kernel frees some time after the last socket, are free.
	stepCtx, cancel := s.within(ctx)
	err := s.settle(stepCtx, "the leases' end", func() ([]string, error) {
		return filepath.Glob(filepath.Join(runDir, "state", "lease-*"))
	})
	cancel()
	if err != nil {
		return err
	}
	ctx, cancel = context.WithTimeoutCause(ctx, patience, fmt.Errorf("not done within %v", patience))
	defer cancel()
	if err := s.agent.stop(ctx); err != nil {
		return err
	}
	s.screen.step("agent stopped")
	s.agent = nil
	return nil
}

// compare looks whether NIC and node are as they were before the agent came.
func (s *story) compare(ctx context.Context) error {
	ctx, cancel := s.within(ctx)
	defer cancel()
	// The kernel takes a moment to let go of what processes had that ended.
	nicErr := s.settle(ctx, nearNIC, func() ([]string, error) {
		now, err := lookAtNIC(s.node.nics, nearNIC)
		return s.nicBefore.changes(now), err
	})
	s.outcome.Restored = nicErr == nil
	nodeErr := s.settle(ctx, "the node", func() ([]string, error) {
		now, err := lookAtNode()
		s.outcome.Leftovers = s.nodeBefore.changes(now)
		return s.outcome.Leftovers, err
	})
	if err := errors.Join(nicErr, nodeErr); err != nil {
		return err
	}
	s.screen.step("%s is as it was before (%d points), and so is the node: namespaces, mounts, /sys/fs/bpf, processes, devices (%d points)",
		nearNIC, len(s.nicBefore), len(s.nodeBefore))
	return nil
}

// settle waits until nothing differs any more, for two seconds.
func (s *story) settle(ctx context.Context, what string, differences func() ([]string, error)) error {
	for deadline := time.Now().Add(2 * time.Second); ; {
		diff, err := differences()
		switch {
		case err != nil:
			return err
		case len(diff) == 0:
			return nil
		case time.Now().After(deadline):
			return fmt.Errorf("%s is not as before: %s", what, strings.Join(diff, "; "))
		}
		if err := sleep(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

// noteUMEM finds out whether the pod's sockets share one UMEM: the agent's journal says with which socket the UMEM of
// each was registered, and the kernel which memory the program has mapped for one.
func (s *story) noteUMEM(pid int, first bool) error {
	groups, err := leaseGroups()
	if err != nil {
		return err
	}
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return err
	}
	memories := make(map[string]bool) // by inode
	for line := range strings.Lines(string(maps)) {
		if f := strings.Fields(line); len(f) > 5 && strings.HasPrefix(f[5], "/memfd:") {
			memories[f[4]] = true
		}
	}
	shared := len(groups) == podQueues && len(slices.Compact(groups)) == 1 && groups[0] != 0 && len(memories) == 1
	s.outcome.SharedUMEM = shared && (first || s.outcome.SharedUMEM)
	return nil
}

// leaseGroups returns for each lease in the agent's journal the cookie of the socket that has its UMEM, sorted.
func leaseGroups() ([]uint64, error) {
	files, err := filepath.Glob(filepath.Join(runDir, "state", "lease-*"))
	if err != nil {
		return nil, err
	}
	var groups []uint64
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		var document struct {
			Body lease.Lease `json:"body"`
		}
		if err := json.Unmarshal(text, &document); err != nil {
			return nil, fmt.Errorf("read %s: %w", f, err)
		}
		if socket := document.Body.Socket; socket != nil {
			groups = append(groups, socket.Group)
		}
	}
	slices.Sort(groups)
	return groups, nil
}

// count adds up the outcome.
func (s *story) count() error {
	if s.source == nil {
		return nil
	}
	o := &s.outcome
	total := s.source.total()
	o.Seconds = s.source.flowed().Seconds()
	o.Sent, o.Answered = total.Sent, total.Answered
	drops, err := s.source.dropped()
	o.Drops = drops + total.missing()
	received := s.received()
	for _, device := range s.devices {
		o.PerQueue = append(o.PerQueue, received[device])
		o.Received += received[device]
	}
	for _, r := range s.ended {
		dropped, derr := r.dropped()
		err = errors.Join(err, derr)
		o.Drops += dropped
		for _, q := range r.Queues {
			o.Drops += q.NotCompleted
		}
	}
	if total.faults() > 0 {
		err = errors.Join(err, fmt.Errorf("answers that should not have come: %s", s.source.describe()))
	}
	return err
}

// showLogs shows what the agent wrote.
func (s *story) showLogs() {
	if _, err := os.Stat(agentLog); err == nil {
		s.screen.step("%s", tail(agentLog))
	}
}
