// Package traffic sends frames into a network device and counts those that come out of it: the other end of the NIC that
// is tested. It works on the device of a tap, whose guest is the other end, and on an end of a veth pair.
package traffic

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// EtherType is that of the frames that are counted; it is for experiments.
	EtherType = 0x88b5
	// FrameSize is the size of all frames, in bytes.
	FrameSize = 64

	// flows is how many UDP flows there are: enough for each of four queues to get some.
	flows = 64
	// rate is how many frames are sent in a second.
	rate = 2000
	tick = time.Millisecond
	// receiveBuffer holds several bursts, in bytes.
	receiveBuffer = 4 << 20
	// patience bounds a read, and so how long Close waits.
	patience = 100 * time.Millisecond
)

// Port is a device with traffic.
type Port struct {
	in, out int // sockets
	index   int
	mac     net.HardwareAddr

	sending atomic.Pointer[net.HardwareAddr]
	sent    atomic.Uint64
	arrived [256]atomic.Uint64 // by tag
	stop    atomic.Bool
	done    sync.WaitGroup
}

// Open opens a device of the calling thread's network namespace. The caller closes the Port.
func Open(device string) (_ *Port, err error) {
	ifi, err := net.InterfaceByName(device)
	if err != nil {
		return nil, fmt.Errorf("open traffic on %s: %w", device, err)
	}
	p := &Port{in: -1, out: -1, index: ifi.Index, mac: ifi.HardwareAddr}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("open traffic on %s: %w", device, err), p.closeSockets())
		}
	}()
	// With protocol 0 it receives nothing.
	if p.out, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
		return nil, err
	}
	if p.in, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
		return nil, err
	}
	wait := unix.NsecToTimeval(int64(patience))
	if err = unix.SetsockoptTimeval(p.in, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait); err != nil {
		return nil, err
	}
	if err = unix.SetsockoptInt(p.in, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer); err != nil {
		return nil, err
	}
	if err = unix.Bind(p.in, &unix.SockaddrLinklayer{Ifindex: ifi.Index, Protocol: swap(EtherType)}); err != nil {
		return nil, err
	}
	p.done.Go(p.send)
	p.done.Go(p.receive)
	return p, nil
}

// swap turns a number into network byte order.
func swap(v uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], v)
	return binary.NativeEndian.Uint16(b[:])
}

// Start sends UDP frames of many flows to a NIC, about 2000 a second, until Stop.
func (p *Port) Start(mac net.HardwareAddr) { p.sending.Store(&mac) }

// Stop stops sending. A few frames may still be sent.
func (p *Port) Stop() { p.sending.Store(nil) }

// Sent returns how many frames were sent.
func (p *Port) Sent() uint64 { return p.sent.Load() }

// Arrived returns how many frames with a tag came out of the device.
func (p *Port) Arrived(tag byte) int { return int(p.arrived[tag].Load()) }

// Close stops everything.
func (p *Port) Close() error {
	p.stop.Store(true)
	p.done.Wait()
	return p.closeSockets()
}

func (p *Port) closeSockets() error {
	var errs []error
	for _, fd := range []int{p.in, p.out} {
		if fd >= 0 {
			errs = append(errs, unix.Close(fd))
		}
	}
	return errors.Join(errs...)
}

func (p *Port) send() {
	to := &unix.SockaddrLinklayer{Ifindex: p.index, Protocol: swap(unix.ETH_P_IP)}
	flow, last := 0, time.Now()
	for ; !p.stop.Load(); time.Sleep(tick) {
		mac, now := p.sending.Load(), time.Now()
		// What was missed while the machine was busy is not made up for at once.
		due := min(int(now.Sub(last)*rate/time.Second), 32)
		if mac == nil || due == 0 {
			if mac == nil {
				last = now
			}
			continue
		}
		last = now
		for range due {
			flow = (flow + 1) % flows
			// A full or absent device drops frames, as a wire would.
			if unix.Sendto(p.out, udp(p.mac, *mac, flow), 0, to) == nil {
				p.sent.Add(1)
			}
		}
	}
}

func (p *Port) receive() {
	buf := make([]byte, 2048)
	for !p.stop.Load() {
		n, _, err := unix.Recvfrom(p.in, buf, 0)
		if err == nil && n >= FrameSize {
			p.arrived[buf[14]].Add(1)
		}
	}
}

// Tagged writes a frame that the port counts under tag. b is FrameSize bytes long.
func Tagged(b []byte, tag byte) {
	clear(b)
	copy(b, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, tag})
	binary.BigEndian.PutUint16(b[12:], EtherType)
	b[14] = tag
}

// IsUDP reports whether a frame is one of those that Start sends.
func IsUDP(b []byte) bool {
	return len(b) >= 42 && b[12] == 8 && b[13] == 0 && b[23] == unix.IPPROTO_UDP
}

// udp returns a frame of a flow: addresses and ports differ, since some NICs look at the one and some at the other.
func udp(from, to net.HardwareAddr, flow int) []byte {
	b := make([]byte, FrameSize)
	copy(b, to)
	copy(b[6:], from)
	binary.BigEndian.PutUint16(b[12:], unix.ETH_P_IP)
	ip := b[14:]
	ip[0] = 0x45
	binary.BigEndian.PutUint16(ip[2:], FrameSize-14)
	ip[8], ip[9] = 64, unix.IPPROTO_UDP
	copy(ip[12:], []byte{192, 0, 2, byte(1 + flow)})
	copy(ip[16:], []byte{198, 51, 100, byte(1 + flow*7%250)})
	var sum uint32
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	sum = sum>>16 + sum&0xffff
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum+sum>>16))
	binary.BigEndian.PutUint16(ip[20:], uint16(1024+flow*131))
	binary.BigEndian.PutUint16(ip[22:], uint16(9000+flow))
	binary.BigEndian.PutUint16(ip[24:], FrameSize-34)
	return b
}
