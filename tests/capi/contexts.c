/* Shared contexts, and the contexts of scalable endpoints. */
#include "check.h"

static struct pair far, near;

/* Reads one completion of a queue while it drives another. */
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

	/* The endpoint that a message arrives at takes the next shared receive, and reports it to its own queue. */
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
	/* Both send, and their completions arrive at their own queues. */
	for (long at = 0; at < 2; at++) {
		OK(fi_recv(far.ep[0], got[at], 16, NULL, FI_ADDR_UNSPEC, NULL));
		OK(fi_send(ep[at], "from an endpoint", 16, NULL, from, (void *)(at + 10)));
		next_of(cq[at], far.cq[0], &entry);
		CHECK(entry.op_context == (void *)(at + 10) && entry.flags & FI_SEND);
	}
	/* The endpoint that holds the message reports the result of a peek; without a message, the first endpoint does. */
	struct fi_cq_err_entry error = {0};
	struct fi_context2 claim;
	struct iovec iov = {.iov_base = got[0], .iov_len = 16};
	struct fi_msg_tagged msg = {
		.msg_iov = &iov, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .tag = 9, .context = &claim};
	OK(fi_trecvmsg(srx, &msg, FI_PEEK));
	ANSWERS(fi_cq_read(cq[0], &entry, 1), -FI_EAVAIL);
	ANSWERS(fi_cq_readerr(cq[0], &error, 0), 1);
	CHECK(error.err == FI_ENOMSG && error.op_context == &claim);
	OK(fi_tsend(far.ep[0], "to be claimed..", 16, NULL, to[1], 9, NULL));
	OK(fi_trecvmsg(srx, &msg, FI_PEEK | FI_CLAIM));
	next_of(cq[1], far.cq[0], &entry);
	CHECK(entry.op_context == &claim && entry.len == 16 && entry.tag == 9);
	OK(fi_trecvmsg(srx, &msg, FI_CLAIM));
	next_of(cq[1], far.cq[0], &entry);
	CHECK(entry.op_context == &claim && !memcmp(got[0], "to be claimed..", 16));
	ANSWERS(fi_trecvmsg(srx, &msg, FI_CLAIM), -FI_EINVAL);

	OK(fi_recv(srx, got[0], 16, NULL, FI_ADDR_UNSPEC, &entry));
	OK(fi_cancel(&srx->fid, &entry));
	ANSWERS(fi_cq_read(cq[0], &entry, 1), -FI_EAVAIL);
	error = (struct fi_cq_err_entry){0};
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

/* A scalable endpoint with two transmit and two receive contexts, and an ordinary one that sends to each. */
static void scalable(void)
{
	struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED};
	struct fi_av_attr av_attr = {.type = FI_AV_TABLE, .rx_ctx_bits = 2};
	struct fi_cq_tagged_entry entry;
	struct fid_ep *sep, *tx[2], *rx[2], *none;
	struct fid_cq *tx_cq[2], *rx_cq[2];
	struct fid_av *av;
	fi_addr_t to, from;
	char got[16], name[256];
	size_t len = sizeof name;

	pair_open(&far, FI_MSG | FI_TAGGED);
	OK(fi_close(&far.ep[0]->fid));
	pair_open(&near, FI_MSG | FI_TAGGED);
	struct fi_info *info = pair_info(FI_MSG | FI_TAGGED | FI_NAMED_RX_CTX);
	CHECK(info->domain_attr->max_ep_tx_ctx >= 2 && info->domain_attr->max_ep_rx_ctx >= 2);
	info->ep_attr->tx_ctx_cnt = info->ep_attr->rx_ctx_cnt = 2;
	OK(fi_scalable_ep(near.domain, info, &sep, &sep));
	CHECK(sep->fid.fclass == FI_CLASS_SEP && sep->fid.context == &sep);
	OK(fi_scalable_ep_bind(sep, &near.av->fid, 0));
	for (int at = 0; at < 2; at++) {
		struct fi_tx_attr tx_attr = {.inject_size = 8};
		struct fi_rx_attr rx_attr = {.size = 4};
		OK(fi_tx_context(sep, at, &tx_attr, &tx[at], &tx[at]));
		CHECK(tx[at]->fid.fclass == FI_CLASS_TX_CTX && tx[at]->fid.context == &tx[at]);
		CHECK(tx_attr.inject_size == 8 && tx_attr.size == info->tx_attr->size);
		OK(fi_rx_context(sep, at, at ? &rx_attr : NULL, &rx[at], NULL));
		CHECK(rx[at]->fid.fclass == FI_CLASS_RX_CTX && rx_attr.size == 4);
		OK(fi_cq_open(near.domain, &cq_attr, &tx_cq[at], NULL));
		OK(fi_cq_open(near.domain, &cq_attr, &rx_cq[at], NULL));
		ANSWERS(fi_enable(tx[at]), -FI_ENOCQ);
		OK(fi_ep_bind(tx[at], &tx_cq[at]->fid, FI_SEND));
		OK(fi_ep_bind(rx[at], &rx_cq[at]->fid, FI_RECV));
		OK(fi_enable(tx[at]));
		OK(fi_enable(rx[at]));
	}
	ANSWERS(fi_tx_context(sep, 0, NULL, &none, NULL), -FI_EBUSY);
	ANSWERS(fi_rx_context(sep, 2, NULL, &none, NULL), -FI_EINVAL);
	ANSWERS(fi_rx_context(sep, -1, NULL, &none, NULL), -FI_EINVAL);
	ANSWERS(fi_tx_context(near.ep[0], 0, NULL, &none, NULL), -FI_EOPNOTSUPP);
	OK(fi_enable(sep));
	ANSWERS(fi_send(sep, got, 1, NULL, 0, NULL), -FI_EOPNOTSUPP);
	ANSWERS(fi_recv(tx[0], got, 1, NULL, 0, NULL), -FI_EOPNOTSUPP);
	ANSWERS(fi_send(rx[0], got, 1, NULL, 0, NULL), -FI_EOPNOTSUPP);
	ANSWERS(fi_close(&sep->fid), -FI_EBUSY);

	/* An endpoint whose vector has bits for receive contexts. */
	OK(fi_av_open(far.domain, &av_attr, &av, NULL));
	OK(fi_endpoint(far.domain, far.info, &far.ep[0], NULL));
	OK(fi_ep_bind(far.ep[0], &av->fid, 0));
	OK(fi_ep_bind(far.ep[0], &far.cq[0]->fid, FI_TRANSMIT | FI_RECV));
	OK(fi_enable(far.ep[0]));
	OK(fi_getname(&sep->fid, name, &len));
	ANSWERS(fi_av_insert(av, name, 1, &to, 0, NULL), 1);
	len = sizeof name;
	OK(fi_getname(&far.ep[0]->fid, name, &len));
	ANSWERS(fi_av_insert(near.av, name, 1, &from, 0, NULL), 1);
	for (long at = 0; at < 2; at++) {
		char text[] = "to context  ";
		text[11] = (char)('0' + at);
		OK(fi_recv(rx[at], got, sizeof got, NULL, FI_ADDR_UNSPEC, (void *)(at + 1)));
		OK(fi_send(far.ep[0], text, sizeof text, NULL, fi_rx_addr(to, (int)at, 2), NULL));
		next_of(rx_cq[at], far.cq[0], &entry);
		CHECK(entry.op_context == (void *)(at + 1) && entry.len == sizeof text && !memcmp(got, text, sizeof text));
		OK(fi_recv(far.ep[0], got, sizeof got, NULL, FI_ADDR_UNSPEC, got));
		OK(fi_send(tx[at], text, sizeof text, NULL, from, (void *)(at + 5)));
		next_of(tx_cq[at], far.cq[0], &entry);
		CHECK(entry.op_context == (void *)(at + 5));
		ANSWERS(fi_inject(tx[at], "too long a text", 16, from), -FI_EMSGSIZE);
	}
	for (int at = 0; at < 2; at++) {
		OK(fi_close(&tx[at]->fid));
		OK(fi_close(&rx[at]->fid));
		OK(fi_close(&tx_cq[at]->fid));
		OK(fi_close(&rx_cq[at]->fid));
	}
	OK(fi_close(&sep->fid));
	fi_freeinfo(info);
	OK(fi_close(&far.ep[0]->fid));
	OK(fi_close(&av->fid));
	/* `pair_close` closes these. */
	OK(fi_endpoint(far.domain, far.info, &far.ep[0], NULL));
	pair_close(&near);
	pair_close(&far);
}

/* With one context of each kind, the program may bind and post to the scalable endpoint itself. */
static void a_single_context(void)
{
	struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED};
	struct fi_cq_tagged_entry entry;
	struct fid_ep *sep, *none;
	struct fid_cq *cq;
	char got[16], name[256];
	size_t len = sizeof name;
	fi_addr_t to, from;
	pair_open(&near, FI_MSG | FI_TAGGED);
	struct fi_info *info = pair_info(FI_MSG | FI_TAGGED);
	OK(fi_scalable_ep(near.domain, info, &sep, NULL));
	OK(fi_cq_open(near.domain, &cq_attr, &cq, NULL));
	OK(fi_scalable_ep_bind(sep, &near.av->fid, 0));
	OK(fi_scalable_ep_bind(sep, &cq->fid, FI_TRANSMIT | FI_RECV));
	OK(fi_enable(sep));
	ANSWERS(fi_tx_context(sep, 0, NULL, &none, NULL), -FI_EBUSY);
	OK(fi_getname(&sep->fid, name, &len));
	ANSWERS(fi_av_insert(near.av, name, 1, &to, 0, NULL), 1);
	len = sizeof name;
	OK(fi_getname(&near.ep[0]->fid, name, &len));
	ANSWERS(fi_av_insert(near.av, name, 1, &from, 0, NULL), 1);
	OK(fi_recv(near.ep[0], got, sizeof got, NULL, FI_ADDR_UNSPEC, got));
	OK(fi_send(sep, "there", 6, NULL, from, &sep));
	next_of(cq, near.cq[0], &entry);
	CHECK(entry.op_context == &sep && entry.flags & FI_SEND);
	OK(fi_trecv(sep, got, sizeof got, NULL, FI_ADDR_UNSPEC, 3, 0, &cq));
	OK(fi_tinject(near.ep[0], "back", 5, to, 3));
	next_of(cq, near.cq[0], &entry);
	CHECK(entry.op_context == &cq && !strcmp(got, "back"));
	OK(fi_close(&sep->fid));
	OK(fi_close(&cq->fid));
	fi_freeinfo(info);
	pair_close(&near);
}

/* A null buffer has no room: an empty message fits, any other is truncated. */
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
	scalable();
	a_single_context();
	no_room();
	return 0;
}
