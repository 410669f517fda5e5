//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/afxdp-project/afxdp/test/e2e/ledger"
)

func resourcesAppear(t *testing.T, c *cluster) {
	for _, n := range c.workers {
		c.offers(t, n, pool, queues)
	}
}

func chartTests(t *testing.T, c *cluster) {
	ctx, cancel := background(5 * time.Minute)
	defer cancel()
	out, err := c.chart.helm(ctx, c, "test", chartName, "--namespace", prefix, "--logs", "--timeout", helmLimit)
	if err != nil || !strings.Contains(out, c.nic+"-q") {
		t.Errorf("helm test: %v\n%s", err, out)
	}
	if err := c.kube.CoreV1().Pods(prefix).Delete(ctx, chartName+"-test", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}

func twoPodsExchange(t *testing.T, c *cluster) {
	s := c.space(t, "exchange", "restricted")
	s.start(t, pod{name: "answer", node: c.workers[1], queues: queues, args: []string{"answer"}})
	s.opened(t, "answer")
	s.start(t, pod{name: "send", node: c.workers[0], queues: queues, args: []string{"send"}})
	e := s.sent(t, "send")
	if len(e.Queues) != queues {
		t.Errorf("sent on %v; want %d queues", devices(e), queues)
	}
	if e.Identity.UID != arbitraryUID || e.Identity.Capabilities != noCapabilities {
		t.Errorf("the sender ran as %d with capabilities %s; want %d with none", e.Identity.UID, e.Identity.Capabilities, arbitraryUID)
	}
}

// noCapabilities is how the kernel writes that.
const noCapabilities = "0000000000000000"

func sharedNIC(t *testing.T, c *cluster) {
	s := c.space(t, "share", "restricted")
	half := queues / 2
	s.start(t,
		pod{name: "answer-1", node: c.workers[1], queues: half, args: []string{"answer"}},
		pod{name: "answer-2", node: c.workers[1], queues: half, args: []string{"answer"}})
	s.opened(t, "answer-1")
	s.opened(t, "answer-2")
	senders := []string{"send-1", "send-2"}
	tagOf := make(map[string]string) // by device
	for i, name := range senders {
		s.start(t, pod{name: name, node: c.workers[0], queues: half, args: []string{"send", "--tag", strconv.Itoa(i + 1)}})
	}
	for i, name := range senders {
		for _, d := range devices(s.sent(t, name)) {
			if tagOf[d] != "" {
				t.Errorf("%s was given to two pods", d)
			}
			tagOf[d] = strconv.Itoa(i + 1)
		}
	}
	if len(tagOf) != queues {
		t.Errorf("the senders had %d devices; want %d", len(tagOf), queues)
	}
	for _, name := range []string{"answer-1", "answer-2"} {
		e := s.last(t, startLimit, name, "it has counted all", func(e ledger.Event) error {
			for _, q := range e.Queues {
				if q.Received < 1000 {
					return fmt.Errorf("%s: received %d", q.Device, q.Received)
				}
			}
			return nil
		})
		for _, q := range e.Queues {
			if q.Wrong != 0 || len(q.Tags) != 1 || q.Tags[tagOf[q.Device]] != q.Received {
				t.Errorf("pod %s: %s: received %d packets, %v by sender, %d of another queue; want only those of sender %s",
					name, q.Device, q.Received, q.Tags, q.Wrong, tagOf[q.Device])
			}
		}
	}
}

func pendingUntilFreed(t *testing.T, c *cluster) {
	s := c.space(t, "pending", "restricted")
	n := c.workers[0]
	s.start(t,
		pod{name: "first", node: n, queues: queues / 2, args: []string{"hold"}},
		pod{name: "second", node: n, queues: queues / 2, args: []string{"hold"}})
	first := s.opened(t, "first")
	s.opened(t, "second")
	s.start(t, pod{name: "third", node: n, queues: 1, args: []string{"hold"}})
	eventually(t, startLimit, "the third pod waits", func(ctx context.Context) error {
		p, err := s.get(ctx, "third")
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable
		}) {
			return errors.New(describe(p))
		}
		return nil
	})
	s.end(t, "first", -1)
	third := s.opened(t, "third")
	if !slices.Contains(devices(first), devices(third)[0]) {
		t.Errorf("the third pod was given %v; want one of %v", devices(third), devices(first))
	}
}
