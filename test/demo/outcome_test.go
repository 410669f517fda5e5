package main

import (
	"strings"
	"testing"
	"time"
)

func good() outcome {
	return outcome{
		UID: 65534, Caps: "0000000000000000", Queues: 2, SharedUMEM: true, Seconds: 3.5004, Sent: 200_000, Received: 200_000,
		Answered: 200_000, PerQueue: []uint64{50_000, 150_000}, Reconnects: 1, AgentRestarts: 1, Restored: true,
	}
}

func TestOutcomeIsOneLineOfJSON(t *testing.T) {
	o := good()
	var line strings.Builder
	if err := o.write(&line); err != nil {
		t.Fatal(err)
	}
	want := `{"uid":65534,"caps":"0000000000000000","queues":2,"shared_umem":true,"seconds":3.5,"sent":200000,` +
		`"received":200000,"answered":200000,"drops":0,"per_queue":[50000,150000],"reconnects":1,"agent_restarts":1,` +
		`"restored":true,"leftovers":[]}` + "\n"
	if line.String() != want {
		t.Errorf("%s, want %s", line.String(), want)
	}
}

func TestEachPointOfTheOutcomeCounts(t *testing.T) {
	o := good()
	if bad := o.failures(); len(bad) > 0 {
		t.Fatalf("a good outcome fails: %v", bad)
	}
	for say, spoil := range map[string]func(*outcome){
		"uid is 0":            func(o *outcome) { o.UID = 0 },
		"capabilities":        func(o *outcome) { o.Caps = "0000000000000001" },
		"1 queues, not 2":     func(o *outcome) { o.Queues = 1 },
		"share one UMEM":      func(o *outcome) { o.SharedUMEM = false },
		"for 2.900 s":         func(o *outcome) { o.Seconds = 2.9 },
		"not 150000":          func(o *outcome) { o.Sent = 149_999 },
		"packets a second":    func(o *outcome) { o.Seconds = 4.1 },
		"199999 received":     func(o *outcome) { o.Received-- },
		"199999 answered":     func(o *outcome) { o.Answered-- },
		"1 packets were drop": func(o *outcome) { o.Drops = 1 },
		"1 queues received":   func(o *outcome) { o.PerQueue = o.PerQueue[:1] },
		"less than a quarter": func(o *outcome) { o.PerQueue = []uint64{49_999, 150_001} },
		"reconnected 2 times": func(o *outcome) { o.Reconnects = 2 },
		"after 0 restarts":    func(o *outcome) { o.AgentRestarts = 0 },
		"not as it was":       func(o *outcome) { o.Restored = false },
		"left behind":         func(o *outcome) { o.Leftovers = []string{"mount /run"} },
	} {
		o := good()
		spoil(&o)
		found := false
		for _, f := range o.failures() {
			found = found || strings.Contains(f.Error(), say)
		}
		if !found {
			t.Errorf("%q is not among the failures %v", say, o.failures())
		}
	}
}

func TestStopwatchCountsOnlyWhileItRuns(t *testing.T) {
	var w stopwatch
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	w.start(at(10))
	w.start(at(11)) // it runs already
	if got := w.read(at(12)); got != 2*time.Second {
		t.Errorf("running: %v, want 2s", got)
	}
	w.stop(at(13))
	w.stop(at(14))
	w.start(at(20))
	w.stop(at(21))
	if got := w.read(at(30)); got != 4*time.Second {
		t.Errorf("stopped: %v, want 4s", got)
	}
}
