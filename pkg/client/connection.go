package client

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/wire"
)

const (
	dialTimeout = 2 * time.Second
	// answerTimeout covers the second that the agent waits for a queue that is still held, and a NIC's reset.
	answerTimeout = 30 * time.Second

	// How long to wait between attempts to reach an agent that is being restarted.
	firstPause = 50 * time.Millisecond
	maxPause   = 2 * time.Second
)

// run reads the connection, and makes another one when it is lost, until the client ends.
func (c *Client) run(conn *wire.Conn) {
	defer close(c.stopped)
	for conn != nil {
		c.detach(conn, c.read(conn))
		conn = c.reconnect()
	}
}

// attach makes conn the connection that requests use, unless a queue of resumed has been closed meanwhile: it returns
// that one then.
func (c *Client) attach(conn *wire.Conn, resumed []*Queue) *Queue {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, q := range resumed {
		if c.queues[q.Device.Index] != q {
			return q
		}
	}
	c.conn = conn
	c.connections++
	close(c.back)
	if c.closed {
		_ = conn.Close() // Close came before there was a connection
	}
	return nil
}

// open returns the open queues.
func (c *Client) open() []*Queue {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.SortedFunc(maps.Values(c.queues), func(a, b *Queue) int { return a.Device.Index - b.Device.Index })
}

// detach gives up a lost connection.
func (c *Client) detach(conn *wire.Conn, err error) {
	wire.CloseUnexpected(err)
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = conn.Close()
	c.conn, c.back = nil, make(chan struct{})
	var ended *wire.Error
	if errors.As(err, &ended) {
		c.end(fmt.Errorf("the agent ended the connection: %w", ended))
	}
	if c.pending != nil {
		c.pending.done <- errLost
		c.pending = nil
	}
}

// read passes answers on until the connection ends. The error is a *wire.Error when the agent said why.
func (c *Client) read(conn *wire.Conn) error {
	for {
		r, err := conn.Recv(time.Time{})
		if err != nil {
			return err
		}
		if e, ok := r.Message.(*wire.Error); ok && r.ID == 0 {
			return e
		}
		c.mu.Lock()
		p := c.pending
		if p == nil || p.id != r.ID {
			c.mu.Unlock()
			// An answer that nobody waits for, so what came with it is nobody's.
			closeFD(r, nil)
			return fmt.Errorf("%s came unasked", r.Message.Type())
		}
		c.pending = nil
		c.mu.Unlock()
		p.done <- p.accept(r)
	}
}

// reconnect connects anew and hands all open sockets back. It returns nil when the client has ended.
func (c *Client) reconnect() *wire.Conn {
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		select {
		case <-c.done:
			return nil
		case <-time.After(pause):
		}
		conn, err := c.resume()
		if err == nil {
			return conn
		}
		var refused *wire.Error
		if errors.As(err, &refused) && isFinal(refused.Code) {
			c.mu.Lock()
			c.end(fmt.Errorf("resume after the connection was lost: %w", err))
			c.mu.Unlock()
			return nil
		}
	}
}

// isFinal reports whether it is of no use to try to resume again.
func isFinal(code wire.Code) bool {
	switch code {
	case wire.CodeLimit, wire.CodeBusy, wire.CodeState, wire.CodeInternal:
		return false
	}
	return true
}

// resume connects and hands all open sockets back to the agent.
func (c *Client) resume() (_ *wire.Conn, err error) {
	conn, _, err := dial(c.life, c.path)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = conn.Close()
		}
	}()
	id := uint32(1)
	ask := func(m wire.Message, fd int) error {
		id++
		_, err := exchange(c.life, conn, id, m, fd)
		return err
	}
	var resumed []*Queue
	for _, q := range c.open() {
		fd, err := q.dup()
		if errors.Is(err, errClosed) {
			continue
		}
		if err != nil {
			return nil, err
		}
		err = ask(&wire.Resume{Device: uint32(q.Device.Index)}, fd)
		_ = unix.Close(fd)
		if err != nil {
			return nil, fmt.Errorf("resume %s queue %d: %w", q.Device.Netdev, q.Device.Queue, err)
		}
		resumed = append(resumed, q)
	}
	for {
		q := c.attach(conn, resumed)
		if q == nil {
			return conn, nil
		}
		// Closed after it was handed back, when there was no connection to tell the agent by.
		if err := ask(&wire.Close{Device: uint32(q.Device.Index)}, -1); err != nil {
			return nil, err
		}
		resumed = slices.DeleteFunc(resumed, func(r *Queue) bool { return r == q })
	}
}

// exchange sends a request and receives its answer, on a connection that nobody else reads. When ctx ends it closes the
// connection.
func exchange(ctx context.Context, conn *wire.Conn, id uint32, m wire.Message, fd int) (wire.Received, error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	serr := conn.Send(id, m, fd, answerTimeout)
	// Also when sending failed: the agent may have said why it closed the connection.
	r, err := conn.Recv(time.Now().Add(answerTimeout))
	if !stop() {
		closeFD(r, err)
		return wire.Received{}, ctx.Err()
	}
	if err != nil {
		closeFD(r, err)
		return wire.Received{}, errors.Join(serr, fmt.Errorf("wait for the answer to %s: %w", m.Type(), err))
	}
	return r, refusal(r)
}

// closeFD closes what came with a message that is not taken.
func closeFD(r wire.Received, err error) {
	wire.CloseUnexpected(err)
	if err == nil && r.FD >= 0 {
		_ = unix.Close(r.FD)
	}
}
