package traffic

import (
	"encoding/binary"
	"fmt"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// floodBurst is how many frames are sent without a look at whether there is room, floodPause the wait when there is not:
	// far less than the device needs for what waits in its queue.
	floodBurst = 64
	floodPause = 20 * time.Microsecond
	// pingEvery is the pace of pings, pingLimit when one is lost.
	pingEvery = 2 * time.Millisecond
	pingLimit = 250 * time.Millisecond
	numberAt  = 42 // behind the UDP header
)

// Prefer has a thread, 0 for the calling one, run before all usual ones: on a machine with little to spare the other end
// must not be what is slow.
func Prefer(thread int) error {
	return unix.SchedSetAttr(thread, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_RR, Priority: 1}, 0)
}

// Flood is one flow of frames into a device.
type Flood struct {
	fd      int
	cpus    unix.CPUSet
	stop    atomic.Bool
	done    sync.WaitGroup
	offered uint64
	took    time.Duration
}

// StartFlood sends frames of one flow to a NIC without a pause, from one of cpus.
func StartFlood(device string, mac net.HardwareAddr, cpus unix.CPUSet) (*Flood, error) {
	fd, frame, err := bound(device, mac, 0)
	if err != nil {
		return nil, err
	}
	f := &Flood{fd: fd, cpus: cpus}
	f.done.Go(func() { f.send(frame) })
	return f, nil
}

// bound returns a packet socket of a device, which receives what is of protocol, and a frame for it.
func bound(device string, mac net.HardwareAddr, protocol uint16) (fd int, frame []byte, err error) {
	fail := func(err error) (int, []byte, error) { return -1, nil, fmt.Errorf("send on %s: %w", device, err) }
	ifi, err := net.InterfaceByName(device)
	if err != nil {
		return fail(err)
	}
	fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fail(err)
	}
	err = unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: ifi.Index, Protocol: swap(protocol)})
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1)
	}
	if err != nil {
		_ = unix.Close(fd)
		return fail(err)
	}
	return fd, udp(ifi.HardwareAddr, mac, 0), nil
}

func (f *Flood) send(frame []byte) {
	runtime.LockOSThread() // for ever: the thread ends with this goroutine, and its priority with it
	_, _ = Prefer(0), unix.SchedSetaffinity(0, &f.cpus)
	start := time.Now()
	for !f.stop.Load() {
		full := false
		for range floodBurst {
			f.offered++
			binary.BigEndian.PutUint64(frame[numberAt:], f.offered)
			_, err := unix.Write(f.fd, frame)
			full = err != nil // the device drops the frame, as a wire would
		}
		if full {
			nap(floodPause)
		}
	}
	f.took = time.Since(start)
}

// Stop ends the flood and returns how many frames it has offered in what time.
func (f *Flood) Stop() (offered uint64, took time.Duration) {
	f.stop.Store(true)
	f.done.Wait()
	_ = unix.Close(f.fd)
	return f.offered, f.took
}

// Number returns which of a flood's frames this is, from 1 on, those counted that found the device full.
func Number(frame []byte) uint64 {
	if len(frame) < numberAt+8 {
		return 0
	}
	return binary.BigEndian.Uint64(frame[numberAt:])
}

// Pinger measures how long frames take to a NIC whose guest sends them back.
type Pinger struct {
	fd    int
	stop  atomic.Bool
	done  sync.WaitGroup
	trips []time.Duration
	lost  int
}

// StartPinger sends a frame about every two milliseconds, but none before the last is back or lost.
func StartPinger(device string, mac net.HardwareAddr) (*Pinger, error) {
	fd, frame, err := bound(device, mac, unix.ETH_P_IP)
	if err != nil {
		return nil, err
	}
	wait := unix.NsecToTimeval(int64(pingLimit))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	p := &Pinger{fd: fd}
	p.done.Go(func() { p.ping(frame) })
	return p, nil
}

func (p *Pinger) ping(frame []byte) {
	runtime.LockOSThread() // for ever, as in send
	_ = Prefer(0)
	for seq := uint32(1); !p.stop.Load(); seq++ {
		binary.BigEndian.PutUint32(frame[numberAt:], seq)
		start := time.Now()
		if _, err := unix.Write(p.fd, frame); err == nil && p.back(seq, start) {
			p.trips = append(p.trips, time.Since(start))
		} else {
			p.lost++
		}
		nap(time.Until(start.Add(pingEvery)))
	}
}

// nap sleeps. The runtime's Sleep is ended by another thread, which has no priority.
func nap(d time.Duration) {
	t := unix.NsecToTimespec(max(0, d.Nanoseconds()))
	_ = unix.Nanosleep(&t, nil)
}

// back waits for a frame.
func (p *Pinger) back(seq uint32, start time.Time) bool {
	buf := make([]byte, 2048)
	for time.Since(start) < pingLimit {
		n, _, err := unix.Recvfrom(p.fd, buf, 0)
		if err == nil && n >= numberAt+4 && binary.BigEndian.Uint32(buf[numberAt:]) == seq {
			return true
		}
	}
	return false
}

// Stop ends the pings and returns, in ascending order, how long those that came back took, and how many did not.
func (p *Pinger) Stop() (trips []time.Duration, lost int) {
	p.stop.Store(true)
	p.done.Wait()
	_ = unix.Close(p.fd)
	slices.Sort(p.trips)
	return p.trips, p.lost
}
