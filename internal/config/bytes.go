package config

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Bytes is a size in bytes, in the file a plain number or a Kubernetes quantity such as 256Mi.
type Bytes int64

var byteUnits = []struct {
	suffix string
	size   int64
}{
	{"Ti", 1 << 40}, {"Gi", 1 << 30}, {"Mi", 1 << 20}, {"Ki", 1 << 10},
	{"T", 1e12}, {"G", 1e9}, {"M", 1e6}, {"k", 1e3},
	{"", 1},
}

// ParseBytes reads a whole number of bytes, followed by one of Ki, Mi, Gi, Ti (powers of 1024), k, M, G, T (powers of
// 1000) or nothing. A size beyond int64 is the largest or smallest one: whoever has bounds refuses that.
func ParseBytes(s string) (Bytes, error) {
	var number string
	var size int64
	for _, u := range byteUnits {
		if rest, ok := strings.CutSuffix(s, u.suffix); ok {
			number, size = rest, u.size
			break
		}
	}
	if !isDecimal(number) {
		return 0, fmt.Errorf("%q is no size: want whole bytes such as 268435456, or a quantity such as 256Mi", shorten(s))
	}
	n, err := strconv.ParseInt(number, 10, 64) // beyond the range n is the nearest end of it
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0, fmt.Errorf("%q is no size: %w", shorten(s), err)
	}
	switch {
	case n > math.MaxInt64/size:
		return math.MaxInt64, nil
	case n < math.MinInt64/size:
		return math.MinInt64, nil
	}
	return Bytes(n * size), nil
}

// UnmarshalText reads what [ParseBytes] does.
func (b *Bytes) UnmarshalText(text []byte) error {
	v, err := ParseBytes(string(text))
	if err != nil {
		return err
	}
	*b = v
	return nil
}

// String returns the size with the largest power of 1024 that divides it, for example "256Mi".
func (b Bytes) String() string {
	for _, u := range byteUnits {
		if strings.HasSuffix(u.suffix, "i") && b != 0 && int64(b)%u.size == 0 {
			return strconv.FormatInt(int64(b)/u.size, 10) + u.suffix
		}
	}
	return strconv.FormatInt(int64(b), 10)
}

// isDecimal reports whether s is a whole number as people write it: no plus sign, no leading zero, no underscore.
func isDecimal(s string) bool {
	s = strings.TrimPrefix(s, "-")
	return s != "" && strings.Trim(s, "0123456789") == "" && (s == "0" || s[0] != '0')
}
