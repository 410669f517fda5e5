//go:build ignore

// SPDX-License-Identifier: Apache-2.0
//
// Hands each packet to the AF_XDP socket of the queue that it came in on. Packets of a queue without a socket go on to
// the stack.

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

// Both maps are sized to the device's queues when they are loaded.
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} xsks SEC(".maps");

// Packets that found no socket, by queue.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} unclaimed SEC(".maps");

// A constant to the verifier: without counting, the branch is not there.
volatile const __u8 count_unclaimed = 0;

static __always_inline int redirect(struct xdp_md *ctx)
{
	__u32 queue = ctx->rx_queue_index;
	int action = bpf_redirect_map(&xsks, queue, XDP_PASS);

	if (count_unclaimed && action == XDP_PASS) {
		__u64 *count = bpf_map_lookup_elem(&unclaimed, &queue);

		if (count)
			(*count)++;
	}
	return action;
}

SEC("xdp")
int afxdp_redirect(struct xdp_md *ctx)
{
	return redirect(ctx);
}

SEC("xdp.frags")
int afxdp_frags(struct xdp_md *ctx)
{
	return redirect(ctx);
}

char _license[] SEC("license") = "Apache-2.0";
