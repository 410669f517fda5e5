package report

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

func TestMessagesAreFoundBetweenOtherLines(t *testing.T) {
	var port bytes.Buffer
	port.WriteString("[    0.100000] a line of the kernel without an end")
	for _, m := range []Message{{Send: &Send{NIC: "igb", MAC: "02:00:00:00:00:20"}}, {Row: &Row{Driver: "igb", Queues: 4}, Tag: 3}} {
		if err := Write(&port, m); err != nil {
			t.Fatal(err)
		}
		port.WriteString("[    0.200000] another\r\n")
	}
	// A serial line ends lines in its own way.
	text := strings.ReplaceAll(port.String(), "}\n", "}\r\n")
	var got []Message
	if err := Read(strings.NewReader(text), func(m Message) error { got = append(got, m); return nil }); err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || got[0].Send == nil || got[0].Send.NIC != "igb" || got[1].Row == nil || got[1].Row.Queues != 4 || got[1].Tag != 3 {
		t.Errorf("%+v", got)
	}
}

func TestReadEndsWithTheFirstError(t *testing.T) {
	stop := errors.New("stop")
	calls := 0
	err := Read(strings.NewReader(Prefix+"{}\n"+Prefix+"{}\n"), func(Message) error { calls++; return stop })
	if !errors.Is(err, stop) || calls != 1 {
		t.Errorf("%v after %d calls, want %v after 1", err, calls, stop)
	}
	if err := Read(strings.NewReader(Prefix+"{cut\n"), func(Message) error { return nil }); err == nil {
		t.Error("a message that is cut was taken")
	}
}

func TestFramesThatDidNotArriveAreLost(t *testing.T) {
	tx := TX{Frames: 64}
	if tx.Count(63); !tx.Lost {
		t.Error("63 of 64 arrived, and none is lost")
	}
	if tx.Count(64); tx.Lost {
		t.Error("64 of 64 arrived, and some are lost")
	}
}
