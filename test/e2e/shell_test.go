//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// command runs a program and returns what it wrote to stdout. The error has what it wrote to stderr.
func command(ctx context.Context, stdin io.Reader, name string, args ...string) (string, error) {
	c := exec.CommandContext(ctx, name, args...)
	c.WaitDelay = 5 * time.Second
	var stdout, stderr bytes.Buffer
	c.Stdin, c.Stdout, c.Stderr = stdin, &stdout, &stderr
	if err := c.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// background is for what must happen whether or not the test was ended.
func background(limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), limit)
}

const pollInterval = 200 * time.Millisecond

// eventually asks until there is no error, and fails the test with the last one when limit is over.
func eventually(tb testing.TB, limit time.Duration, what string, ask func(context.Context) error) {
	tb.Helper()
	if err := wait(limit, ask); err != nil {
		tb.Fatalf("%s: not within %v: %v", what, limit, err)
	}
}

// wait asks until there is no error, for limit at most, and returns the last error.
func wait(limit time.Duration, ask func(context.Context) error) error {
	ctx, cancel := background(limit)
	defer cancel()
	var last error
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		var permanent *permanentError
		if errors.As(err, &permanent) {
			return err
		}
		if ctx.Err() == nil || last == nil { // what the end of the time has caused tells nothing
			last = err
		}
		select {
		case <-ctx.Done():
			return last
		case <-time.After(pollInterval):
		}
	}
}

// permanentError ends a wait: it will not get better.
type permanentError struct{ error }

func permanent(format string, args ...any) error {
	return &permanentError{fmt.Errorf(format, args...)}
}
