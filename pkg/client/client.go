package client

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/wire"
	"github.com/afxdp-project/afxdp/pkg/xsk"
)

// SocketName is the name of the agent's socket in an allocation's directory.
const SocketName = "afxdp.sock"

// Device is a queue that the pod was given.
type Device struct {
	Index       int    // how Open names it
	Netdev      string // the NIC's name on the node
	Queue       int
	NUMANode    int // -1 when unknown
	MTU         int // bytes
	Leased      bool
	Open        bool // some connection had it open when this one was made
	MultiBuffer bool // packets may span frames
}

// Client is a connection to the agent for one allocation. Its methods may be called from any goroutine.
type Client struct {
	path    string
	pool    string
	devices []Device
	maxUMEM uint64
	maxRing uint32

	timeout time.Duration   // of an answer
	life    context.Context // until the client ends
	done    chan struct{}   // closed when the client ends
	stopped chan struct{}   // closed when no goroutine of the client is left

	requests sync.Mutex // one request at a time

	mu          sync.Mutex
	stop        context.CancelFunc // ends life
	err         error              // why done is closed
	closed      bool
	conn        *wire.Conn    // nil while there is no connection
	back        chan struct{} // closed when there is one
	connections uint64        // how many there were
	pending     *call         // waits for its answer
	lastID      uint32
	queues      map[int]*Queue // by device index
	source      *query         // has the agent take the UMEM again
}

// Connect connects to the agent. path is an allocation's directory, such as /run/afxdp/fast, or the socket in it. ctx
// is for connecting only. The caller closes the Client.
func Connect(ctx context.Context, path string) (*Client, error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, SocketName)
	}
	conn, welcome, err := dial(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("connect to the node agent at %s: %w", path, err)
	}
	c := &Client{
		path: path, pool: welcome.Pool, maxUMEM: welcome.MaxUMEM, maxRing: welcome.MaxRingSize, timeout: answerTimeout,
		done: make(chan struct{}), stopped: make(chan struct{}), queues: make(map[int]*Queue), back: make(chan struct{}),
	}
	c.life, c.stop = context.WithCancel(context.Background())
	for i, d := range welcome.Devices {
		c.devices = append(c.devices, Device{
			Index: i, Netdev: d.Netdev.String(), Queue: int(d.Queue), NUMANode: int(d.NUMA), MTU: int(d.MTU),
			Leased: d.Flags&wire.DeviceLeased != 0, Open: d.Flags&wire.DeviceOpen != 0,
			MultiBuffer: d.Flags&wire.DeviceMultiBuffer != 0,
		})
	}
	c.attach(conn, nil)
	go c.run(conn)
	return c, nil
}

// dial connects and shakes hands.
func dial(ctx context.Context, path string) (_ *wire.Conn, _ *wire.Welcome, err error) {
	conn, err := wire.Dial(path, dialTimeout)
	if err != nil {
		switch {
		case errors.Is(err, unix.ECONNREFUSED):
			err = fmt.Errorf("%w (the agent is not running)", err)
		case errors.Is(err, fs.ErrNotExist):
			err = fmt.Errorf("%w (not the directory of an allocation, or the agent has not run since the node was started)", err)
		}
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, conn.Close())
		}
	}()
	r, err := exchange(ctx, conn, 1, &wire.Hello{MinVersion: wire.Version, MaxVersion: wire.Version}, -1)
	if err != nil {
		return nil, nil, err
	}
	welcome, ok := r.Message.(*wire.Welcome)
	if !ok {
		return nil, nil, fmt.Errorf("the agent answered HELLO with %s", r.Message.Type())
	}
	return conn, welcome, nil
}

// Pool returns the pool's name.
func (c *Client) Pool() string { return c.pool }

// Devices returns the allocation's devices as they stood when the connection was made.
func (c *Client) Devices() []Device { return slices.Clone(c.devices) }

// MaxUMEM returns the pool's limit for a UMEM in bytes.
func (c *Client) MaxUMEM() uint64 { return c.maxUMEM }

// MaxRingSize returns the pool's limit for each ring in entries.
func (c *Client) MaxRingSize() uint32 { return c.maxRing }

// Resumes returns how often the connection was lost and everything was resumed on a new one.
func (c *Client) Resumes() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.connections - 1
}

// Done is closed when the client ends: by Close, or because the agent ended a lease or did not take back a socket.
func (c *Client) Done() <-chan struct{} { return c.done }

// Err returns why Done is closed; nil after Close and before.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close closes the connection and waits for the client's goroutine. Queues stay usable until they are closed
// themselves, but the agent knows nothing of them any more: no other client gets a device before its queue is closed.
func (c *Client) Close() error {
	c.mu.Lock()
	var err error
	if !c.closed {
		c.closed = true
		c.end(nil)
		if c.conn != nil {
			if err = c.conn.Close(); errors.Is(err, net.ErrClosed) {
				err = nil // given up, but nobody has noticed yet
			}
		}
	}
	c.mu.Unlock()
	<-c.stopped
	return err
}

// end closes Done, once. c.mu is held.
func (c *Client) end(err error) {
	select {
	case <-c.done:
	default:
		c.err = err
		close(c.done)
		c.stop()
	}
}

// UMEMConfig describes the packet memory that Register makes.
type UMEMConfig struct {
	xsk.UMEMConfig
	// ZeroCopy: Auto takes what all devices of the pod can; Require fails without; Off is copy mode.
	ZeroCopy xsk.ZeroCopy
}

// Register makes a UMEM and registers it for the queues that this client opens. The caller closes the UMEM after the
// queues.
func (c *Client) Register(config UMEMConfig) (*xsk.UMEM, error) {
	config.UMEMConfig = config.WithDefaults()
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("register UMEM: %w", err)
	}
	if length := config.Length(); length > c.maxUMEM {
		return nil, fmt.Errorf("register UMEM: %w", wire.Errorf(wire.CodeLimit,
			"%d bytes are more than the pool's limit of %d", length, c.maxUMEM))
	}
	umem, err := xsk.NewUMEM(config.UMEMConfig)
	if err != nil {
		return nil, err
	}
	m := &wire.UMEM{
		Length: uint64(len(umem.Bytes())), FrameSize: umem.Config.FrameSize, Headroom: umem.Config.Headroom,
	}
	if config.Unaligned {
		m.Flags |= wire.UMEMUnaligned
	}
	switch config.ZeroCopy {
	case xsk.ZeroCopyOff:
		m.Flags |= wire.UMEMZeroCopyOff
	case xsk.ZeroCopyRequire:
		m.Flags |= wire.UMEMZeroCopyRequire
	}
	lend := func() (int, func(), error) { return umem.FD(), func() {}, nil }
	err = c.use(query{message: m, want: wire.TypeUMEMOK, lend: lend})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("register UMEM: %w", err), umem.Close())
	}
	return umem, nil
}

// Join has this client's queues use the UMEM of a queue that another client of the same pod has opened, so that the
// devices of several pools share it.
func (c *Client) Join(q *Queue) error {
	err := c.use(query{message: &wire.Join{}, want: wire.TypeJoined, lend: func() (int, func(), error) {
		fd, err := q.dup()
		return fd, func() { _ = unix.Close(fd) }, err
	}})
	if err != nil {
		return fmt.Errorf("join the UMEM of %s queue %d: %w", q.Device.Netdev, q.Device.Queue, err)
	}
	return nil
}

// use has the agent take a UMEM, and remembers how: it forgets one on which no socket is open, and with its connection
// one that no socket was made on.
func (c *Client) use(source query) error {
	if err := c.request(source); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.source = &source
	return nil
}
