package config

import (
	"math"
	"testing"
)

func TestBytesAreReadAndWritten(t *testing.T) {
	for in, want := range map[string]Bytes{
		"0": 0, "1": 1, "4096": 4096, "1Ki": 1024, "256Mi": 256 << 20, "2Gi": 2 << 30, "1Ti": 1 << 40,
		"1k": 1000, "3M": 3e6, "1G": 1e9, "1T": 1e12, "-1Ki": -1024,
		"9223372036854775808": math.MaxInt64, "8388608Ti": math.MaxInt64, "-99999999Ti": math.MinInt64,
	} {
		if got, err := ParseBytes(in); err != nil || got != want {
			t.Errorf("%q: %d, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "Mi", "1.5Gi", "1 Mi", "1mi", "1MB", "1e3", "0x10", "010", "+1", "--1"} {
		if got, err := ParseBytes(in); err == nil {
			t.Errorf("%q: read as %d", in, got)
		}
	}
	for b, want := range map[Bytes]string{
		0: "0", 1: "1", 1000: "1000", 1024: "1Ki", 1536: "1536", 256 << 20: "256Mi", 3 << 40: "3Ti",
	} {
		if b.String() != want {
			t.Errorf("%d: %s", int64(b), b)
		}
		if back, err := ParseBytes(b.String()); err != nil || back != b {
			t.Errorf("%s came back as %d, %v", b, int64(back), err)
		}
	}
}
