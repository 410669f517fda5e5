// Package wire is the handoff protocol between the node agent and a pod: messages on a SOCK_SEQPACKET Unix socket, some
// of them with one file descriptor. docs/protocol.md specifies it byte for byte.
package wire
