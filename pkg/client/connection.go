package client

import (
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/wire"
)

// How long to wait between attempts to reach an agent that is being restarted.
const (
	firstPause = 50 * time.Millisecond
	maxPause   = 2 * time.Second
)

// attach makes conn the connection that requests use.
func (c *Client) attach(conn *wire.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conn, c.answers = conn, make(chan wire.Received, 1)
	close(c.back)
	if c.closed {
		_ = conn.Close()
	}
}

// run reads the connection, and makes another one when it is lost, until the client ends.
func (c *Client) run(conn *wire.Conn) {
	for {
		err := c.read(conn)
		c.mu.Lock()
		_ = conn.Close()
		c.conn = nil
		c.back = make(chan struct{})
		close(c.answers)
		var ended *wire.Error
		if errors.As(err, &ended) {
			c.end(err)
		}
		c.mu.Unlock()
		if conn = c.reconnect(); conn == nil {
			return
		}
		c.attach(conn)
		c.resumes.Add(1)
	}
}

// read passes answers on until the connection ends. The error is a *wire.Error when the agent said why.
func (c *Client) read(conn *wire.Conn) error {
	for {
		r, err := conn.Recv(time.Time{})
		if err != nil {
			dropUnexpected(err)
			return err
		}
		if e, ok := r.Message.(*wire.Error); ok && r.ID == 0 {
			return e
		}
		select {
		case c.answers <- r:
		default:
			// Nobody waits for it any more.
			if r.FD >= 0 {
				_ = unix.Close(r.FD)
			}
		}
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
		conn, _, err := c.dial()
		if err == nil {
			err = c.resume(conn)
			if err == nil {
				return conn
			}
			_ = conn.Close()
		}
		var refused *wire.Error
		if errors.As(err, &refused) && refused.Code != wire.CodeLimit && refused.Code != wire.CodeBusy {
			c.mu.Lock()
			c.end(fmt.Errorf("resume after the connection was lost: %w", err))
			c.mu.Unlock()
			return nil
		}
	}
}

// resume hands all open sockets back to the agent.
func (c *Client) resume(conn *wire.Conn) error {
	c.mu.Lock()
	queues := make([]*Queue, 0, len(c.queues))
	for _, q := range c.queues {
		queues = append(queues, q)
	}
	c.mu.Unlock()
	for i, q := range queues {
		fd, err := q.dup()
		if errors.Is(err, errClosed) {
			continue
		}
		if err != nil {
			return err
		}
		_, err = exchange(conn, uint32(i+1), &wire.Resume{Device: uint32(q.Device.Index)}, fd)
		_ = unix.Close(fd)
		if err != nil {
			return fmt.Errorf("resume %s queue %d: %w", q.Device.Netdev, q.Device.Queue, err)
		}
	}
	return nil
}

// request sends a request and waits for its answer, which must be of type want. While the agent is being restarted it
// waits for it, as long as for an answer.
func (c *Client) request(m wire.Message, fd int, want wire.Type) (wire.Received, error) {
	c.requests.Lock()
	defer c.requests.Unlock()
	timeout := time.After(answerTimeout)
	for {
		c.mu.Lock()
		conn, answers, back := c.conn, c.answers, c.back
		c.lastID = max(c.lastID+1, 1) // 0 is the agent's own
		id := c.lastID
		c.mu.Unlock()
		if conn == nil {
			select {
			case <-back:
				continue
			case <-c.done:
				return wire.Received{}, c.endError()
			case <-timeout:
				return wire.Received{}, errors.New("the agent is not running")
			}
		}
		if err := conn.Send(id, m, fd, answerTimeout); err != nil {
			return wire.Received{}, err
		}
		return c.await(m, id, want, answers, timeout)
	}
}

func (c *Client) await(m wire.Message, id uint32, want wire.Type, answers chan wire.Received, timeout <-chan time.Time) (wire.Received, error) {
	for {
		select {
		case r, ok := <-answers:
			if !ok {
				if err := c.Err(); err != nil {
					return r, err
				}
				return r, fmt.Errorf("the connection was lost before %s was answered: %w", m.Type(), io.ErrUnexpectedEOF)
			}
			if r.ID != id {
				// The answer to an earlier request that was given up.
				if r.FD >= 0 {
					_ = unix.Close(r.FD)
				}
				continue
			}
			if err := asError(r); err != nil {
				return r, err
			}
			if r.Message.Type() != want {
				if r.FD >= 0 {
					_ = unix.Close(r.FD)
				}
				return wire.Received{}, fmt.Errorf("the agent answered %s with %s", m.Type(), r.Message.Type())
			}
			return r, nil
		case <-timeout:
			return wire.Received{}, fmt.Errorf("the agent did not answer %s within %v", m.Type(), answerTimeout)
		}
	}
}

func (c *Client) endError() error {
	if err := c.Err(); err != nil {
		return err
	}
	return errors.New("the client is closed")
}
