package netdev

import (
	"errors"
	"testing"

	"github.com/mdlayher/netlink"
	"github.com/mdlayher/netlink/nltest"
	"golang.org/x/sys/unix"
)

func TestTornDumpIsReadAgain(t *testing.T) {
	for _, c := range []struct {
		torn int // answers
		ok   bool
	}{{0, true}, {2, true}, {dumpAttempts, false}} {
		asked := 0
		h := &Handle{route: &conn{nl: nltest.Dial(func(req []netlink.Message) ([]netlink.Message, error) {
			var flags netlink.HeaderFlags
			if asked < c.torn {
				flags = netlink.DumpInterrupted
			}
			asked++
			return nltest.Multipart([]netlink.Message{
				{Header: netlink.Header{Sequence: req[0].Header.Sequence, PID: nltest.PID, Flags: flags},
					Data: make([]byte, unix.SizeofIfInfomsg)},
				{Header: netlink.Header{Sequence: req[0].Header.Sequence, PID: nltest.PID}},
			})
		})}}
		links, err := h.rawLinks()
		if (err == nil) != c.ok || c.ok && (len(links) != 1 || asked != c.torn+1) {
			t.Errorf("%d torn answers: %d links after %d requests, %v", c.torn, len(links), asked, err)
		}
	}
}

func TestStrayAnswerIsNotTakenForTheNext(t *testing.T) {
	h := open(t)
	data, err := linkRequest(1, netlink.NewAttributeEncoder())
	must(t, err)
	// An answer that nobody has read, as after a timeout.
	_, err = h.route.nl.Send(netlink.Message{
		Header: netlink.Header{Type: unix.RTM_GETLINK, Flags: netlink.Request | netlink.Dump},
		Data:   make([]byte, unix.SizeofIfInfomsg),
	})
	must(t, err)
	if _, err := h.route.execute(unix.RTM_GETLINK, 0, data); err == nil {
		t.Fatal("the answer to another request was taken for this one's")
	}
	if l, err := h.LinkByIndex(1); err != nil || l.Name != "lo" {
		t.Errorf("the request after that: %+v, %v; want lo", l, err)
	}
}

func TestFamilyOrCommandThatTheKernelLacksIsUnsupported(t *testing.T) {
	h := open(t)
	without := *h
	var err error
	without.netdev, err = findFamily(h.generic, "nvnosuch")
	must(t, err)
	if _, err := without.Queues(1); !errors.Is(err, ErrUnsupported) {
		t.Errorf("queues without the family: %v, want ErrUnsupported", err)
	}
	if _, err := h.generic.request(h.netdev, 200, 0, netlink.NewAttributeEncoder()); !errors.Is(err, ErrUnsupported) {
		t.Errorf("a command that does not exist: %v, want ErrUnsupported", err)
	}
}
