package traffic

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/testutil"
)

func TestMain(m *testing.M) { os.Exit(testutil.Main(m)) }

func TestTrafficIsSentAndTaggedFramesAreCounted(t *testing.T) {
	testutil.Veth(t, testutil.VethPair{Near: "near", Far: "far", Queues: 4})
	p, err := Open("far")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}()
	near, err := net.InterfaceByName("near")
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(swap(unix.ETH_P_IP)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	limit := unix.NsecToTimeval(int64(5 * time.Second))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
		t.Fatal(err)
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: near.Index, Protocol: swap(unix.ETH_P_IP)}); err != nil {
		t.Fatal(err)
	}

	p.Start(near.HardwareAddr)
	ports := make(map[[2]byte]bool)
	buf := make([]byte, 2048)
	for len(ports) < flows {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue // the Go runtime's signals interrupt a receive that has a timeout
		}
		if err != nil {
			t.Fatalf("after %d flows: %v", len(ports), err)
		}
		if !IsUDP(buf[:n]) || [6]byte(buf) != [6]byte(near.HardwareAddr) {
			t.Fatalf("not a frame to the NIC: % x", buf[:n])
		}
		ports[[2]byte(buf[34:])] = true
	}
	p.Stop()

	frame := make([]byte, FrameSize)
	for tag, count := range map[byte]int{1: 3, 255: 5} {
		Tagged(frame, tag)
		for range count {
			if err := unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: near.Index}); err != nil {
				t.Fatal(err)
			}
		}
		for deadline := time.Now().Add(5 * time.Second); p.Arrived(tag) < count && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond)
		}
		if got := p.Arrived(tag); got != count {
			t.Errorf("tag %d: %d frames arrived, want %d", tag, got, count)
		}
	}
}
