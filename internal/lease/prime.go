package lease

import (
	"errors"
	"time"

	"github.com/afxdp-project/afxdp/pkg/busypoll"
	"github.com/afxdp-project/afxdp/pkg/xsk"
)

const (
	// The fill ring of a socket is looked at after firstLook, then after twice that, and so on up to lastLook.
	firstLook = 20 * time.Millisecond
	lastLook  = time.Second
	// primings is how often a queue is polled at most.
	primings = 3
)

// priming is a zero-copy socket whose driver has taken no frames for reception yet.
//
// A pod's fill ring is empty when the socket is bound. Drivers look at it when they are woken, but igb (Linux 6.18) does
// not ask to be: it looks again only when the queue's NAPI is polled, which nothing does as long as nothing comes in. A
// socket that busy-polls does so itself; for the others the agent does it, once, when there are frames.
type priming struct {
	lease *lease
	open  *open
	polls int
}

// prime watches over a socket that was just put into service, in a goroutine of its own.
func (m *Manager) prime(l *lease) {
	if l.doc.Socket == nil || !l.doc.Socket.ZeroCopy {
		return
	}
	p := &priming{lease: l, open: l.open}
	go func() {
		for pause := firstLook; ; pause = min(2*pause, lastLook) {
			time.Sleep(pause)
			if m.primed(p) {
				return
			}
		}
	}()
}

// primed looks at a fill ring, polls if need be, and reports whether there is nothing more to do. It keeps neither
// descriptor nor mapping, which would hold the queue.
func (m *Manager) primed(p *priming) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.leases[p.lease.doc.Device] != p.lease || p.lease.open != p.open {
		return true // it was closed
	}
	socket := p.open.socket
	rings, err := socket.Map(xsk.RingSizes{Fill: 1, Completion: 1, RX: 1}) // it is the indexes that are looked at
	if err != nil {
		return true // it has no rx ring
	}
	fill := rings.Fill
	taken, waiting, asks := fill.Taken() > 0, fill.Pending() > 0, fill.NeedsWakeup()
	_ = rings.Close()
	state, err := busypoll.Read(socket.FD())
	switch {
	case taken, err != nil, state.Preferred, p.polls == primings:
		return true
	case !waiting, asks: // the pod will fill it, or wake the driver
		return false
	}
	p.polls++
	err = busypoll.Enable(socket.FD(), busypoll.Options{Budget: busypoll.DefaultBudget, Timeout: busypoll.DefaultTimeout})
	if err == nil {
		err = errors.Join(socket.WakeRX(), busypoll.Disable(socket.FD()))
	}
	return err != nil && !errors.Is(err, xsk.ErrAgain)
}
