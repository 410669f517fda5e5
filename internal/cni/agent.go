package cni

import (
	"context"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/afxdp-project/afxdp/internal/agentapi"
)

// agent is a connection to the node agent, made by the first call.
type agent struct {
	agentapi.AgentClient
	conn *grpc.ClientConn
}

// dialAgent prepares a connection to the agent at a Unix socket. The caller closes it.
func dialAgent(socket string) (*agent, error) {
	// The path is not part of the target, where some of its characters would have a meaning.
	conn, err := grpc.NewClient("passthrough:///afxdp-agent",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dialRoot(ctx, socket) }),
		grpc.WithDisableServiceConfig(),
	)
	if err != nil {
		return nil, fmt.Errorf("prepare a connection to %s: %w", socket, err)
	}
	return &agent{agentapi.NewAgentClient(conn), conn}, nil
}

// Close ends the connection.
func (a *agent) Close() { _ = a.conn.Close() }

// dialRoot connects to a socket on which root, or the user that the plugin runs as, listens.
func dialRoot(ctx context.Context, socket string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	cred, err := peer(conn.(*net.UnixConn))
	if err == nil && cred.Uid != 0 && int(cred.Uid) != os.Geteuid() {
		err = fmt.Errorf("%s is served by uid %d, not by root", socket, cred.Uid)
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

func peer(conn *net.UnixConn) (*unix.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var optErr error
	if err := raw.Control(func(fd uintptr) {
		cred, optErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return nil, err
	}
	if optErr != nil {
		return nil, fmt.Errorf("get SO_PEERCRED: %w", optErr)
	}
	return cred, nil
}
