// Command afxdp-bench measures AF_XDP inside a pod: it takes every queue that the pod was given and receives, sends or
// forwards on them as fast as they go.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// Exit codes.
const (
	exitOK      = 0
	exitUsage   = 2
	exitNoQueue = 3 // the queues could not be had
	exitEnded   = 4 // they were lost while they were used
)

// version is set by the linker.
var version = ""

// buildVersion returns the linker's version, or what the toolchain knows of the checkout.
func buildVersion() string {
	if info, ok := debug.ReadBuildInfo(); version == "" && ok {
		return info.Main.Version
	}
	return version
}

func main() { os.Exit(command(os.Args[1:], os.Stdout, os.Stderr)) }

func command(args []string, stdout, stderr io.Writer) int {
	say := func(err error) { _, _ = fmt.Fprintln(stderr, "afxdp-bench:", err) }
	o, err := parseOptions(args, stdout)
	if errors.Is(err, pflag.ErrHelp) {
		return exitOK
	}
	if err != nil {
		say(err)
		_, _ = fmt.Fprintln(stderr, "See afxdp-bench --help.")
		return exitUsage
	}
	if o.version {
		_, _ = fmt.Fprintln(stdout, "afxdp-bench", buildVersion())
		return exitOK
	}
	ctx, restore := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer restore()
	context.AfterFunc(ctx, restore) // a second signal ends the process at once

	a, err := open(ctx, o)
	if err != nil {
		say(err)
		return exitNoQueue
	}
	r, err := newRun(o, a.ports, a.client)
	if err != nil {
		say(errors.Join(err, a.Close()))
		return exitNoQueue
	}
	live := newLiveLine(stderr)
	r.progress = func(s *report) error { return s.writeJSON(stdout) }
	err = r.run(ctx, live)
	live.end()
	report := r.report() // before the sockets are closed, whose statistics end then
	err = errors.Join(err, a.Close())
	if o.json {
		err = errors.Join(err, report.writeJSON(stdout))
	} else {
		err = errors.Join(err, report.writeTable(stdout))
	}
	if err != nil {
		say(err)
		return exitEnded
	}
	return exitOK
}

// liveLine is a line on a terminal that is overwritten.
type liveLine struct {
	w     io.Writer // nil where there is no terminal
	width int
	drawn bool
}

func newLiveLine(w io.Writer) *liveLine {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return &liveLine{}
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil || width < 20 {
		width = 80
	}
	return &liveLine{w: w, width: width}
}

func (l *liveLine) draw(s string) {
	if l.w == nil {
		return
	}
	if len(s) >= l.width {
		s = s[:l.width-1]
	}
	l.drawn = true
	_, _ = fmt.Fprint(l.w, "\r\x1b[K", s)
}

func (l *liveLine) end() {
	if l.drawn {
		_, _ = fmt.Fprint(l.w, "\r\x1b[K")
	}
}
