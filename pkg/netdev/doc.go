// Package netdev reads and changes the NICs of one network namespace: links and their identity, queues, channels,
// NAPIs, XDP features, and which NICs carry the node's own traffic.
//
// A [Handle] belongs to the network namespace in which it was opened and keeps answering about that one, from any
// thread. Everything comes from the kernel at the time of the call: rtnetlink for links, addresses and routes, the
// generic netlink families netdev and ethtool for queues, NAPIs, features and channels, and sysfs only for what exists
// nowhere else.
//
// Errors keep the kernel's own explanation (extended acknowledgement) and answer to errors.Is: [ErrNoDevice] and
// [ErrNoNAPI] say that the object is gone, [ErrUnsupported] that kernel or driver does not have the feature,
// [ErrOtherNetns] that sysfs or the calling thread belongs to another network namespace.
package netdev
