// Package xsk is AF_XDP: UMEM, sockets and the four rings (Linux, Documentation/networking/af_xdp.rst).
//
// The work on a socket has two halves, which may be two processes. The one with privileges makes the socket, registers
// the UMEM, sizes the rings and binds: [NewSocket], [Socket.RegisterUMEM], [Socket.SetRings], [Socket.Bind]. The other
// needs only the descriptor and the UMEM's memory: [SocketFromFD], [Socket.Map], then the rings. Mapping the rings of a
// bound socket needs Linux 6.4; [ProbeMapBound] tells.
//
// # Concurrency
//
// A ring has one owner: its methods must not be called from two goroutines at once. Different rings may be used from
// different goroutines, also those of one socket. A [Socket]'s control methods may be called at any time until Close.
//
// # Ownership
//
// New… and …FromFD give the caller an object that owns its descriptor; FD lends it; Close closes it. Rings and UMEM
// memory must not be touched after their Close.
package xsk
