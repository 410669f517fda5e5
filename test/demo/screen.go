package main

import (
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/term"
)

// screen shows what happens: a line for each step, and on a terminal a line that changes while packets flow.
type screen struct {
	file     *os.File
	terminal bool
	start    time.Time

	mu   sync.Mutex
	live bool
}

func newScreen(f *os.File) *screen {
	return &screen{file: f, terminal: term.IsTerminal(int(f.Fd())), start: time.Now()}
}

// step shows a line that stays.
func (s *screen) step(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clear()
	_, _ = fmt.Fprintf(s.file, "%6.2fs  %s\n", time.Since(s.start).Seconds(), fmt.Sprintf(format, args...))
}

// flash shows a line until the next one, on a terminal.
func (s *screen) flash(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.terminal {
		s.clear()
		_, _ = fmt.Fprintf(s.file, "%6.2fs    %s", time.Since(s.start).Seconds(), text)
		s.live = true
	}
}

// clear takes the changing line away. s.mu is held.
func (s *screen) clear() {
	if s.live {
		_, _ = fmt.Fprint(s.file, "\r\x1b[K")
		s.live = false
	}
}
