package main

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// flow lets packets flow for a time, and goes on while they do.
func (s *story) flow(d time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		before := s.source.total()
		s.source.resume()
		if err := sleep(ctx, d); err != nil {
			return err
		}
		s.showFlow(before, d)
		return s.alive()
	}
}

func (s *story) showFlow(before tally, d time.Duration) {
	sent := s.source.total().Sent - before.Sent
	s.screen.step("traffic: %d packets in %v, %.0f a second", sent, d.Round(time.Millisecond), float64(sent)/d.Seconds())
}

// alive fails when packets do not flow any more.
func (s *story) alive() error {
	select {
	case <-s.source.ended:
		return fmt.Errorf("the traffic source has ended: %w", s.source.err)
	case <-s.pod.ended:
		return fmt.Errorf("the pod's program has ended: %w: %s", s.pod.err, s.pod.said())
	default:
		return nil
	}
}

// drain stops the source, waits for all answers, and returns what the pod has counted by then.
func (s *story) drain(ctx context.Context) (benchReport, error) {
	ctx, cancel := s.within(ctx)
	defer cancel()
	if err := s.source.pause(ctx); err != nil {
		return benchReport{}, err
	}
	received := func() (sum uint64) {
		for _, r := range s.ended {
			sum += r.received()
		}
		return sum
	}()
	total := s.source.total()
	return s.pod.until(ctx, fmt.Sprintf("it had counted all of the %d packets that it has answered", total.Answered-received),
		func(r benchReport) bool { return received+r.received() >= total.Answered })
}

// killPod kills the pod's program when all that was sent is answered: a packet that comes while no program runs would be
// nobody's.
func (s *story) killPod(ctx context.Context) error {
	last, err := s.drain(ctx)
	if err != nil {
		return err
	}
	s.screen.step("source paused, all %d packets answered; pod killed with -9", s.source.total().Answered)
	s.ended = append(s.ended, last)
	return s.pod.kill()
}

// killAgent kills the agent under traffic and starts another one, to which the pod's program connects by itself.
func (s *story) killAgent(ctx context.Context) error {
	before := s.pod.latest()
	if err := s.agent.kill(); err != nil {
		return err
	}
	killed := s.source.total()
	s.screen.step("agent killed with -9 under traffic")
	if err := sleep(ctx, noAgent); err != nil {
		return err
	}
	without := s.source.total().Answered - killed.Answered
	if without == 0 {
		return fmt.Errorf("no packet was answered in %v without an agent", noAgent)
	}
	if err := s.startAgent(ctx); err != nil {
		return err
	}
	ctx, cancel := s.within(ctx)
	defer cancel()
	now, err := s.pod.until(ctx, "it resumed", func(r benchReport) bool { return r.Resumes > before.Resumes })
	if err != nil {
		return err
	}
	s.outcome.AgentRestarts = now.Resumes
	s.screen.step("pod resumed with the new agent; %d packets were answered in the %v without one", without, noAgent)
	return nil
}

// flowToTheEnd lets packets flow until there were enough of them, for long enough.
func (s *story) flowToTheEnd(ctx context.Context) error {
	ctx, cancel := s.within(ctx)
	defer cancel()
	before, start := s.source.total(), time.Now()
	// More than what must be shown, since the time of the draining counts too. A machine that is busy with other things
	// gets more time.
	var sent, seconds float64
	err := s.source.until(ctx, func() bool {
		sent, seconds = float64(s.source.total().Sent), s.source.flowed().Seconds()
		return seconds >= wholeFlow.Seconds() && sent >= 1.1*minPackets && sent >= 1.1*minRate*seconds
	})
	if err != nil {
		return fmt.Errorf("%w: %.0f packets in %.1f s; is the machine busy with other things?", err, sent, seconds)
	}
	s.showFlow(before, time.Since(start))
	return s.alive()
}

// watch shows once a second how packets flow.
func (s *story) watch(ctx context.Context) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	last, lastTime := s.source.tallies(), time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			tallies := s.source.tallies()
			if s.source.sending() {
				var parts []string
				for i, t := range tallies {
					rate := float64(t.Answered-last[i].Answered) / now.Sub(lastTime).Seconds()
					parts = append(parts, fmt.Sprintf("queue %d: %.0f packets/s, %d answered", s.source.lanes[i].queue, rate, t.Answered))
				}
				s.screen.flash(strings.Join(parts, "   "))
			}
			last, lastTime = tallies, now
		}
	}
}

// sleep waits, unless ctx ends first.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
