package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// registerTimeout is longer than kubelet tries to connect back (10 s) before it answers.
const registerTimeout = 15 * time.Second

const kubeletSocket = "kubelet.sock"

// register makes the pool known to the kubelet that is there, unless it is. The proof that it is known is not that
// kubelet once said so but that it holds a stream of the pool's devices.
func (p *pool) register() error {
	path := filepath.Join(filepath.Dir(p.socket), kubeletSocket)
	there, err := identify(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("register pool %s: kubelet's socket %s is not there: "+
			"kubelet is not running, or its root directory is another one", p.name, path)
	} else if err != nil {
		return fmt.Errorf("register pool %s: find kubelet's socket: %w", p.name, err)
	}
	p.mu.Lock()
	known, streams, since := p.with == there, p.streams, p.since
	p.mu.Unlock()
	if known && streams > 0 {
		return nil
	}
	if known && time.Since(since) < settle {
		return errWaiting
	}
	if err := p.callRegister(path); err != nil {
		return fmt.Errorf("register pool %s with kubelet (%s): %w", p.name, path, err)
	}
	p.mu.Lock()
	p.with, p.since = there, time.Now()
	streams = p.streams
	p.mu.Unlock()
	if streams == 0 {
		return errWaiting // the stream's beginning wakes run
	}
	return nil
}

func (p *pool) callRegister(path string) error {
	conn, err := grpc.NewClient("passthrough:///localhost",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", path)
		}))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(p.ctx, registerTimeout)
	defer cancel()
	_, err = pluginapi.NewRegistrationClient(conn).Register(ctx, &pluginapi.RegisterRequest{
		Version:      pluginapi.Version,
		Endpoint:     filepath.Base(p.socket),
		ResourceName: p.cfg.Domain + "/" + p.name,
		Options:      options(),
	})
	return err
}

// report keeps the outcome of a step for Registered and logs it if it is news.
func (p *pool) report(err error) {
	p.mu.Lock()
	before := p.err
	p.err = err
	p.mu.Unlock()
	switch {
	case p.ctx.Err() != nil, errors.Is(err, errWaiting):
	case err == nil && before != nil:
		p.log.Info("registered with kubelet", "resource", p.cfg.Domain+"/"+p.name)
	case err != nil && (before == nil || before.Error() != err.Error()):
		p.log.Warn("not registered with kubelet", "err", err)
	}
}

// registered returns nil when kubelet holds a stream of the pool's devices.
func (p *pool) registered() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil && p.streams == 0 {
		return errWaiting
	}
	return p.err
}
