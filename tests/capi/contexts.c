/* Contexts that endpoints share, and aliases. */
#include "check.h"

static struct pair far, near;

/* Reads one completion of a queue, driving another. */
static void next_of(struct fid_cq *cq, struct fid_cq *other, struct fi_cq_tagged_entry *entry)
{
	double end = now() + 20;
	while (now() < end) {
		struct fi_cq_tagged_entry none;
		ssize_t answer = fi_cq_read(cq, entry, 1);
		if (answer == 1)
			return;
		CHECK(answer == -FI_EAGAIN);
		answer = fi_cq_read(other, &none, 1);
		CHECK(answer == 1 || answer == -FI_EAGAIN);
	}
	CHECK(!"a completion in time");
}

/* Two endpoints with shared contexts in the domain of `near`, with a queue each. */
static void shared(void)
{
	struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED};
	struct fi_cq_tagged_entry entry;
	struct fid_stx *stx;
	struct fid_ep *srx, *ep[2];
	struct fid_cq *cq[2];
	fi_addr_t to[2], from;
	char got[4][16], name[256];
	size_t len;

	pair_open(&far, FI_MSG | FI_TAGGED);
	pair_open(&near, FI_MSG | FI_TAGGED);
	struct fi_info *info = fi_dupinfo(near.info);
	info->ep_attr->tx_ctx_cnt = info->ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT;
	OK(fi_stx_context(near.domain, info->tx_attr, &stx, &stx));
	OK(fi_srx_context(near.domain, info->rx_attr, &srx, &srx));
	CHECK(stx->fid.fclass == FI_CLASS_STX_CTX && stx->fid.context == &stx);
	CHECK(srx->fid.fclass == FI_CLASS_SRX_CTX && srx->fid.context == &srx);
	len = sizeof name;
	OK(fi_getname(&far.ep[0]->fid, name, &len));
	ANSWERS(fi_av_insert(near.av, name, 1, &from, 0, NULL), 1);
	for (int at = 0; at < 2; at++) {
		OK(fi_cq_open(near.domain, &cq_attr, &cq[at], NULL));
		OK(fi_endpoint(near.domain, info, &ep[at], NULL));
		OK(fi_ep_bind(ep[at], &near.av->fid, 0));
		OK(fi_ep_bind(ep[at], &cq[at]->fid, FI_TRANSMIT | FI_RECV));
		ANSWERS(fi_enable(ep[at]), -FI_EINVAL);
		OK(fi_ep_bind(ep[at], &stx->fid, 0));
		OK(fi_ep_bind(ep[at], &srx->fid, 0));
		ANSWERS(fi_ep_bind(ep[at], &srx->fid, 0), -FI_EBUSY);
		OK(fi_enable(ep[at]));
		len = sizeof name;
		OK(fi_getname(&ep[at]->fid, name, &len));
		ANSWERS(fi_av_insert(far.av, name, 1, &to[at], 0, NULL), 1);
	}
	ANSWERS(fi_ep_bind(near.ep[0], &srx->fid, 0), -FI_EINVAL);
	ANSWERS(fi_close(&stx->fid), -FI_EBUSY);
	ANSWERS(fi_close(&srx->fid), -FI_EBUSY);
	ANSWERS(fi_recv(ep[0], got[0], 16, NULL, FI_ADDR_UNSPEC, NULL), -FI_EOPNOTSUPP);
	ANSWERS(fi_send(srx, got[0], 16, NULL, 0, NULL), -FI_EOPNOTSUPP);
	CHECK(fi_connect(srx, name, NULL, 0) < 0);

	/* Whichever endpoint is sent to takes the next receive, and its queue says so. */
	for (long number = 0; number < 4; number++)
		if (number % 2)
			OK(fi_recv(srx, got[number], 16, NULL, FI_ADDR_UNSPEC, (void *)(number + 1)));
		else
			OK(fi_trecv(srx, got[number], 16, NULL, FI_ADDR_UNSPEC, 7, 0, (void *)(number + 1)));
	for (long number = 0; number < 4; number++) {
		char text[16] = "message ";
		text[8] = (char)('0' + number);
		int at = number >= 2;
		if (number % 2)
			OK(fi_send(far.ep[0], text, 16, NULL, to[at], NULL));
		else
			OK(fi_tsend(far.ep[0], text, 16, NULL, to[at], 7, NULL));
		next_of(cq[at], far.cq[0], &entry);
		CHECK(entry.op_context == (void *)(number + 1) && entry.len == 16);
		CHECK(!memcmp(got[number], text, 16));
	}
	/* Both send, and end on their own queues. */
	for (long at = 0; at < 2; at++) {
		OK(fi_recv(far.ep[0], got[at], 16, NULL, FI_ADDR_UNSPEC, NULL));
		OK(fi_send(ep[at], "from an endpoint", 16, NULL, from, (void *)(at + 10)));
		next_of(cq[at], far.cq[0], &entry);
		CHECK(entry.op_context == (void *)(at + 10) && entry.flags & FI_SEND);
	}
	OK(fi_recv(srx, got[0], 16, NULL, FI_ADDR_UNSPEC, &entry));
	OK(fi_cancel(&srx->fid, &entry));
	struct fi_cq_err_entry error = {0};
	ANSWERS(fi_cq_read(cq[0], &entry, 1), -FI_EAVAIL);
	ANSWERS(fi_cq_readerr(cq[0], &error, 0), 1);
	CHECK(error.err == FI_ECANCELED && error.op_context == &entry);
	for (int at = 0; at < 2; at++) {
		OK(fi_close(&ep[at]->fid));
		OK(fi_close(&cq[at]->fid));
	}
	OK(fi_close(&srx->fid));
	OK(fi_close(&stx->fid));
	CHECK(fi_close(&stx->fid) < 0);
	fi_freeinfo(info);
	pair_close(&near);
	pair_close(&far);
}

/* Null has no room: a message without bytes fits, one with bytes is cut off. */
static void no_room(void)
{
	struct fi_cq_tagged_entry entry;
	struct fi_cq_err_entry error = {0};
	pair_open(&near, FI_MSG);
	OK(fi_recv(near.ep[1], NULL, 256, NULL, FI_ADDR_UNSPEC, NULL));
	OK(fi_recv(near.ep[1], NULL, 256, NULL, FI_ADDR_UNSPEC, &error));
	OK(fi_inject(near.ep[0], NULL, 0, near.addr[1]));
	ANSWERS(completion(&near, 1, &entry), 1);
	CHECK(entry.len == 0);
	OK(fi_inject(near.ep[0], "four", 4, near.addr[1]));
	ANSWERS(completion(&near, 1, &entry), -FI_EAVAIL);
	ANSWERS(fi_cq_readerr(near.cq[1], &error, 0), 1);
	CHECK(error.err == FI_ETRUNC && error.olen == 4 && error.op_context == &error);
	pair_close(&near);
}

int main(void)
{
	shared();
	no_room();
	return 0;
}
