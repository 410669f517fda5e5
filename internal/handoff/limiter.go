package handoff

import (
	"sync"
	"time"
)

const (
	limitWindow = time.Minute
	limitCount  = 10
)

// limiter lets limitCount events pass in a limitWindow. The zero value is ready for use.
type limiter struct {
	mu         sync.Mutex
	begin      time.Time
	passed     int
	suppressed int
}

// allow reports whether an event at now may pass, and if so how many did not since the last one that did.
func (l *limiter) allow(now time.Time) (suppressed int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.begin) >= limitWindow {
		l.begin, l.passed = now, 0
	}
	if l.passed >= limitCount {
		l.suppressed++
		return 0, false
	}
	l.passed++
	suppressed, l.suppressed = l.suppressed, 0
	return suppressed, true
}
