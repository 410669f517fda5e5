// Package busypoll has an application's thread poll a queue's NAPI itself instead of waiting for interrupts, and runs
// AF_XDP sockets to completion.
//
// Busy polling takes two halves. The socket's ([Enable]) says that system calls on it poll, and the queue's, which is
// deferral of its interrupts (napi_defer_hard_irqs and gro_flush_timeout), keeps the interrupts away meanwhile. Neither
// does anything without the other, and where the kernel links a queue to no NAPI nothing does; [Assess] tells what is
// really so. [Loop] works in all cases: it polls where that works and sleeps until a packet comes where it does not.
package busypoll
