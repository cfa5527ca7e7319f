/* One end of a conversation over tcp between C's library and ours: its objects, its completions, and its transfers. */
#ifndef END_H
#define END_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <unistd.h>

#include "check.h"

#define LONGEST (1 << 20)
#define NO_TAG UINT64_MAX
#define PATIENCE 20 /* seconds */

/* What a queue has told. */
struct told {
	void *context;
	uint64_t flags, data, tag;
	size_t len;
	int err;
};

struct end {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fid_cq *cq;
	struct fid_eq *eq;
	struct fid_ep *ep;
	fi_addr_t peer;
	struct told told[64]; /* what nobody has waited for yet */
	int count;
};

static struct fi_context2 sending, receiving, accessing;

static inline struct fi_info *info_of(const char *provider, enum fi_ep_type type, const char *port, uint64_t flags)
{
	struct fi_info *hints = fi_allocinfo(), *info = NULL;
	hints->caps = FI_MSG | FI_RMA | (type == FI_EP_RDM ? FI_TAGGED : 0);
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	hints->ep_attr->type = type;
	hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_LOCAL;
	hints->fabric_attr->prov_name = strdup(provider);
	hints->addr_format = FI_SOCKADDR_IN;
	OK(fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", port, flags, hints, &info));
	fi_freeinfo(hints);
	return info;
}

static inline void open_domain(struct end *end, struct fi_info *info)
{
	struct fi_eq_attr eq_attr = {.wait_obj = FI_WAIT_UNSPEC};
	end->info = info;
	OK(fi_fabric(info->fabric_attr, &end->fabric, NULL));
	OK(fi_domain(end->fabric, info, &end->domain, NULL));
	OK(fi_eq_open(end->fabric, &eq_attr, &end->eq, NULL));
}

/* Opens the endpoint of an info. A connected one is not enabled yet where the caller still has to accept. */
static inline void open_endpoint(struct end *end, struct fi_info *info)
{
	struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED};
	struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
	OK(fi_cq_open(end->domain, &cq_attr, &end->cq, NULL));
	OK(fi_endpoint(end->domain, info, &end->ep, NULL));
	if (info->ep_attr->type == FI_EP_RDM) {
		OK(fi_av_open(end->domain, &av_attr, &end->av, NULL));
		OK(fi_ep_bind(end->ep, &end->av->fid, 0));
	} else {
		OK(fi_ep_bind(end->ep, &end->eq->fid, 0));
	}
	OK(fi_ep_bind(end->ep, &end->cq->fid, FI_TRANSMIT | FI_RECV));
	OK(fi_enable(end->ep));
}

static inline void close_endpoint(struct end *end)
{
	OK(fi_close(&end->ep->fid));
	OK(fi_close(&end->cq->fid));
	if (end->av)
		OK(fi_close(&end->av->fid));
	end->av = NULL;
}

static inline struct sockaddr_in at_port(int port)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return address;
}

/* Opens a reliable datagram endpoint at one port that knows the one at the other port. */
static inline void open_rdm(struct end *end, const char *provider, int port, int peer)
{
	struct sockaddr_in address = at_port(peer);
	char text[16];
	snprintf(text, sizeof text, "%d", port);
	memset(end, 0, sizeof *end);
	open_domain(end, info_of(provider, FI_EP_RDM, text, FI_SOURCE));
	open_endpoint(end, end->info);
	ANSWERS(fi_av_insert(end->av, &address, 1, &end->peer, 0, NULL), 1);
}

static inline void close_end(struct end *end)
{
	close_endpoint(end);
	OK(fi_close(&end->eq->fid));
	OK(fi_close(&end->domain->fid));
	OK(fi_close(&end->fabric->fid));
	fi_freeinfo(end->info);
}

/* Takes what the queue has. */
static inline void drive(struct end *end)
{
	struct fi_cq_tagged_entry entry;
	struct fi_cq_err_entry error = {0};
	struct told *told = &end->told[end->count];
	ssize_t answer = fi_cq_read(end->cq, &entry, 1);
	if (answer == -FI_EAGAIN)
		return;
	CHECK(end->count < 64);
	end->count++;
	if (answer == 1) {
		*told = (struct told){entry.op_context, entry.flags, entry.data, entry.tag, entry.len, 0};
		return;
	}
	ANSWERS(answer, -FI_EAVAIL);
	ANSWERS(fi_cq_readerr(end->cq, &error, 0), 1);
	*told = (struct told){error.op_context, error.flags, error.data, error.tag, error.len, error.err};
}

/* Waits for a completion of a context; without one, for a remote write's. */
static inline struct told told_of(struct end *end, void *context)
{
	for (double until = now() + PATIENCE; now() < until; drive(end)) {
		for (int at = 0; at < end->count; at++) {
			struct told told = end->told[at];
			if (context ? told.context == context : (told.flags & FI_REMOTE_CQ_DATA) && (told.flags & FI_REMOTE_WRITE)) {
				end->told[at] = end->told[--end->count];
				return told;
			}
		}
	}
	fprintf(stderr, "no completion of %s\n",
		context == &sending     ? "a send"
		: context == &receiving ? "a receive"
		: context               ? "an access"
					: "a remote write");
	exit(1);
}

static inline struct told done(struct end *end, void *context)
{
	struct told told = told_of(end, context);
	ANSWERS(told.err, 0);
	return told;
}

/* Repeats a call while the library asks for that. */
#define POSTED(end, call)                                                                 \
	do {                                                                              \
		ssize_t posted_;                                                          \
		double until_ = now() + PATIENCE;                                         \
		while ((posted_ = (call)) == -FI_EAGAIN && now() < until_)                \
			drive(end);                                                       \
		ANSWERS(posted_, 0);                                                      \
	} while (0)

static inline void post_recv(struct end *end, void *buffer, size_t len, uint64_t tag)
{
	if (tag == NO_TAG)
		POSTED(end, fi_recv(end->ep, buffer, len, NULL, FI_ADDR_UNSPEC, &receiving));
	else
		POSTED(end, fi_trecv(end->ep, buffer, len, NULL, FI_ADDR_UNSPEC, tag, 0, &receiving));
}

/* Sends a message with remote data, unless `data` is 0. */
static inline void post_send(struct end *end, const void *buffer, size_t len, uint64_t tag, uint64_t data,
			     uint64_t flags)
{
	struct iovec iov = {.iov_base = (void *)buffer, .iov_len = len};
	struct fi_msg msg = {.msg_iov = &iov, .iov_count = 1, .addr = end->peer, .context = &sending, .data = data};
	struct fi_msg_tagged tagged = {.msg_iov = &iov, .iov_count = 1, .addr = end->peer, .context = &sending,
				       .data = data, .tag = tag};
	flags |= FI_COMPLETION | (data ? FI_REMOTE_CQ_DATA : 0);
	if (tag == NO_TAG)
		POSTED(end, fi_sendmsg(end->ep, &msg, flags));
	else
		POSTED(end, fi_tsendmsg(end->ep, &tagged, flags));
}

/* Bytes that differ by place and by `seed`. */
static inline void fill(unsigned char *buffer, size_t len, unsigned seed)
{
	for (size_t at = 0; at < len; at++)
		buffer[at] = (unsigned char)(seed * 31 + at * 7 + (at >> 8));
}

static inline void holds(const unsigned char *buffer, size_t len, unsigned seed)
{
	for (size_t at = 0; at < len; at++) {
		if (buffer[at] != (unsigned char)(seed * 31 + at * 7 + (at >> 8))) {
			fprintf(stderr, "byte %zu of %zu is wrong (seed %u)\n", at, len, seed);
			exit(1);
		}
	}
}

#endif
