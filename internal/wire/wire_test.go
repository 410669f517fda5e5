package wire

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write testdata/*.golden anew")

func name(s string) Name {
	n, err := MakeName(s)
	if err != nil {
		panic(err)
	}
	return n
}

var (
	exampleWelcome = &Welcome{
		Version: 1, Pool: "fast", MaxUMEM: 64 << 20, MaxRingSize: 4096,
		Devices: []Device{
			{Netdev: name("eth1"), Queue: 2, NUMA: 0, MTU: 1500, Flags: DeviceLeased | DeviceMultiBuffer, Epoch: 0x1122334455667788},
			{NUMA: -1},
		},
	}
	exampleSocket = Socket{
		Device: 0, Fill: 2048, Completion: 2048, RX: 2048, TX: 1024,
		Flags: SocketZeroCopy | SocketNeedWakeup | SocketBusyPoll | SocketDeferral | SocketNAPIKnown,
		NAPI:  8193, QueueNAPI: 8193, BusyPollBudget: 64, BusyPollTimeout: 20, DeferHardIRQs: 2, GROFlushTimeout: 200000,
		Cookie: 0x1001, Epoch: 0x1122334455667788,
	}
)

// step is one message of a transcript.
type step struct {
	id uint32
	m  Message
}

var transcripts = map[string][]step{
	"handoff": {
		{1, &Hello{MinVersion: 1, MaxVersion: 1}},
		{1, exampleWelcome},
		{2, &UMEM{Length: 16 << 20, FrameSize: 4096, Headroom: 0}},
		{2, &UMEMOK{ZeroCopy: 1}},
		{3, &Open{Device: 0, Fill: 2048, Completion: 2048, RX: 2048, TX: 1024}},
		{3, &Opened{Socket: exampleSocket}},
		{4, &Close{Device: 0}},
		{4, &Closed{Device: 0}},
	},
	"resume": {
		{1, &Hello{MinVersion: 1, MaxVersion: 1}},
		{1, exampleWelcome},
		{2, &Resume{Device: 0}},
		{2, &Resumed{Device: 0, Epoch: 0x1122334455667788}},
	},
	"kick": {
		{4, &Kick{Device: 1}},
		{4, &Kicked{Device: 1, TX: 2}},
	},
	"tuning": {
		{5, &Tuning{Device: 1}},
		{5, &Tuned{
			Device: 1, Flags: SocketDeferral | SocketNAPIKnown, QueueNAPI: 8193, DeferHardIRQs: 2, GROFlushTimeout: 200_000,
		}},
	},
	"join": {
		{1, &Hello{MinVersion: 1, MaxVersion: 3}},
		{1, exampleWelcome},
		{2, &Join{}},
		{2, &Joined{ZeroCopy: 0}},
		{3, &Open{Device: 1, Fill: 64, Completion: 64, RX: 64, TX: 64, Flags: OpenNoBusyPoll}},
		{3, &Opened{Socket: Socket{Device: 1, Fill: 64, Completion: 64, RX: 64, TX: 64, Cookie: 0x1002, Epoch: 7}, Text: "the client asked for no busy polling"}},
	},
	"errors": {
		{1, &Hello{MinVersion: 2, MaxVersion: 3}},
		{1, Errorf(CodeVersion, "the agent speaks version 1, the client versions 2 to 3")},
		{2, &UMEM{Length: 1 << 20, FrameSize: 2048, Headroom: 64, Flags: UMEMUnaligned | UMEMZeroCopyOff}},
		{2, Errorf(CodeInvalid, "UMEM: the memfd has 4096 bytes, the message says 1048576")},
		{0, Errorf(CodeEnded, "the lease of eth1-q2 has ended: the pod's network was taken down")},
	},
}

// The golden files are the protocol: a client that was written against them goes on to work.
func TestTranscriptsAreTheGoldenOnes(t *testing.T) {
	for title, steps := range transcripts {
		t.Run(title, func(t *testing.T) {
			var b strings.Builder
			for _, s := range steps {
				raw, err := Encode(s.id, s.m)
				if err != nil {
					t.Fatal(err)
				}
				writeHex(&b, s, raw)
			}
			path := filepath.Join("testdata", title+".golden")
			if *update {
				if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if b.String() != string(want) {
				t.Errorf("the protocol has changed; a change needs a new version. got:\n%s\nwant:\n%s", b.String(), want)
			}
		})
	}
}

// writeHex writes a message as its fields' hex, one line a field, with what the field is.
func writeHex(b *strings.Builder, s step, raw []byte) {
	from := "client"
	if s.m.Type()%2 == 0 {
		from = "agent"
	}
	fmt.Fprintf(b, "# %s: %s, %d bytes", from, s.m.Type(), len(raw))
	if s.m.Type().carriesFD() {
		b.WriteString(", with a descriptor")
	}
	b.WriteString("\n")
	at := 0
	field := func(size int, what string, value any) {
		fmt.Fprintf(b, "%04x  %-48s %s", at, hexOf(raw[at:at+size]), what)
		if value != nil {
			fmt.Fprintf(b, " %v", value)
		}
		b.WriteString("\n")
		at += size
	}
	field(4, "magic", "AFXD")
	field(2, "version", Version)
	field(2, "type", s.m.Type())
	field(4, "length", len(raw))
	field(4, "id", s.id)
	fields(reflect.ValueOf(s.m).Elem(), field)
	for at < len(raw) { // what the fixed fields do not describe
		field(min(16, len(raw)-at), "", nil)
	}
	b.WriteString("\n")
}

// fields calls field for each number of a struct. Texts, slices and what comes after them are left out.
func fields(v reflect.Value, field func(int, string, any)) {
	if _, ok := v.Interface().(Welcome); ok {
		w := v.Interface().(Welcome)
		field(2, "Version", w.Version)
		field(2, "number of devices", len(w.Devices))
		field(4, "MaxRingSize", w.MaxRingSize)
		field(8, "MaxUMEM", w.MaxUMEM)
		for i := range 4 {
			field(16, fmt.Sprintf("Pool %d/4", i+1), nil)
		}
		for _, d := range w.Devices {
			fields(reflect.ValueOf(d), field)
		}
		return
	}
	for i := range v.NumField() {
		f, what := v.Field(i), v.Type().Field(i).Name
		switch f.Kind() {
		case reflect.Struct:
			fields(f, field)
		case reflect.String:
			field(2, what+" bytes", f.Len())
		case reflect.Array:
			field(f.Len(), what, f.Interface())
		default:
			value := fmt.Sprintf("%d", f.Interface())
			if strings.Contains(f.Type().Name(), "Flags") {
				value = fmt.Sprintf("%#x", f.Uint())
			}
			field(binary.Size(f.Interface()), what, value)
		}
	}
}

func hexOf(b []byte) string { return strings.TrimRight(fmt.Sprintf("% x", b), " ") }

func allMessages() []Message {
	var all []Message
	for t := range Type(len(typeNames)) {
		all = append(all, newMessage(t))
	}
	return append(all, exampleWelcome, &Opened{Socket: exampleSocket, Text: "why"}, Errorf(CodeBusy, "%s", "held"),
		&UMEM{Length: 1 << 40, FrameSize: 2048, Headroom: 1, Flags: UMEMUnaligned | UMEMZeroCopyRequire},
		&Open{Device: 9, Fill: 1, Completion: 2, RX: 3, TX: 4, Flags: OpenNoBusyPoll})
}

func TestMessagesComeBackAsTheyWere(t *testing.T) {
	for _, m := range allMessages() {
		if w, ok := m.(*Welcome); ok && w.Devices == nil {
			w.Devices = []Device{}
		}
		b, err := Encode(7, m)
		if err != nil {
			t.Fatal(err)
		}
		id, got, err := Decode(b)
		if err != nil || id != 7 || !reflect.DeepEqual(got, m) {
			t.Errorf("%s: got id %d, %+v, %v; want %+v", m.Type(), id, got, err, m)
		}
		for cut := range b {
			if _, _, err := Decode(b[:cut]); err == nil {
				t.Errorf("%s: the first %d of %d bytes are taken", m.Type(), cut, len(b))
			}
		}
		if _, _, err := Decode(append(b, 0)); err == nil {
			t.Errorf("%s: a byte too many is taken", m.Type())
		}
	}
}

func TestBadMessagesAreRefusedPrecisely(t *testing.T) {
	good := func(m Message) []byte {
		b, err := Encode(3, m)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	with := func(m Message, at int, patch ...byte) []byte {
		b := good(m)
		copy(b[at:], patch)
		return b
	}
	text := func(length uint16, s string) []byte {
		b := append(good(&Error{})[:20], byte(length), byte(length>>8))
		b = append(b, s...)
		order.PutUint32(b[8:], uint32(len(b)))
		return b
	}
	for title, c := range map[string]struct {
		raw  []byte
		want string
	}{
		"nothing":           {nil, "message of 0 bytes is shorter than the header of 16"},
		"short":             {good(&Hello{})[:15], "message of 15 bytes is shorter"},
		"magic":             {with(&Hello{}, 0, 'X'), `does not begin with "AFXD"`},
		"length":            {with(&Hello{}, 8, 25), "says that it has 25 bytes, 24 came"},
		"half a message":    {good(&Hello{})[:20], "says that it has 24 bytes, 20 came"},
		"version":           {with(&Open{}, 4, 9), "message of protocol version 9, agreed is 1"},
		"type":              {with(&Open{}, 6, 200), "unknown message type 200"},
		"payload size":      {with(&Hello{}, 6, byte(TypeOpen)), "OPEN: payload has 8 bytes, want 24"},
		"versions":          {good(&Hello{MinVersion: 2, MaxVersion: 1}), "versions 2 to 1 are no range"},
		"open flags":        {good(&Open{Flags: 0x80}), "OPEN: unknown flags 0x80"},
		"umem flags":        {good(&UMEM{Flags: 0x81}), "UMEM: unknown flags 0x80"},
		"both zero-copies":  {good(&UMEM{Flags: UMEMZeroCopyOff | UMEMZeroCopyRequire}), "both off and required"},
		"umem reserved":     {good(&UMEM{Reserved: 2}), "reserved is 0x2"},
		"resume reserved":   {good(&Resume{Reserved: 2}), "reserved is 0x2"},
		"join reserved":     {good(&Join{Reserved: 2}), "reserved is 0x2"},
		"close reserved":    {good(&Close{Reserved: 2}), "reserved is 0x2"},
		"text too short":    {text(5, "abc"), "says that it has 5 bytes (at most 512), 3 came"},
		"text too long":     {text(600, strings.Repeat("a", 600)), "600 bytes (at most 512)"},
		"text no UTF-8":     {text(1, "\xff"), "not UTF-8"},
		"device count":      {with(exampleWelcome, 18, 0xff, 0xff), "65535 devices are more than 250"},
		"fewer devices":     {with(exampleWelcome, 18, 3), "payload has 80 bytes, want 120"},
		"pool not padded":   {with(exampleWelcome, 16+16+63, 'x'), "not padded"},
		"pool without zero": {with(exampleWelcome, 16+16, bytes.Repeat([]byte{'x'}, 64)...), "not padded"},
	} {
		if _, _, err := Decode(c.raw); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", title, err, c.want)
		}
	}
}

func TestOtherVersionsCanSayHelloAndError(t *testing.T) {
	for _, m := range []Message{&Hello{MinVersion: 5, MaxVersion: 6, Flags: 0xff}, Errorf(CodeVersion, "no")} {
		b, err := Encode(1, m)
		if err != nil {
			t.Fatal(err)
		}
		b[4] = 5
		if _, got, err := Decode(b); err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("%s of version 5: %+v, %v", m.Type(), got, err)
		}
	}
}

func TestWhatDoesNotFitIsNotEncoded(t *testing.T) {
	for want, m := range map[string]Message{
		"251 devices are more than 250": &Welcome{Devices: make([]Device, 251)},
		"more than 63 bytes":            &Welcome{Pool: strings.Repeat("p", 64)},
	} {
		if _, err := Encode(1, m); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if _, err := MakeName("sixteen-letters!"); err == nil {
		t.Error("a name of 16 bytes is taken")
	}
	b, err := Encode(1, &Welcome{Pool: strings.Repeat("p", 63), Devices: make([]Device, MaxDevices)})
	if err != nil || len(b) > MaxMessage {
		t.Errorf("the largest WELCOME: %d bytes, %v", len(b), err)
	}
}

func TestLongTextsAreCutAtARune(t *testing.T) {
	b, err := Encode(1, Errorf(CodeInternal, "%s\xff", strings.Repeat("ä", MaxText)))
	if err != nil {
		t.Fatal(err)
	}
	_, m, err := Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	if got := m.(*Error).Text; got != strings.Repeat("ä", MaxText/2) {
		t.Errorf("got %d bytes: %q", len(got), got)
	}
	b, err = Encode(1, Errorf(CodeInternal, "a\xffb"))
	if err != nil {
		t.Fatal(err)
	}
	if _, m, err = Decode(b); err != nil || m.(*Error).Text != "a?b" {
		t.Errorf("invalid UTF-8: %+v, %v", m, err)
	}
}

// What is taken means one thing only: encoded again it is the same bytes.
func FuzzDecode(f *testing.F) {
	for _, m := range allMessages() {
		b, err := Encode(1, m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		id, m, err := Decode(b)
		if err != nil {
			return
		}
		again, err := Encode(id, m)
		if err != nil {
			t.Fatalf("%+v was decoded but cannot be encoded: %v", m, err)
		}
		copy(again[4:6], b[4:6]) // HELLO and ERROR may be of another version
		if !bytes.Equal(again, b) {
			t.Fatalf("encoded again:\n%x\nwas:\n%x", again, b)
		}
	})
}
