package client

import (
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/wire"
)

// query is a request with what is to be done with its answer.
type query struct {
	message wire.Message
	want    wire.Type
	// lend, if set, returns the descriptor that is sent along, with what is to be done when it is sent.
	lend func() (fd int, done func(), err error)
	// take, if set, takes the answer and its descriptor over. It runs in the goroutine that reads the connection, so that
	// what it enters in the Client is resumed if the connection is lost at that moment.
	take func(wire.Received) error
	// hurry is for what is of no use on another connection than that of now.
	hurry bool
}

// call is a query that waits for its answer. Whoever takes it out of Client.pending completes it.
type call struct {
	query
	id   uint32
	done chan error // room for one
}

var (
	errLost  = errors.New("the connection to the agent was lost")
	errEnded = errors.New("the client is closed")
)

// accept takes the answer to a call.
func (p *call) accept(r wire.Received) error {
	if err := refusal(r); err != nil {
		return err
	}
	if r.Message.Type() != p.want {
		closeFD(r, nil)
		return fmt.Errorf("the agent answered %s with %s", p.message.Type(), r.Message.Type())
	}
	if p.take != nil {
		return p.take(r)
	}
	return nil
}

// request sends queries and waits for the answer to each, with nothing between them. An error of one is the end, but
// for CodeState before the last one. When the connection is lost all are asked again on the next one: what was asked
// of the lost one is undone there.
func (c *Client) request(queries ...query) error {
	last := queries[len(queries)-1]
	timeout := time.NewTimer(c.timeout)
	defer timeout.Stop()
	for {
		err := c.try(queries, timeout.C)
		if last.hurry || !errors.Is(err, errLost) {
			return err
		}
		select {
		case <-c.connected():
		case <-c.done:
			return c.endError()
		case <-timeout.C:
			return fmt.Errorf("send %s: the agent is not running", last.message.Type())
		}
	}
}

// try sends queries on the connection of now. The error is errLost when there is none or it is lost.
func (c *Client) try(queries []query, timeout <-chan time.Time) error {
	c.requests.Lock()
	defer c.requests.Unlock()
	for i, q := range queries {
		err := c.ask(q, timeout)
		if err != nil && (i == len(queries)-1 || !hasCode(err, wire.CodeState)) {
			return err
		}
	}
	return nil
}

func (c *Client) ask(q query, timeout <-chan time.Time) error {
	fd := -1
	if q.lend != nil {
		lent, done, err := q.lend()
		if err != nil {
			return err
		}
		defer done()
		fd = lent
	}
	conn, p := c.begin(q)
	if conn == nil {
		return errLost
	}
	if err := conn.Send(p.id, q.message, fd, c.timeout); err != nil && !isLost(err) && c.giveUp(p) {
		return err
	}
	select {
	case err := <-p.done:
		return err
	case <-timeout:
		if !c.giveUp(p) {
			return <-p.done
		}
		// With the connection goes what the agent may still make.
		_ = conn.Close()
		return fmt.Errorf("the agent did not answer %s within %v", q.message.Type(), c.timeout)
	}
}

// connected returns what is closed when there is a connection.
func (c *Client) connected() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.back
}

// begin makes q the query that waits for an answer on the connection of now. Without one it returns nil.
func (c *Client) begin(q query) (*wire.Conn, *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == nil {
		return nil, nil
	}
	c.lastID = max(c.lastID+1, 1) // 0 is the agent's own
	c.pending = &call{query: q, id: c.lastID, done: make(chan error, 1)}
	return c.conn, c.pending
}

// giveUp has nobody wait for a call's answer. It reports false when the answer is there.
func (c *Client) giveUp(p *call) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pending != p {
		return false
	}
	c.pending = nil
	return true
}

// isLost reports whether sending failed since the connection is lost, of which the reader hears too.
func isLost(err error) bool {
	return errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.ENOTCONN) ||
		errors.Is(err, net.ErrClosed)
}

func (c *Client) endError() error {
	if err := c.Err(); err != nil {
		return err
	}
	return errEnded
}
