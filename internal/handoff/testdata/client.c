/* A pod's client, written from docs/protocol.md alone: opens the first device that is leased, receives one packet,
   prints it and gives the device up. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if_xdp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#ifndef SOL_XDP
#define SOL_XDP 283
#endif

enum { HELLO = 1, WELCOME, UMEM, UMEM_OK, OPEN, OPENED, CLOSE = 11, CLOSED };
enum { RING = 64, FRAMES = 64, FRAME_SIZE = 4096, MAX_MESSAGE = 16384, MAX_TEXT = 512 };

struct header {
	char magic[4];
	uint16_t version, type;
	uint32_t length, id;
};
struct hello {
	struct header h;
	uint16_t min, max;
	uint32_t flags;
};
struct device {
	char netdev[16];
	uint32_t queue;
	int32_t numa;
	uint32_t mtu, flags;
	uint64_t epoch;
};
struct welcome {
	struct header h;
	uint16_t version, devices;
	uint32_t max_ring;
	uint64_t max_umem;
	char pool[64];
	struct device device[250];
};
struct umem {
	struct header h;
	uint64_t length;
	uint32_t frame_size, headroom, flags, reserved;
};
struct open {
	struct header h;
	uint32_t device, fill, completion, rx, tx, flags;
};
struct opened {
	struct header h;
	uint32_t device, fill, completion, rx, tx, flags, napi, queue_napi, budget, time, defer, reserved;
	uint64_t gro_flush, cookie, epoch;
	uint16_t text_length;
	char text[MAX_TEXT];
};
struct close_device {
	struct header h;
	uint32_t device, reserved;
};
struct error {
	struct header h;
	uint32_t code;
	uint16_t text_length;
	char text[MAX_TEXT];
};

static void fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static void send_message(int conn, void *message, uint16_t type, size_t length, int fd)
{
	static uint32_t id;
	struct header h = {.magic = {'A', 'F', 'X', 'D'}, .version = 1, .type = type, .length = length, .id = ++id};
	memcpy(message, &h, sizeof h);
	struct iovec iov = {message, length};
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	if (fd >= 0) {
		msg.msg_control = &control;
		msg.msg_controllen = sizeof control;
		struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof fd);
		memcpy(CMSG_DATA(c), &fd, sizeof fd);
	}
	if (sendmsg(conn, &msg, MSG_NOSIGNAL) < 0 && errno != EPIPE) /* then the reason is to be read */
		fail("send");
}

/* Receives an answer of the given type into buffer, which has MAX_MESSAGE bytes, and returns its descriptor or -1. */
static int receive(int conn, void *buffer, uint16_t type)
{
	struct iovec iov = {buffer, MAX_MESSAGE};
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(sizeof(int))];
	} control;
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
	ssize_t n = recvmsg(conn, &msg, MSG_CMSG_CLOEXEC);
	if (n < 0 && errno == ECONNRESET)
		n = recvmsg(conn, &msg, MSG_CMSG_CLOEXEC);
	if (n < 0)
		fail("receive");
	struct header *h = buffer;
	if ((size_t)n < sizeof *h || memcmp(h->magic, "AFXD", 4) != 0 || h->length != (size_t)n) {
		fprintf(stderr, "received %zd bytes that are no message\n", n);
		exit(1);
	}
	if (h->type == 0) {
		struct error *e = buffer;
		fprintf(stderr, "error %u: %.*s\n", e->code, e->text_length, e->text);
		exit(2);
	}
	if (h->type != type || h->version != 1) {
		fprintf(stderr, "received type %u of version %u, want type %u\n", h->type, h->version, type);
		exit(1);
	}
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
	int fd = -1;
	if (c != NULL && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
		memcpy(&fd, CMSG_DATA(c), sizeof fd);
	return fd;
}

static char *map_ring(int xsk, struct xdp_ring_offset *off, size_t bytes, off_t which)
{
	char *ring = mmap(NULL, off->desc + bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, xsk, which);
	if (ring == MAP_FAILED)
		fail("map ring");
	return ring;
}

int main(int argc, char **argv)
{
	static char buffer[MAX_MESSAGE] __attribute__((aligned(8)));
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	if (argc != 2 || strlen(argv[1]) >= sizeof addr.sun_path)
		return 1;
	strcpy(addr.sun_path, argv[1]);
	int conn = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (conn < 0 || connect(conn, (struct sockaddr *)&addr, sizeof addr) < 0)
		fail("connect");

	struct hello hello = {.min = 1, .max = 1};
	send_message(conn, &hello, HELLO, sizeof hello, -1);
	receive(conn, buffer, WELCOME);
	struct welcome *w = (struct welcome *)buffer;
	uint32_t device = 0;
	while (device < w->devices && !(w->device[device].flags & 1))
		device++;
	if (device == w->devices) {
		fprintf(stderr, "no device is leased\n");
		return 1;
	}
	printf("pool %s, %s queue %u, MTU %u\n", w->pool, w->device[device].netdev, w->device[device].queue, w->device[device].mtu);

	size_t length = FRAMES * FRAME_SIZE;
	int memfd = memfd_create("umem", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (memfd < 0 || ftruncate(memfd, length) < 0 || fallocate(memfd, 0, 0, length) < 0 ||
	    fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) < 0)
		fail("memfd");
	char *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, memfd, 0);
	if (memory == MAP_FAILED)
		fail("map memory");
	struct umem umem = {.length = length, .frame_size = FRAME_SIZE};
	send_message(conn, &umem, UMEM, sizeof umem, memfd);
	receive(conn, buffer, UMEM_OK);
	close(memfd);

	struct open open = {.device = device, .fill = RING, .completion = RING, .rx = RING};
	send_message(conn, &open, OPEN, sizeof open, -1);
	int xsk = receive(conn, buffer, OPENED);
	struct opened opened;
	memcpy(&opened, buffer, sizeof opened);
	printf("cookie %llu, %.*s\n", (unsigned long long)opened.cookie, opened.text_length, opened.text);

	struct xdp_mmap_offsets off;
	socklen_t size = sizeof off;
	if (getsockopt(xsk, SOL_XDP, XDP_MMAP_OFFSETS, &off, &size) < 0)
		fail("ring offsets");
	char *fill = map_ring(xsk, &off.fr, opened.fill * sizeof(uint64_t), XDP_UMEM_PGOFF_FILL_RING);
	char *rx = map_ring(xsk, &off.rx, opened.rx * sizeof(struct xdp_desc), XDP_PGOFF_RX_RING);

	uint32_t *producer = (uint32_t *)(fill + off.fr.producer);
	uint64_t *frames = (uint64_t *)(fill + off.fr.desc);
	uint32_t at = *producer;
	for (uint32_t i = 0; i < FRAMES / 2; i++)
		frames[(at + i) & (opened.fill - 1)] = (uint64_t)i * FRAME_SIZE;
	__atomic_store_n(producer, at + FRAMES / 2, __ATOMIC_RELEASE);
	puts("ready");
	fflush(stdout);

	uint32_t *received = (uint32_t *)(rx + off.rx.producer), *consumer = (uint32_t *)(rx + off.rx.consumer);
	struct xdp_desc *descs = (struct xdp_desc *)(rx + off.rx.desc);
	for (time_t end = time(NULL) + 10; __atomic_load_n(received, __ATOMIC_ACQUIRE) == *consumer;) {
		if (time(NULL) > end) {
			fprintf(stderr, "no packet came\n");
			return 1;
		}
		if (recvfrom(xsk, NULL, 0, MSG_DONTWAIT, NULL, NULL) < 0 && errno != EAGAIN)
			fail("wake");
		usleep(1000);
	}
	struct xdp_desc d = descs[*consumer & (opened.rx - 1)];
	printf("packet %u bytes at offset %llu: %.*s\n", d.len, (unsigned long long)d.addr % FRAME_SIZE, (int)d.len - 14, memory + d.addr + 14);
	__atomic_store_n(consumer, *consumer + 1, __ATOMIC_RELEASE);

	munmap(fill, off.fr.desc + opened.fill * sizeof(uint64_t));
	munmap(rx, off.rx.desc + opened.rx * sizeof(struct xdp_desc));
	close(xsk);
	struct close_device done = {.device = device};
	send_message(conn, &done, CLOSE, sizeof done, -1);
	receive(conn, buffer, CLOSED);
	puts("closed");
	return 0;
}
