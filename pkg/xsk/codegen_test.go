package xsk_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// barriers counts a function's instructions that order memory.
type barriers struct{ acquire, release, other int }

// disassemble compiles the package for arm64 and returns the barriers of its functions. On arm64 they are instructions
// of their own, so that one too many is seen; amd64 shows nothing, since there every load is an acquire.
func disassemble(t *testing.T) map[string]barriers {
	t.Helper()
	goTool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("not run: needs the go command")
	}
	run := func(args ...string) string {
		cmd := exec.Command(goTool, args...)
		cmd.Env = append(os.Environ(), "GOARCH=arm64", "GOOS=linux", "CGO_ENABLED=0", "GOFLAGS=")
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
		}
		return string(out)
	}
	archive := filepath.Join(t.TempDir(), "xsk.a")
	run("build", "-o", archive, ".")

	functions := map[string]barriers{}
	name := ""
	instruction := regexp.MustCompile(`\t([A-Z][A-Z0-9]+)\b`)
	for line := range strings.Lines(run("tool", "objdump", archive)) {
		if text, ok := strings.CutPrefix(line, "TEXT "); ok {
			name = text[strings.LastIndex(text[:strings.Index(text, "(SB)")], "/xsk.")+len("/xsk.") : strings.Index(text, "(SB)")]
			continue
		}
		m := instruction.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		b := functions[name]
		switch op := m[1]; {
		case strings.HasPrefix(op, "LDAR"):
			b.acquire++
		case strings.HasPrefix(op, "STLR"):
			b.release++
		case op == "DMB", op == "DSB", op == "ISB", strings.HasPrefix(op, "LDX"), strings.HasPrefix(op, "LDAX"),
			strings.HasPrefix(op, "STX"), strings.HasPrefix(op, "STLX"), strings.HasPrefix(op, "SWP"),
			strings.HasPrefix(op, "CAS"), strings.HasPrefix(op, "LDADD"):
			b.other++
		}
		functions[name] = b
	}
	return functions
}

// A batch costs each ring one load-acquire, and that only when the cached index does not suffice, and one
// store-release. Nothing else orders memory.
func TestBatchCostsOneAcquireAndOneRelease(t *testing.T) {
	functions := disassemble(t)
	const u64, desc = "[go.shape.uint64])", "[go.shape.struct { Addr uint64; Len uint32; Options uint32 }])"
	batch, load, store := barriers{acquire: 1, release: 1}, barriers{acquire: 1}, barriers{release: 1}
	for name, want := range map[string]barriers{
		"(*producer" + u64 + ".push":         batch, // Refill
		"(*producer" + desc + ".push":        batch, // Transmit
		"(*consumer" + desc + ".pull":        batch, // Receive
		"(*consumer" + u64 + ".pull":         batch, // Complete
		"(*producer" + u64 + ".Reserve":      load,
		"(*producer" + desc + ".Reserve":     load,
		"(*producer" + u64 + ".Submit":       store,
		"(*producer" + desc + ".Submit":      store,
		"(*producer" + u64 + ".Set":          {},
		"(*producer" + desc + ".Set":         {},
		"(*producer" + u64 + ".Cancel":       {},
		"(*producer" + desc + ".Cancel":      {},
		"(*producer" + desc + ".NeedsWakeup": load,
		"(*consumer" + desc + ".Peek":        load,
		"(*consumer" + u64 + ".Peek":         load,
		"(*consumer" + desc + ".Release":     store,
		"(*consumer" + u64 + ".Release":      store,
		"(*consumer" + desc + ".At":          {},
		"(*FillRing).Refill":                 {}, // calls push
		"(*TXRing).Transmit":                 {},
		"(*RXRing).Receive":                  {},
		"(*CompletionRing).Complete":         {},
	} {
		got, ok := functions[name]
		if !ok {
			t.Errorf("%s is not in the archive", name)
		} else if got != want {
			t.Errorf("%s has %+v, want %+v", name, got, want)
		}
	}
}
