// Command pod runs in the pods of the end-to-end tests, on all queues that the pod was given. It sends numbered packets,
// few of which are in flight at any time, and waits for the answer to each; or it answers. What it did it tells as JSON.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/afxdp-project/afxdp/test/e2e/ledger"
)

type options struct {
	mode      string // send, answer, hold or idle
	path      string
	tag       uint64
	count     uint64
	window    uint64
	rate      uint64
	resumes   uint64
	timeout   time.Duration
	crashOnce string
}

const usage = `usage: pod send|answer|hold|idle [flags]

  send    send packets and wait for the answer to each; ends by itself
  answer  answer until told to end
  hold    receive and count until told to end
  idle    ask for nothing, and wait until told to end

`

func main() {
	o, err := parse(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		_ = tell(ledger.Event{Event: ledger.End, Error: err.Error()})
		os.Exit(1)
	}
}

func parse(args []string) (*options, error) {
	o := &options{}
	fs := pflag.NewFlagSet("pod", pflag.ContinueOnError)
	fs.StringVar(&o.path, "path", "", "directory of the allocation; by default the one that the environment names")
	fs.Uint64Var(&o.tag, "tag", 1, "send: what marks the packets as ours")
	fs.Uint64Var(&o.count, "count", 1000, "send: packets of each queue")
	fs.Uint64Var(&o.window, "window", 8, "send: packets of each queue that are in flight at once")
	fs.Uint64Var(&o.rate, "rate", 2000, "send: packets of each queue in a second, at most")
	fs.Uint64Var(&o.resumes, "resumes", 0, "send: end no sooner than so many lost connections to the agent were taken up again, and --count packets after that")
	fs.DurationVar(&o.timeout, "timeout", 10*time.Second, "send: how long an answer may take until its packet counts as lost")
	fs.StringVar(&o.crashOnce, "crash-once", "", "send: instead of ending make this file, and be killed; with the file end as usual")
	fs.Usage = func() { fmt.Fprint(os.Stderr, usage, fs.FlagUsages()) }
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	if fs.NArg() != 1 {
		return nil, errors.New("say what to do: send, answer, hold or idle")
	}
	o.mode = fs.Arg(0)
	switch o.mode {
	case "send", "answer", "hold", "idle":
	default:
		return nil, fmt.Errorf("%s is none of send, answer, hold, idle", strconv.Quote(o.mode))
	}
	return o, nil
}
