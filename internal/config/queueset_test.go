package config

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func TestQueueSetIsReadSortedAndJoined(t *testing.T) {
	for in, want := range map[string]string{
		"all": "all", " all ": "all", "0": "0", "65535": "65535", "0-65535": "0-65535",
		"1-3,8": "1-3,8", "8,1-3": "1-3,8", "1 , 2": "1-2", "3,1,2": "1-3", "1-2,3-4": "1-4", "5-5": "5",
	} {
		if got, err := ParseQueueSet(in); err != nil || got.String() != want {
			t.Errorf("%q: got %v, %v, want %s", in, got, err, want)
		}
	}
	for _, in := range []string{"", ",", "1,", "1,,2", "a", "All", "1-", "-", "1-2-3", "1 -2",
		"+1", "0x1", "01", "1-03", "1-3,3",
		"4,2-6", "65536", "0-65536", "3-1", "٣"} {
		if got, err := ParseQueueSet(in); err == nil {
			t.Errorf("%q: read as %v", in, got)
		}
	}
}

func TestQueueSetAnswers(t *testing.T) {
	var all QueueSet
	some := NewQueueSet(8, 1, 3, 2, 2)
	if some.String() != "1-3,8" || some.All() || !all.All() {
		t.Errorf("sets: %v, %v", some, all)
	}
	for q, want := range map[int]bool{-1: false, 0: false, 1: true, 3: true, 4: false, 8: true, 9: false, 65536: false} {
		if some.Contains(q) != want {
			t.Errorf("Contains(%d) = %v", q, !want)
		}
	}
	if !all.Contains(0) || !all.Contains(MaxQueue) || all.Contains(-1) || all.Contains(MaxQueue+1) {
		t.Error("all has other queues than 0 to MaxQueue")
	}
	if q, ok := some.Max(); q != 8 || !ok {
		t.Errorf("Max = %d, %v", q, ok)
	}
	if _, ok := all.Max(); ok {
		t.Error("all has a highest queue")
	}
}

func TestQueueSetWithin(t *testing.T) {
	if have, _, ok := (QueueSet{}).Within(70000); len(have) != MaxQueue+1 || !ok {
		t.Errorf("all within 70000: %d queues, %v", len(have), ok)
	}
	for _, tt := range []struct {
		set    string
		n      int
		have   []int
		beyond string
		ok     bool
	}{
		{"all", 3, []int{0, 1, 2}, "all", true},
		{"all", 0, nil, "all", true},
		{"1-3,8", 9, []int{1, 2, 3, 8}, "all", true},
		{"1-3,8", 8, []int{1, 2, 3}, "8", false},
		{"1-3,8", 2, []int{1}, "2-3,8", false},
		{"1-3,8", 0, nil, "1-3,8", false},
		{"1-3,8", -1, nil, "1-3,8", false},
	} {
		set, _ := ParseQueueSet(tt.set)
		have, beyond, ok := set.Within(tt.n)
		if !slices.Equal(have, tt.have) || beyond.String() != tt.beyond || ok != tt.ok {
			t.Errorf("%s within %d: %v, %v, %v", tt.set, tt.n, have, beyond, ok)
		}
	}
}

// Every operation agrees with the same one on a plain list of numbers, and String comes back from ParseQueueSet.
func TestQueueSetsAgreeWithNumbers(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	draw := func() (QueueSet, map[int]bool) {
		in := map[int]bool{}
		var queues []int
		for range 1 + rnd.IntN(20) {
			q := rnd.IntN(24)
			queues, in[q] = append(queues, q), true
		}
		return NewQueueSet(queues...), in
	}
	for range 2000 {
		a, inA := draw()
		b, inB := draw()
		back, err := ParseQueueSet(a.String())
		if err != nil || !back.Equal(a) {
			t.Fatalf("%v came back as %v, %v", a, back, err)
		}
		common, ok := a.Intersect(b)
		if mirror, ok2 := b.Intersect(a); ok != ok2 || !mirror.Equal(common) {
			t.Fatalf("%v and %v: %v, but the other way round %v", a, b, common, mirror)
		}
		have, _, _ := a.Within(12)
		for q := range 24 {
			if a.Contains(q) != inA[q] {
				t.Fatalf("%v contains %d: %v", a, q, !inA[q])
			}
			if (ok && common.Contains(q)) != (inA[q] && inB[q]) {
				t.Fatalf("%v and %v: %v, %v", a, b, common, ok)
			}
			if slices.Contains(have, q) != (inA[q] && q < 12) {
				t.Fatalf("%v within 12: %v", a, have)
			}
		}
		if c, ok := a.Intersect(QueueSet{}); !ok || !c.Equal(a) {
			t.Fatalf("%v and all: %v", a, c)
		}
	}
}

func FuzzParseQueueSet(f *testing.F) {
	for _, s := range []string{"all", "1-3,8", "0-65535", "8,1-3", "1 , 2", "", ",", "3-1", "1-3,2",
		"99999999999999999999", "-1", "01"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		set, err := ParseQueueSet(s)
		if err != nil {
			if len(err.Error()) > 500 {
				t.Errorf("a message of %d bytes", len(err.Error()))
			}
			return
		}
		back, err := ParseQueueSet(set.String())
		if err != nil || !back.Equal(set) || back.String() != set.String() {
			t.Errorf("%q is %v and came back as %v, %v", s, set, back, err)
		}
		if q, ok := set.Max(); ok && (!set.Contains(q) || set.Contains(q+1) || q > MaxQueue) {
			t.Errorf("%v: highest queue %d", set, q)
		}
	})
}
