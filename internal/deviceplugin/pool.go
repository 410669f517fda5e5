package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"regexp"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	// recheck is how often all is looked at though nothing seems to have happened.
	recheck = 2 * time.Second
	// settle is how long kubelet may take to open its stream after a registration, or to clean up after one that
	// ended. kubelet cleans up by name: a registration that comes too early for it is what it takes down.
	settle = 3 * time.Second

	maxRequest = 1 << 20 // bytes of one request of kubelet
)

var poolName = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`)

var (
	errWaiting = errors.New("kubelet has not opened its stream of devices")
	errStarts  = errors.New("not registered yet")
)

// pool is the device plugin of one pool. Its goroutine, run, owns server and socket; the rest is behind mu.
type pool struct {
	pluginapi.UnimplementedDevicePluginServer
	name   string
	cfg    Config
	log    *slog.Logger
	socket string

	ctx    context.Context // ends with the pool
	cancel context.CancelFunc
	after  <-chan struct{} // closed when the socket's name is free; nil: it is
	done   chan struct{}   // closed when run has returned
	kick   chan struct{}   // look again, now
	ending chan struct{}   // closed: streams end

	server   *grpc.Server
	serving  sync.WaitGroup
	listener net.Listener // nil: none that is in service
	own      identity     // of listener's socket

	mu        sync.Mutex
	health    health
	next      time.Time // when to evaluate health again, zero: not
	list      *pluginapi.ListAndWatchResponse
	changed   chan struct{} // closed when list is replaced
	withdrawn bool          // list is the last one, and empty
	streams   int           // of kubelet's, open
	since     time.Time     // of the last registration or the end of the last stream
	with      identity      // kubelet's socket at the last registration, zero: none
	err       error         // why not registered
}

func newPool(ctx context.Context, cfg Config, name string, after <-chan struct{}) *pool {
	p := &pool{
		name:    name,
		cfg:     cfg,
		log:     cfg.Logger.With("pool", name),
		socket:  socketOf(cfg.KubeletRoot, name),
		after:   after,
		done:    make(chan struct{}),
		kick:    make(chan struct{}, 1),
		ending:  make(chan struct{}),
		health:  health{hold: cfg.HealthyHold, records: make(map[string]*record)},
		list:    &pluginapi.ListAndWatchResponse{},
		changed: make(chan struct{}),
		err:     errStarts,
	}
	p.ctx, p.cancel = context.WithCancel(ctx)
	return p
}

// run serves the pool and keeps it registered until its context ends or it is withdrawn.
func (p *pool) run() {
	defer close(p.done)
	p.server = grpc.NewServer(grpc.MaxRecvMsgSize(maxRequest), grpc.UnaryInterceptor(p.logFailure))
	pluginapi.RegisterDevicePluginServer(p.server, p)
	defer p.stop()
	if p.after != nil {
		select {
		case <-p.after:
		case <-p.ctx.Done():
			return
		}
	}
	retry := backoff.NewExponentialBackOff()
	retry.InitialInterval, retry.MaxInterval = 100*time.Millisecond, 3*time.Second
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-p.ctx.Done():
			return
		case <-p.kick:
			retry.Reset()
		case <-timer.C:
		}
		p.refresh()
		wait := recheck
		err := p.step()
		if err != nil && p.ctx.Err() == nil {
			wait = retry.NextBackOff()
		} else {
			retry.Reset()
		}
		p.report(err)
		if next := p.nextRefresh(); !next.IsZero() {
			wait = max(0, min(wait, time.Until(next)))
		}
		timer.Reset(wait)
	}
}

// step brings socket and registration about, if they are not as they should be.
func (p *pool) step() error {
	if err := p.serve(); err != nil {
		return err
	}
	return p.register()
}

// serve makes the socket unless it is there. kubelet removes it when it starts. Connections through the old one live
// on.
func (p *pool) serve() error {
	if p.listener != nil {
		if id, err := identify(p.socket); err == nil && id == p.own {
			return nil
		}
		_ = p.listener.Close()
		p.listener = nil
	}
	if !poolName.MatchString(p.name) {
		return fmt.Errorf("serve pool %q: the name must have 1 to 63 letters, digits, '-', '_' or '.', and begin and "+
			"end with a letter or digit", p.name)
	}
	l, own, err := listen(p.socket)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: kubelet does not run, or its root directory is not %s", err, p.cfg.KubeletRoot)
	} else if err != nil {
		return err
	}
	p.listener, p.own = l, own
	p.serving.Go(func() {
		if err := p.server.Serve(l); err != nil && !errors.Is(err, net.ErrClosed) {
			p.log.Warn("device plugin socket failed", "socket", p.socket, "err", err)
			removeOwn(p.socket, own)
			p.poke()
		}
	})
	return nil
}

// stop removes the socket and ends streams and calls, which have StopTimeout to end well. The streams of a pool that is
// withdrawn end by themselves, with its empty list.
func (p *pool) stop() {
	defer p.cancel()
	if p.listener != nil {
		removeOwn(p.socket, p.own)
	}
	if !p.isWithdrawn() {
		close(p.ending)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.server.GracefulStop()
	}()
	deadline := time.NewTimer(p.cfg.StopTimeout)
	defer deadline.Stop()
	select {
	case <-ended:
	case <-deadline.C:
		p.server.Stop() // GracefulStop may go on: it waits for a call that does not heed its context
	}
	p.serving.Wait()
}

// poke has run look again.
func (p *pool) poke() {
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

// update takes the full list of the pool's devices.
func (p *pool) update(devices []Device) {
	p.mu.Lock()
	p.health.update(time.Now(), devices)
	p.mu.Unlock()
	p.refresh()
	p.poke() // for the time of the next refresh
}

// withdraw takes all devices from kubelet and ends the pool.
func (p *pool) withdraw() {
	p.mu.Lock()
	p.withdrawn = true
	p.publish(&pluginapi.ListAndWatchResponse{})
	p.mu.Unlock()
	p.cancel()
}

func (p *pool) isWithdrawn() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.withdrawn
}

// refresh works out the list for kubelet and publishes it if it is another one.
func (p *pool) refresh() {
	p.mu.Lock()
	devices, changes, next := p.health.evaluate(time.Now())
	p.next = next
	list := &pluginapi.ListAndWatchResponse{}
	for _, d := range devices {
		list.Devices = append(list.Devices, toAPI(d))
	}
	if !p.withdrawn && !proto.Equal(p.list, list) {
		p.publish(list)
	}
	p.mu.Unlock()
	for _, c := range changes {
		if c.healthy {
			p.log.Info("device is healthy again", "device", c.device)
		} else {
			p.log.Warn("device is not healthy", "device", c.device, "reason", c.reason)
		}
	}
}

func (p *pool) nextRefresh() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.next
}

// publish replaces the list. p.mu is held.
func (p *pool) publish(list *pluginapi.ListAndWatchResponse) {
	p.list = list
	close(p.changed)
	p.changed = make(chan struct{})
}
