// Package handoff serves the Unix sockets through which pods get their AF_XDP sockets: one listening socket for each
// allocation, any number of connections in turn and a few at a time (docs/protocol.md).
//
// The pod is hostile. What it sends is bounded in size, number and time; its descriptors are looked at in an order in
// which nothing of a filesystem that it may control is asked; and they are closed by the goroutine of its own
// connection after all else, since closing one may block.
package handoff
