/* Messages, writes or reads over many buffers at each end, through libfabric's C interface: the same work as
 * `Test::Stream` and `Test::RmaWrite` of `src/ours/run.rs`, on any libfabric. libfabric's programs use one buffer for
 * messages, and run accesses in both directions at once.
 *
 *     buffers messages|write|read PROVIDER SIZE COUNT BUFFERS PORT [SERVER]
 *
 * Without SERVER, it listens on the TCP port, by which both exchange addresses. The client prints the result.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

/* Operations in flight, as in all measurements of streams. */
#define WINDOW 64
/* An address of any of the providers. */
#define NAME 256

enum test { MESSAGES, WRITE, READ };

static enum test test;
static size_t size;
static uint64_t count, buffers;
static int link_fd;
static struct fid_ep *ep;
static struct fid_cq *rx, *tx;
static fi_addr_t peer;
static char *memory;
static void *desc;
static uint64_t key, base;
/* What an operation is known by, for providers that keep their state there. */
static struct fi_context2 contexts[WINDOW + 1];
/* The contexts of no operation in flight; operations may end in another order than they were started in. */
static struct fi_context2 *unused[WINDOW];
static int unused_count;

static void check(long result, const char *what)
{
	if (result < 0) {
		fprintf(stderr, "%s: %s\n", what, fi_strerror((int) -result));
		exit(1);
	}
}

static void expect(int holds, const char *what)
{
	if (!holds) {
		perror(what);
		exit(1);
	}
}

static void tell(const void *bytes, size_t len)
{
	expect(write(link_fd, bytes, len) == (ssize_t) len, "write");
}

static void hear(void *bytes, size_t len)
{
	expect(recv(link_fd, bytes, len, MSG_WAITALL) == (ssize_t) len, "recv");
}

static void meet(void)
{
	char byte = 0;

	tell(&byte, 1);
	hear(&byte, 1);
}

static void join(const char *port, const char *server)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons((uint16_t) atoi(port)) };
	int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);

	expect(listener >= 0, "socket");
	expect(inet_pton(AF_INET, server ? server : "127.0.0.1", &at.sin_addr) == 1, "address");
	if (server) {
		expect(connect(listener, (void *) &at, sizeof at) == 0, "connect");
		link_fd = listener;
		return;
	}
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	expect(bind(listener, (void *) &at, sizeof at) == 0, "bind");
	expect(listen(listener, 1) == 0, "listen");
	link_fd = accept(listener, NULL, NULL);
	expect(link_fd >= 0, "accept");
	close(listener);
}

static void open_endpoint(const char *provider)
{
	struct fi_info *hints = fi_allocinfo(), *info;
	struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_CONTEXT, .size = 4 * WINDOW };
	struct fi_av_attr av_attr = { .type = FI_AV_TABLE, .count = 1 };
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fid_mr *mr;
	char name[NAME] = { 0 };
	uint64_t region[2];
	size_t len = sizeof name;

	expect(hints != NULL, "fi_allocinfo");
	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = FI_MSG | FI_RMA;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->domain_attr->threading = FI_THREAD_DOMAIN;
	hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
	hints->fabric_attr->prov_name = strdup(provider);
	check(fi_getinfo(FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION), NULL, NULL, 0, hints, &info), "fi_getinfo");
	check(fi_fabric(info->fabric_attr, &fabric, NULL), "fi_fabric");
	check(fi_domain(fabric, info, &domain, NULL), "fi_domain");
	check(fi_endpoint(domain, info, &ep, NULL), "fi_endpoint");
	check(fi_cq_open(domain, &cq_attr, &rx, NULL), "fi_cq_open");
	check(fi_cq_open(domain, &cq_attr, &tx, NULL), "fi_cq_open");
	check(fi_av_open(domain, &av_attr, &av, NULL), "fi_av_open");
	check(fi_ep_bind(ep, &av->fid, 0), "fi_ep_bind");
	check(fi_ep_bind(ep, &rx->fid, FI_RECV), "fi_ep_bind");
	check(fi_ep_bind(ep, &tx->fid, FI_TRANSMIT), "fi_ep_bind");
	check(fi_enable(ep), "fi_enable");
	check(fi_getname(&ep->fid, name, &len), "fi_getname");
	expect(posix_memalign((void **) &memory, 4096, buffers * size) == 0, "posix_memalign");
	memset(memory, 1, buffers * size); /* no page fault is measured */
	check(fi_mr_reg(domain, memory, buffers * size, FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ |
			FI_REMOTE_WRITE, 0, 1, 0, &mr, NULL), "fi_mr_reg");
	tell(name, sizeof name);
	hear(name, sizeof name);
	check(fi_av_insert(av, name, 1, &peer, 0, NULL) == 1 ? 0 : -FI_EINVAL, "fi_av_insert");
	region[0] = fi_mr_key(mr);
	region[1] = info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uint64_t) (uintptr_t) memory : 0;
	tell(region, sizeof region);
	hear(region, sizeof region);
	key = region[0];
	base = region[1];
	desc = fi_mr_desc(mr);
}

static long done(struct fid_cq *cq, struct fi_cq_entry *entries)
{
	ssize_t got = fi_cq_read(cq, entries, WINDOW);

	if (got == -FI_EAVAIL) {
		struct fi_cq_err_entry error = { 0 };

		fi_cq_readerr(cq, &error, 0);
		check(-error.err, "completion");
	}
	if (got == -FI_EAGAIN)
		return 0;
	check(got, "fi_cq_read");
	return got;
}

static void await_one(struct fid_cq *cq)
{
	struct fi_cq_entry entries[WINDOW];

	while (done(cq, entries) == 0)
		;
}

/* The buffer of an operation. */
static char *buffer(uint64_t operation)
{
	return memory + operation % buffers * size;
}

static void receive(char *to, size_t len, uint64_t slot)
{
	struct fi_cq_entry none;
	long result;

	while ((result = fi_recv(ep, to, len, desc, peer, &contexts[slot])) == -FI_EAGAIN)
		fi_cq_read(rx, &none, 0);
	check(result, "fi_recv");
}

/* Starts an operation of the test, for which there is a context; returns whether there was room. */
static int start(uint64_t operation)
{
	struct fi_context2 *context = unused[unused_count - 1];
	char *from = buffer(operation);
	uint64_t to = base + (uint64_t) (from - memory);
	long result;

	if (test == MESSAGES)
		result = fi_send(ep, from, size, desc, peer, context);
	else if (test == WRITE)
		result = fi_write(ep, from, size, desc, peer, to, key, context);
	else
		result = fi_read(ep, from, size, desc, peer, to, key, context);
	if (result == -FI_EAGAIN)
		return 0;
	check(result, "post");
	unused_count--;
	return 1;
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double) time.tv_sec + (double) time.tv_nsec * 1e-9;
}

static void send_end(void)
{
	struct fi_cq_entry none;
	long result;

	while ((result = fi_send(ep, memory, 0, desc, peer, &contexts[WINDOW])) == -FI_EAGAIN)
		fi_cq_read(tx, &none, 0);
	check(result, "fi_send");
	await_one(tx);
}

static void serve(uint64_t total)
{
	struct fi_cq_entry entries[WINDOW];
	uint64_t finished = 0;

	if (test != MESSAGES) {
		/* Whoever executes accesses by its program polls until the client says that they are over. */
		receive(memory, 0, WINDOW);
		meet();
		await_one(rx);
	} else {
		for (uint64_t slot = 0; slot < WINDOW; slot++)
			receive(buffer(slot), size, slot);
		meet();
		while (finished < total) {
			long got = done(rx, entries);

			for (long entry = 0; entry < got; entry++) {
				uint64_t slot = (uint64_t) ((struct fi_context2 *) entries[entry].op_context - contexts);

				receive(buffer(slot), size, slot);
			}
			finished += (uint64_t) got;
		}
	}
	send_end();
}

static void drive(uint64_t total)
{
	struct fi_cq_entry entries[WINDOW];
	/* The operations that had ended when the time began: the warm ones and some more. */
	uint64_t started = 0, finished = 0, warm = total - count, before = 0;
	double begin;

	while (unused_count < WINDOW) {
		unused[unused_count] = &contexts[unused_count];
		unused_count++;
	}
	receive(memory, 0, WINDOW);
	meet();
	begin = now();
	while (finished < total) {
		long got;

		while (started < total && unused_count > 0 && start(started))
			started++;
		got = done(tx, entries);
		for (long entry = 0; entry < got; entry++)
			unused[unused_count++] = entries[entry].op_context;
		finished += (uint64_t) got;
		if (before == 0 && finished >= warm) {
			begin = now();
			before = finished;
		}
	}
	if (test != MESSAGES)
		send_end();
	await_one(rx); /* the server has all of them */
	printf("usec/xfer: %f\n", (now() - begin) * 1e6 / (double) (total - before));
}

int main(int argc, char **argv)
{
	uint64_t total;

	if (argc < 7 || argc > 8) {
		fprintf(stderr, "usage: buffers messages|write|read PROVIDER SIZE COUNT BUFFERS PORT [SERVER]\n");
		return 2;
	}
	test = strcmp(argv[1], "write") == 0 ? WRITE : strcmp(argv[1], "read") == 0 ? READ : MESSAGES;
	size = strtoul(argv[3], NULL, 10);
	count = strtoul(argv[4], NULL, 10);
	buffers = strtoul(argv[5], NULL, 10);
	/* Fewer than WINDOW operations may all have ended when the time begins. */
	if (size == 0 || count < WINDOW || buffers == 0) {
		fprintf(stderr, "buffers: SIZE and BUFFERS are numbers from 1 on, COUNT from %d on\n", WINDOW);
		return 2;
	}
	join(argv[6], argc == 8 ? argv[7] : NULL);
	open_endpoint(argv[2]);
	total = count + count / 20 + 10;
	if (argc == 8)
		drive(total);
	else
		serve(total);
	meet();
	return 0;
}
