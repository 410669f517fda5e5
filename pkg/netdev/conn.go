package netdev

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

const (
	// The kernel works on a request inside sendmsg(2) and has queued the answer when that returns; an answer that is
	// not there after this long was lost.
	answerTimeout = 10 * time.Second
	// A dump that the kernel marks as torn by a concurrent change is asked for again this often.
	dumpAttempts = 10
	// How long to look for late answers after one was lost.
	drainTimeout = 5 * time.Millisecond
)

// conn is a netlink connection for requests and their answers.
type conn struct {
	mu sync.Mutex
	nl *netlink.Conn
}

// dial connects in the calling thread's network namespace.
func dial(protocol int) (*conn, error) {
	nl, err := netlink.Dial(protocol, &netlink.Config{Strict: true})
	if err != nil {
		return nil, err
	}
	return &conn{nl: nl}, nil
}

// execute sends a request and returns the answer, or what the kernel said instead, with its typed error.
func (c *conn) execute(kind netlink.HeaderType, flags netlink.HeaderFlags, data []byte) ([]netlink.Message, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	// Fails only on a closed connection, which Execute then reports.
	_ = c.nl.SetDeadline(time.Now().Add(answerTimeout))
	header := netlink.Header{Type: kind, Flags: netlink.Request | flags}
	msgs, err := c.nl.Execute(netlink.Message{Header: header, Data: data})
	if err != nil && !fromKernel(err) {
		c.drain()
	}
	return msgs, classify(err)
}

// dump asks for a list until one comes that no concurrent change has torn.
func (c *conn) dump(kind netlink.HeaderType, data []byte) ([]netlink.Message, error) {
	for range dumpAttempts {
		msgs, err := c.execute(kind, netlink.Dump, data)
		if err != nil || !torn(msgs) {
			return msgs, err
		}
	}
	return nil, fmt.Errorf("the list changed during each of %d attempts to read it", dumpAttempts)
}

func torn(msgs []netlink.Message) bool {
	for _, m := range msgs {
		if m.Header.Flags&netlink.DumpInterrupted != 0 {
			return true
		}
	}
	return false
}

// fromKernel tells the kernel's answer to a request from a failure to get one.
func fromKernel(err error) bool {
	op, ok := errors.AsType[*netlink.OpError](err)
	return ok && op.Sequence != 0
}

// drain throws away answers that come after all, so that the next request does not take them for its own.
func (c *conn) drain() {
	_ = c.nl.SetReadDeadline(time.Now().Add(drainTimeout))
	for range 1000 {
		if _, err := c.nl.Receive(); err != nil && !fromKernel(err) && !errors.Is(err, unix.ENOBUFS) {
			return
		}
	}
}

// request asks a generic netlink family. Flags may be 0 (get), netlink.Acknowledge (set) or netlink.Dump. The result
// holds the attributes of each message.
func (c *conn) request(
	f family, command uint8, flags netlink.HeaderFlags, ae *netlink.AttributeEncoder,
) ([][]byte, error) {
	if f.id == 0 {
		return nil, fmt.Errorf("%w: no generic netlink family %q", ErrUnsupported, f.name)
	}
	attrs, err := ae.Encode()
	if err != nil {
		return nil, err
	}
	data, err := genetlink.Message{Header: genetlink.Header{Command: command, Version: 1}, Data: attrs}.MarshalBinary()
	if err != nil {
		return nil, err
	}
	var msgs []netlink.Message
	if flags&netlink.Dump == netlink.Dump {
		msgs, err = c.dump(netlink.HeaderType(f.id), data)
	} else {
		msgs, err = c.execute(netlink.HeaderType(f.id), flags, data)
	}
	if err != nil || flags&netlink.Acknowledge != 0 && flags&netlink.Dump != netlink.Dump {
		return nil, err
	}
	bodies := make([][]byte, 0, len(msgs))
	for _, m := range msgs {
		var g genetlink.Message
		if err := g.UnmarshalBinary(m.Data); err != nil {
			return nil, err
		}
		bodies = append(bodies, g.Data)
	}
	return bodies, nil
}

// requestOne asks a generic netlink family for one object and hands its attributes to decode, one by one.
func (c *conn) requestOne(
	f family, command uint8, ae *netlink.AttributeEncoder, decode func(ad *netlink.AttributeDecoder),
) error {
	bodies, err := c.request(f, command, 0, ae)
	if err != nil {
		return err
	}
	if len(bodies) != 1 {
		return fmt.Errorf("the kernel sent %d answers, want 1", len(bodies))
	}
	return attributes(bodies[0], decode)
}

// attributes calls decode for each attribute.
func attributes(b []byte, decode func(ad *netlink.AttributeDecoder)) error {
	ad, err := netlink.NewAttributeDecoder(b)
	if err != nil {
		return err
	}
	for ad.Next() {
		decode(ad)
	}
	return ad.Err()
}

// uintAttribute reads an attribute of netlink's variable type uint, which is 4 or 8 bytes wide.
func uintAttribute(ad *netlink.AttributeDecoder) uint64 {
	if len(ad.Bytes()) == 4 {
		return uint64(ad.Uint32())
	}
	return ad.Uint64()
}
