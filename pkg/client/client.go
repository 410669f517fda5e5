package client

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/internal/wire"
	"github.com/afxdp-project/afxdp/pkg/xsk"
)

// SocketName is the name of the agent's socket in an allocation's directory.
const SocketName = "afxdp.sock"

const (
	dialTimeout = 2 * time.Second
	// answerTimeout covers the second that the agent waits for a queue that is still held, and a NIC's reset.
	answerTimeout = 30 * time.Second
)

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
	path     string
	pool     string
	devices  []Device
	maxUMEM  uint64
	maxRing  uint32
	done     chan struct{}
	resumes  atomic.Uint64
	requests sync.Mutex // one request at a time

	mu      sync.Mutex
	conn    *wire.Conn // nil while there is no connection
	back    chan struct{}
	answers chan wire.Received // of the connection
	lastID  uint32
	queues  map[int]*Queue // by device index
	err     error          // why done is closed
	closed  bool
}

// Pools returns the paths that the environment names, by the variable's name without its prefix: AFXDP_FAST is "FAST".
func Pools() map[string]string {
	pools := make(map[string]string)
	for _, kv := range os.Environ() {
		name, value, _ := strings.Cut(kv, "=")
		if rest, ok := strings.CutPrefix(name, "AFXDP_"); ok && strings.HasPrefix(value, "/") {
			pools[rest] = value
		}
	}
	return pools
}

// DefaultPath returns the path of the one allocation that the environment names, and an error when it names none or
// several.
func DefaultPath() (string, error) {
	pools := Pools()
	for _, path := range pools {
		if len(pools) == 1 {
			return path, nil
		}
	}
	if len(pools) == 0 {
		return "", errors.New("no AFXDP_<POOL> variable is set: the container has not asked for a resource afxdp.io/<pool>")
	}
	return "", fmt.Errorf("%d AFXDP_<POOL> variables are set; choose one", len(pools))
}

// Connect connects to the agent. path is an allocation's directory, such as /run/afxdp/fast, or the socket in it.
func Connect(ctx context.Context, path string) (*Client, error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, SocketName)
	}
	c := &Client{path: path, done: make(chan struct{}), queues: make(map[int]*Queue), back: make(chan struct{})}
	conn, welcome, err := c.dial()
	if err != nil {
		return nil, fmt.Errorf("connect to the node agent at %s: %w", path, err)
	}
	c.pool, c.maxUMEM, c.maxRing = welcome.Pool, welcome.MaxUMEM, welcome.MaxRingSize
	for i, d := range welcome.Devices {
		c.devices = append(c.devices, Device{
			Index: i, Netdev: d.Netdev.String(), Queue: int(d.Queue), NUMANode: int(d.NUMA), MTU: int(d.MTU),
			Leased: d.Flags&wire.DeviceLeased != 0, Open: d.Flags&wire.DeviceOpen != 0,
			MultiBuffer: d.Flags&wire.DeviceMultiBuffer != 0,
		})
	}
	c.attach(conn)
	go c.run(conn)
	return c, ctx.Err()
}

// dial connects and shakes hands.
func (c *Client) dial() (*wire.Conn, *wire.Welcome, error) {
	conn, err := wire.Dial(c.path, dialTimeout)
	if err != nil {
		if errors.Is(err, unix.ECONNREFUSED) {
			err = fmt.Errorf("%w (the agent is not running)", err)
		}
		return nil, nil, err
	}
	hello := &wire.Hello{MinVersion: wire.Version, MaxVersion: wire.Version}
	r, err := exchange(conn, 0, hello, -1)
	if err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	welcome, ok := r.Message.(*wire.Welcome)
	if !ok {
		return nil, nil, errors.Join(fmt.Errorf("the agent answered HELLO with %s", r.Message.Type()), conn.Close())
	}
	return conn, welcome, nil
}

// exchange sends a request and receives its answer, on a connection that nobody else reads.
func exchange(conn *wire.Conn, id uint32, m wire.Message, fd int) (wire.Received, error) {
	if err := conn.Send(id, m, fd, answerTimeout); err != nil {
		// The agent may have said why it closed the connection before it read this.
		if r, rerr := conn.Recv(time.Now().Add(time.Second)); rerr == nil {
			return r, asError(r)
		}
		return wire.Received{}, err
	}
	r, err := conn.Recv(time.Now().Add(answerTimeout))
	if err != nil {
		dropUnexpected(err)
		return wire.Received{}, fmt.Errorf("wait for the answer to %s: %w", m.Type(), err)
	}
	return r, asError(r)
}

func asError(r wire.Received) error {
	if e, ok := r.Message.(*wire.Error); ok {
		return fmt.Errorf("the agent refused: %w", e)
	}
	return nil
}

func dropUnexpected(err error) {
	var broken *wire.ProtocolError
	if errors.As(err, &broken) {
		for _, fd := range broken.Unexpected {
			_ = unix.Close(fd)
		}
	}
}

// Pool returns the pool's name.
func (c *Client) Pool() string { return c.pool }

// Devices returns the allocation's devices as they stood when the connection was made.
func (c *Client) Devices() []Device { return append([]Device(nil), c.devices...) }

// MaxUMEM returns the pool's limit for a UMEM in bytes.
func (c *Client) MaxUMEM() uint64 { return c.maxUMEM }

// MaxRingSize returns the pool's limit for each ring in entries.
func (c *Client) MaxRingSize() uint32 { return c.maxRing }

// Resumes returns how often the connection was lost and everything was resumed on a new one.
func (c *Client) Resumes() uint64 { return c.resumes.Load() }

// Done is closed when the client ends: by Close, or because the agent ended a lease or did not take back a socket.
func (c *Client) Done() <-chan struct{} { return c.done }

// Err returns why Done is closed; nil after Close and before.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close closes the connection. Queues stay usable until they are closed themselves, but the agent may give the device
// to another client of the pod.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	c.end(nil)
	if c.conn != nil {
		return c.conn.Close()
	}
	return nil
}

// end closes Done, once. c.mu is held.
func (c *Client) end(err error) {
	select {
	case <-c.done:
	default:
		c.err = err
		close(c.done)
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
	if _, err := c.request(m, umem.FD(), wire.TypeUMEMOK); err != nil {
		return nil, errors.Join(fmt.Errorf("register UMEM: %w", err), umem.Close())
	}
	return umem, nil
}

// Join has this client's queues use the UMEM of a queue that another client of the same pod has opened, so that the
// devices of several pools share it.
func (c *Client) Join(q *Queue) error {
	if _, err := c.request(&wire.Join{}, q.Socket.FD(), wire.TypeJoined); err != nil {
		return fmt.Errorf("join the UMEM of %s queue %d: %w", q.Device.Netdev, q.Device.Queue, err)
	}
	return nil
}
