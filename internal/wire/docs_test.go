package wire

import (
	"encoding/binary"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

// docs/protocol.md is all that a client is written from: its numbers are those of this package.
func TestDocumentationIsTheProtocol(t *testing.T) {
	raw, err := os.ReadFile("../../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := string(raw)
	has := func(format string, args ...any) {
		t.Helper()
		if want := fmt.Sprintf(format, args...); !strings.Contains(doc, want) {
			t.Errorf("docs/protocol.md lacks %q", want)
		}
	}
	golden, err := os.ReadFile("testdata/handoff.golden")
	if err != nil {
		t.Fatal(err)
	}
	has("%s", strings.TrimSpace(string(golden)))

	for typ := range Type(len(typeNames)) {
		m := newMessage(typ)
		b, err := Encode(1, m)
		if err != nil {
			t.Fatal(err)
		}
		size := fmt.Sprint(len(b))
		switch m.(type) {
		case *Error, *Opened:
			size += " and more"
		case *Welcome:
			size += fmt.Sprintf(" + %d for each device", binary.Size(Device{}))
		}
		from := "client"
		if typ%2 == 0 {
			from = "agent"
		}
		has("| %d | %s | %s | %s |", typ, typ, from, size)
		if row := regexp.MustCompile(fmt.Sprintf(`(?m)^\| %d \| %s \|.*$`, typ, typ)).FindString(doc); typ.carriesFD() == strings.HasSuffix(row, " | |") {
			t.Errorf("whether a descriptor comes with %s: %s", typ, row)
		}
	}
	for code := CodeMalformed; code <= CodeNoUMEM; code++ {
		has("| %d | %s | ", code, strings.ToUpper(code.String()))
	}
	has("at most 16,384 bytes")
	has("their number, at most %d", MaxDevices)
	has("2 bytes, at most %d", MaxText)
	for flag, words := range map[uint32]string{
		uint32(SocketZeroCopy): "zero-copy", uint32(SocketNeedWakeup): "need-wakeup", uint32(SocketMultiBuffer): "multi-buffer",
		uint32(SocketBusyPoll): "the kernel took", uint32(SocketDeferral): "interrupt deferral", uint32(SocketNAPIKnown): "the kernel tells",
		uint32(SocketSeparateNAPI): "rx and tx",
	} {
		if !regexp.MustCompile(fmt.Sprintf(`\b%d\s+%s`, flag, strings.ReplaceAll(words, " ", `\s+`))).MatchString(doc) {
			t.Errorf("docs/protocol.md lacks socket flag %d, %s", flag, words)
		}
	}
}
