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
	// floodTick is how often a flood that has a rate goes on.
	floodTick = 250 * time.Microsecond
	// backlog bounds what is made up for after the machine was busy.
	backlog = 20 * time.Millisecond
	// pingEvery is the pace of pings, pingLimit when one is lost.
	pingEvery = 2 * time.Millisecond
	pingLimit = 250 * time.Millisecond
	numberAt  = 42 // behind the UDP header
)

// Nice is the priority of a flood's thread: on a machine with little to spare the other end must not be what is slow.
const Nice = -15

// Flood is one flow of frames into a device.
type Flood struct {
	fd      int
	stop    atomic.Bool
	done    sync.WaitGroup
	rate    atomic.Int64 // frames a second; 0: as many as it can
	offered uint64
	took    time.Duration
}

// StartFlood sends frames of one flow to a NIC, pps a second, or as many as it can where pps is 0.
func StartFlood(device string, mac net.HardwareAddr, pps int) (*Flood, error) {
	fd, frame, err := bound(device, mac, 0)
	if err != nil {
		return nil, err
	}
	f := &Flood{fd: fd}
	f.rate.Store(int64(pps))
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
	_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), Nice)
	start := time.Now()
	last, due := start, 0.0
	for !f.stop.Load() {
		n, pps := 64, f.rate.Load()
		if pps > 0 {
			now := time.Now()
			due += float64(pps) * min(now.Sub(last), backlog).Seconds()
			last = now
			n = int(due)
			due -= float64(n)
		}
		for range n {
			f.offered++
			binary.BigEndian.PutUint64(frame[numberAt:], f.offered)
			_, _ = unix.Write(f.fd, frame) // a full device drops frames, as a wire would
		}
		if pps > 0 {
			time.Sleep(floodTick)
		}
	}
	f.took = time.Since(start)
}

// Scale changes the rate of a flood that has one.
func (f *Flood) Scale(by float64) { f.rate.Store(int64(float64(f.rate.Load()) * by)) }

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
	for seq := uint32(1); !p.stop.Load(); seq++ {
		binary.BigEndian.PutUint32(frame[numberAt:], seq)
		start := time.Now()
		if _, err := unix.Write(p.fd, frame); err == nil && p.back(seq, start) {
			p.trips = append(p.trips, time.Since(start))
		} else {
			p.lost++
		}
		time.Sleep(time.Until(start.Add(pingEvery)))
	}
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
