/* FI_SELECTIVE_COMPLETION as MPI's windows use it: an operation without FI_COMPLETION leaves no entry for a success,
 * whatever level it or its endpoint names, also over a shared transmit context and through an alias. Counters count
 * every one of them, and errors are always reported. */
#include "check.h"
#include <stdbool.h>

#define SIZE 100000
#define OPT_SHARED_MEMORY_PERMITTED 11 /* not in the headers of 1.x */

struct side {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_cq *cq;
	struct fid_cntr *cntr;
	struct fid_av *av;
	struct fid_stx *stx;
	struct fid_ep *ep;
	fi_addr_t peer;
};

/* An endpoint whose queue is selective. `level` is the endpoint's default. */
static void open_side(struct side *side, const char *provider, int sockets, int shared, uint64_t level)
{
	struct fi_info *hints = fi_allocinfo();
	struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED};
	struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
	struct fi_cntr_attr cntr_attr = {.events = FI_CNTR_EVENTS_COMP};
	bool no = false;
	CHECK(hints);
	memset(side, 0, sizeof *side);
	hints->caps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->fabric_attr->prov_name = strdup(provider);
	OK(fi_getinfo(FI_VERSION(1, 17), !strcmp(provider, "udp") ? "127.0.0.1" : NULL, NULL,
		      !strcmp(provider, "udp") ? FI_SOURCE : 0, hints, &side->info));
	fi_freeinfo(hints);
	side->info->tx_attr->op_flags = level;
	OK(fi_fabric(side->info->fabric_attr, &side->fabric, NULL));
	OK(fi_domain(side->fabric, side->info, &side->domain, NULL));
	OK(fi_av_open(side->domain, &av_attr, &side->av, NULL));
	OK(fi_cq_open(side->domain, &cq_attr, &side->cq, NULL));
	OK(fi_cntr_open(side->domain, &cntr_attr, &side->cntr, NULL));
	if (shared) {
		side->info->ep_attr->tx_ctx_cnt = FI_SHARED_CONTEXT;
		OK(fi_stx_context(side->domain, NULL, &side->stx, NULL));
	}
	OK(fi_endpoint(side->domain, side->info, &side->ep, NULL));
	if (sockets)
		OK(fi_setopt(&side->ep->fid, FI_OPT_ENDPOINT, OPT_SHARED_MEMORY_PERMITTED, &no, sizeof no));
	if (shared)
		OK(fi_ep_bind(side->ep, &side->stx->fid, 0));
	OK(fi_ep_bind(side->ep, &side->av->fid, 0));
	OK(fi_ep_bind(side->ep, &side->cq->fid, FI_TRANSMIT | FI_SELECTIVE_COMPLETION));
	OK(fi_ep_bind(side->ep, &side->cq->fid, FI_RECV | FI_SELECTIVE_COMPLETION));
	OK(fi_ep_bind(side->ep, &side->cntr->fid, FI_SEND | FI_READ | FI_WRITE));
	OK(fi_enable(side->ep));
}

static void know(struct side *side, struct side *peer)
{
	char name[256];
	size_t len = sizeof name;
	OK(fi_getname(&peer->ep->fid, name, &len));
	ANSWERS(fi_av_insert(side->av, name, 1, &side->peer, 0, NULL), 1);
}

static void close_side(struct side *side)
{
	OK(fi_close(&side->ep->fid));
	if (side->stx)
		OK(fi_close(&side->stx->fid));
	OK(fi_close(&side->cntr->fid));
	OK(fi_close(&side->cq->fid));
	OK(fi_close(&side->av->fid));
	OK(fi_close(&side->domain->fid));
	OK(fi_close(&side->fabric->fid));
	fi_freeinfo(side->info);
}

static void nothing(struct side *side)
{
	struct fi_cq_tagged_entry entry;
	ANSWERS(fi_cq_read(side->cq, &entry, 1), -FI_EAGAIN);
}

#define POSTED(call)                                                                 \
	do {                                                                         \
		ssize_t posted_;                                                     \
		double end_ = now() + 20;                                            \
		while ((posted_ = (call)) == -FI_EAGAIN && now() < end_) {           \
			nothing(&a);                                                 \
			nothing(&b);                                                 \
		}                                                                    \
		ANSWERS(posted_, 0);                                                 \
		wanted++;                                                            \
	} while (0)

static struct side a, b;
static uint64_t wanted;

/* Waits until all that was posted is counted. No entry may come meanwhile, nor a while after. */
static void counted_in_silence(void)
{
	double end = now() + 20;
	while (fi_cntr_read(a.cntr) < wanted && now() < end) {
		nothing(&a);
		nothing(&b);
	}
	ANSWERS(fi_cntr_read(a.cntr), wanted);
	for (end = now() + 0.005; now() < end;) {
		nothing(&a);
		nothing(&b);
	}
}

static void one_entry(void *context)
{
	struct fi_cq_tagged_entry entry;
	ssize_t answer;
	double end = now() + 20;
	while ((answer = fi_cq_read(a.cq, &entry, 1)) == -FI_EAGAIN && now() < end)
		nothing(&b);
	ANSWERS(answer, 1);
	CHECK(entry.op_context == context);
}

static void every_kind(const char *provider, int sockets, int shared, uint64_t level)
{
	static const uint64_t levels[] = {0, FI_INJECT_COMPLETE, FI_TRANSMIT_COMPLETE, FI_DELIVERY_COMPLETE};
	static char from[SIZE], to[SIZE];
	struct fid_mr *mr;
	struct fid_ep *silent = NULL, *telling = NULL;
	int context;
	open_side(&a, provider, sockets, shared, level);
	open_side(&b, provider, sockets, 0, 0);
	know(&a, &b);
	know(&b, &a);
	OK(fi_mr_reg(b.domain, to, sizeof to, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 7, 0, &mr, NULL));
	uint64_t base = b.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)to : 0, key = fi_mr_key(mr);
	OK(fi_ep_alias(a.ep, &silent, FI_TRANSMIT | FI_DELIVERY_COMPLETE));
	OK(fi_ep_alias(a.ep, &telling, FI_TRANSMIT | FI_DELIVERY_COMPLETE | FI_COMPLETION));
	wanted = 0;
	for (size_t len = 8; len <= SIZE; len += SIZE - 8) {
		for (unsigned at = 0; at < sizeof levels / sizeof *levels; at++) {
			struct iovec local = {from, len};
			struct fi_rma_iov far = {base, len, key};
			struct fi_msg_rma rma = {&local, NULL, 1, a.peer, &far, 1, NULL, 0};
			struct fi_msg msg = {&local, NULL, 1, a.peer, NULL, 0};
			POSTED(fi_writemsg(a.ep, &rma, levels[at]));
			POSTED(fi_readmsg(a.ep, &rma, levels[at]));
			OK(fi_recv(b.ep, to, len, NULL, FI_ADDR_UNSPEC, NULL));
			POSTED(fi_sendmsg(a.ep, &msg, levels[at]));
			counted_in_silence();
		}
		POSTED(fi_write(a.ep, from, len, NULL, a.peer, base, key, NULL));
		POSTED(fi_write(silent, from, len, NULL, a.peer, base, key, NULL));
		OK(fi_recv(b.ep, to, len, NULL, FI_ADDR_UNSPEC, NULL));
		POSTED(fi_send(a.ep, from, len, NULL, a.peer, NULL));
		counted_in_silence();
		POSTED(fi_write(telling, from, len, NULL, a.peer, base, key, &context));
		one_entry(&context);
	}
	struct fi_ioc operand = {from, 1};
	struct fi_rma_ioc target = {base, 1, key};
	struct fi_msg_atomic atomic = {&operand, NULL, 1, a.peer, &target, 1, FI_UINT64, FI_SUM, NULL, 0};
	POSTED(fi_atomicmsg(a.ep, &atomic, FI_DELIVERY_COMPLETE));
	counted_in_silence();
	/* A failure is reported without having been asked for. */
	struct fi_cq_tagged_entry entry;
	struct fi_cq_err_entry error = {0};
	ssize_t answer;
	POSTED(fi_write(silent, from, 8, NULL, a.peer, base, key + 12345, &context));
	while ((answer = fi_cq_read(a.cq, &entry, 1)) == -FI_EAGAIN)
		nothing(&b);
	ANSWERS(answer, -FI_EAVAIL);
	ANSWERS(fi_cq_readerr(a.cq, &error, 0), 1);
	CHECK(error.op_context == &context && error.err);
	ANSWERS(fi_cntr_readerr(a.cntr), 1);
	OK(fi_close(&telling->fid));
	OK(fi_close(&silent->fid));
	OK(fi_close(&mr->fid));
	close_side(&a);
	close_side(&b);
}

int main(void)
{
	for (int shared = 0; shared < 2; shared++) {
		every_kind("shm", 0, shared, 0);
		every_kind("shm", 0, shared, FI_DELIVERY_COMPLETE);
		for (int sockets = 0; sockets < 2; sockets++) {
			every_kind("udp", sockets, shared, 0);
			every_kind("udp", sockets, shared, FI_DELIVERY_COMPLETE);
		}
	}
	return 0;
}
