package main

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/afxdp-project/afxdp/internal/testutil"
	"github.com/afxdp-project/afxdp/pkg/xsk"
)

func TestMain(m *testing.M) { os.Exit(testutil.Main(m)) }

func parse(t *testing.T, args ...string) *options {
	t.Helper()
	o, err := parseOptions(args, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestFlagsAreTaken(t *testing.T) {
	o := parse(t, "-d", "5s", "txonly", "-n", "1000", "--ring-size", "1024", "--tx-size=64", "--zero-copy", "off", "--path", "/x", "--json")
	want := xsk.RingSizes{Fill: 1024, Completion: 1024, RX: 1024, TX: 64}
	if o.mode != txOnly || o.duration != 5*time.Second || o.packets != 1000 || o.rings != want || o.zeroCopy != xsk.ZeroCopyOff ||
		o.path != "/x" || !o.json || o.batch != 64 {
		t.Errorf("%+v", o)
	}
	if o := parse(t, "rxdrop"); o.rings != (xsk.RingSizes{}) || o.duration != 0 || o.json {
		t.Errorf("without flags: %+v", o)
	}
}

func TestWrongCommandLinesAreRefused(t *testing.T) {
	for args, say := range map[string]string{
		"":                                 "say what to do",
		"forward":                          "none of rxdrop, txonly, l2fwd",
		"rxdrop l2fwd":                     "too many arguments",
		"rxdrop --colour":                  "unknown flag",
		"rxdrop --zero-copy maybe":         "none of auto, require, off",
		"rxdrop --batch 8":                 "32 to",
		"rxdrop -d -1s":                    "negative",
		"rxdrop --progress -1s":            "negative",
		"rxdrop --progress 1s":             "needs --json",
		"rxdrop --ring-size 1000":          "power of two",
		"rxdrop --frame-size 1500":         "2048 to 4096",
		"rxdrop --headroom 4000":           "leaves no room",
		"txonly --packet-size 20":          "60 to",
		"txonly --packet-size 5000":        "does not fit into a frame of 4096",
		"txonly --source-mac 1:2":          "no Ethernet address",
		"txonly --target-mac 0:0:0:0:0:0:": "no Ethernet address",
	} {
		_, err := parseOptions(strings.Fields(args), io.Discard)
		if err == nil || !strings.Contains(err.Error(), say) {
			t.Errorf("%q: %v; want %q", args, err, say)
		}
	}
}

func TestHelpTeaches(t *testing.T) {
	var help strings.Builder
	if _, err := parseOptions([]string{"--help"}, &help); !errors.Is(err, pflag.ErrHelp) {
		t.Fatal(err)
	}
	for _, word := range []string{
		"rxdrop", "txonly", "l2fwd", "AFXDP_", "Exit status", "rx_ring_full", "--duration", "--json", "limits:", "capability",
	} {
		if !strings.Contains(help.String(), word) {
			t.Errorf("help does not speak of %q", word)
		}
	}
	for line := range strings.Lines(help.String()) {
		if len(line) > 121 {
			t.Errorf("a line of help has %d columns: %s", len(line)-1, line)
		}
	}
}

func TestExitStatus(t *testing.T) {
	for _, e := range os.Environ() {
		if name, _, _ := strings.Cut(e, "="); strings.HasPrefix(name, "AFXDP_") {
			t.Setenv(name, "")
		}
	}
	for _, tc := range []struct {
		args []string
		code int
		out  bool
		say  string
	}{
		{[]string{"--help"}, 0, true, ""},
		{[]string{"--nonsense"}, 2, false, "See afxdp-bench --help"},
		{[]string{"rxdrop"}, 3, false, "--path"},
		{[]string{"rxdrop", "--path", "/nowhere/at/all"}, 3, false, "/nowhere/at/all"},
	} {
		var stdout, stderr strings.Builder
		code := command(tc.args, &stdout, &stderr)
		if code != tc.code || (stdout.Len() > 0) != tc.out || !strings.Contains(stderr.String(), tc.say) {
			t.Errorf("%v: exit %d, stdout %q, stderr %q; want exit %d, %q", tc.args, code, stdout.String(), stderr.String(), tc.code, tc.say)
		}
	}
}
