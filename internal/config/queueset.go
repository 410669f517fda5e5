package config

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// QueueSet is an immutable set of queue numbers from 0 to [MaxQueue]. The zero value is all queues that a NIC has.
type QueueSet struct {
	ranges []queueRange // sorted, neither overlapping nor adjacent; empty for all
}

type queueRange struct{ first, last int }

// ParseQueueSet reads a set from "all" or from numbers and ranges such as "1-3,8", in any order, each queue once.
func ParseQueueSet(s string) (QueueSet, error) {
	s = strings.TrimSpace(s)
	if s == "all" {
		return QueueSet{}, nil
	}
	var ranges []queueRange
	for part := range strings.SplitSeq(s, ",") {
		r, err := parseQueueRange(strings.TrimSpace(part))
		if err != nil {
			return QueueSet{}, err
		}
		ranges = append(ranges, r)
	}
	slices.SortFunc(ranges, func(a, b queueRange) int { return cmp.Compare(a.first, b.first) })
	for i := 1; i < len(ranges); i++ {
		if ranges[i].first <= ranges[i-1].last {
			return QueueSet{}, fmt.Errorf("queue %d is listed twice", ranges[i].first)
		}
	}
	return QueueSet{join(ranges)}, nil
}

func parseQueueRange(s string) (queueRange, error) {
	from, to, isRange := strings.Cut(s, "-")
	if !isRange {
		to = from
	}
	// Decimal digits only: a sign, a base prefix or a leading zero would not come back from String.
	if !isDecimal(from) || !isDecimal(to) || to[0] == '-' {
		return queueRange{}, fmt.Errorf(`%q is no queue: want "all", or numbers and ranges such as 1-3,8`, shorten(s))
	}
	first, err := parseQueue(from)
	if err != nil {
		return queueRange{}, err
	}
	last, err := parseQueue(to)
	if err != nil {
		return queueRange{}, err
	}
	if last < first {
		return queueRange{}, fmt.Errorf("range %s runs backwards: write %d-%d", s, last, first)
	}
	return queueRange{first, last}, nil
}

func parseQueue(digits string) (int, error) {
	q, err := strconv.Atoi(digits)
	if err != nil || q > MaxQueue {
		return 0, fmt.Errorf("queue %s is out of range: 0 to %d", shorten(digits), MaxQueue)
	}
	return q, nil
}

// UnmarshalText reads what [ParseQueueSet] does.
func (s *QueueSet) UnmarshalText(text []byte) error {
	v, err := ParseQueueSet(string(text))
	if err != nil {
		return err
	}
	*s = v
	return nil
}

// NewQueueSet returns the set of the given queues, each from 0 to [MaxQueue]. Without an argument that would be the
// empty set, which does not exist: it panics, as it does on a number out of range.
func NewQueueSet(queues ...int) QueueSet {
	if len(queues) == 0 {
		panic("config: a queue set is never empty")
	}
	ranges := make([]queueRange, len(queues))
	for i, q := range queues {
		if q < 0 || q > MaxQueue {
			panic(fmt.Sprintf("config: queue %d is out of range", q))
		}
		ranges[i] = queueRange{q, q}
	}
	slices.SortFunc(ranges, func(a, b queueRange) int { return cmp.Compare(a.first, b.first) })
	return QueueSet{join(ranges)}
}

// join merges adjacent and equal neighbours of sorted ranges in place.
func join(ranges []queueRange) []queueRange {
	out := ranges[:0]
	for _, r := range ranges {
		if n := len(out); n > 0 && r.first <= out[n-1].last+1 {
			out[n-1].last = max(out[n-1].last, r.last)
			continue
		}
		out = append(out, r)
	}
	return slices.Clip(out)
}

// All reports whether the set is all queues that a NIC has.
func (s QueueSet) All() bool { return len(s.ranges) == 0 }

// Contains reports whether the set has a queue. "all" has every queue from 0 to [MaxQueue].
func (s QueueSet) Contains(queue int) bool {
	if s.All() {
		return queue >= 0 && queue <= MaxQueue
	}
	return slices.ContainsFunc(s.ranges, func(r queueRange) bool { return r.first <= queue && queue <= r.last })
}

// Max returns the highest queue of the set. It is not bounded, and ok false, for all.
func (s QueueSet) Max() (queue int, ok bool) {
	if s.All() {
		return 0, false
	}
	return s.ranges[len(s.ranges)-1].last, true
}

// Within splits the set for a NIC of n queues: the queues that the NIC has, in order, and the set of those that it has
// not; ok reports whether the NIC has all.
func (s QueueSet) Within(n int) (have []int, beyond QueueSet, ok bool) {
	n = min(n, MaxQueue+1)
	if s.All() {
		for q := range n {
			have = append(have, q)
		}
		return have, QueueSet{}, true
	}
	for _, r := range s.ranges {
		for q := r.first; q <= r.last && q < n; q++ {
			have = append(have, q)
		}
		if r.last >= n {
			beyond.ranges = append(beyond.ranges, queueRange{max(r.first, n), r.last})
		}
	}
	return have, beyond, len(beyond.ranges) == 0
}

// Intersect returns the queues that two sets have in common; ok is false when there are none.
func (s QueueSet) Intersect(t QueueSet) (common QueueSet, ok bool) {
	switch {
	case s.All():
		return t, true
	case t.All():
		return s, true
	}
	for i, j := 0, 0; i < len(s.ranges) && j < len(t.ranges); {
		a, b := s.ranges[i], t.ranges[j]
		if first, last := max(a.first, b.first), min(a.last, b.last); first <= last {
			common.ranges = append(common.ranges, queueRange{first, last})
		}
		if a.last < b.last {
			i++
		} else {
			j++
		}
	}
	return common, len(common.ranges) > 0
}

// Equal reports whether two sets are the same.
func (s QueueSet) Equal(t QueueSet) bool { return slices.Equal(s.ranges, t.ranges) }

// String returns "all" or ranges such as "1-3,8": what [ParseQueueSet] reads as the same set.
func (s QueueSet) String() string {
	if s.All() {
		return "all"
	}
	parts := make([]string, len(s.ranges))
	for i, r := range s.ranges {
		parts[i] = strconv.Itoa(r.first)
		if r.last > r.first {
			parts[i] += "-" + strconv.Itoa(r.last)
		}
	}
	return strings.Join(parts, ",")
}

// shorten keeps a value that came from a file from filling a message.
func shorten(s string) string {
	const limit = 64
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "..."
}
