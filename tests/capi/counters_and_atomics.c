/* Atomics in every shape of call, counters that count them, poll sets and wait sets. */
#include "check.h"

#include <rdma/fi_atomic.h>

static struct pair pair;
static uint64_t target[4], key;

static void ended(void *context)
{
	struct fi_cq_tagged_entry entry;
	ANSWERS(completion(&pair, 0, &entry), 1);
	CHECK(entry.op_context == context && entry.flags & FI_ATOMIC);
}

static void atomics(void)
{
	uint64_t operand = 5, other = 7, result = 0, result2 = 0, compare = 12;
	uint64_t addr = far_address(&pair, target);
	size_t count = 0;
	struct fi_atomic_attr attr = {0};
	struct fid_mr *mr;
	int context;
	struct fi_ioc operands[2] = {{&operand, 1}, {&other, 1}}, results[2] = {{&result, 1}, {&result2, 1}};
	struct fi_ioc compares[1] = {{&compare, 1}};
	OK(fi_mr_reg(pair.domain, target, sizeof target, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 1, 0, &mr, NULL));
	key = fi_mr_key(mr);
	struct fi_rma_ioc far[2] = {{addr, 1, key}, {addr + 16, 1, key}};
	struct fi_msg_atomic msg = {operands, NULL, 2, pair.addr[1], far, 2, FI_UINT64, FI_SUM, &context, 0};

	OK(fi_atomicvalid(pair.ep[0], FI_UINT64, FI_SUM, &count));
	CHECK(count >= 4);
	OK(fi_fetch_atomicvalid(pair.ep[0], FI_UINT64, FI_SUM, &count));
	OK(fi_compare_atomicvalid(pair.ep[0], FI_UINT64, FI_CSWAP, &count));
	CHECK(fi_atomicvalid(pair.ep[0], FI_UINT64, FI_CSWAP, &count) < 0);
	CHECK(fi_atomicvalid(pair.ep[0], 4711, FI_SUM, &count) < 0);
	OK(fi_query_atomic(pair.domain, FI_UINT64, FI_SUM, &attr, FI_FETCH_ATOMIC));
	CHECK(attr.size == 8 && attr.count >= 4);

	POST(&pair, fi_atomic(pair.ep[0], &operand, 1, NULL, pair.addr[1], addr, key, FI_UINT64, FI_SUM, &context));
	ended(&context);
	CHECK(target[0] == 5);
	POST(&pair, fi_atomicv(pair.ep[0], operands, NULL, 2, pair.addr[1], addr, key, FI_UINT64, FI_SUM, &context));
	ended(&context);
	CHECK(target[0] == 10 && target[1] == 7);
	POST(&pair, fi_atomicmsg(pair.ep[0], &msg, FI_COMPLETION));
	ended(&context);
	CHECK(target[0] == 15 && target[2] == 7);
	POST(&pair, fi_fetch_atomic(pair.ep[0], &operand, 1, NULL, &result, NULL, pair.addr[1], addr, key, FI_UINT64,
				    FI_SUM, &context));
	ended(&context);
	CHECK(result == 15 && target[0] == 20);
	POST(&pair, fi_fetch_atomic(pair.ep[0], NULL, 1, NULL, &result, NULL, pair.addr[1], addr, key, FI_UINT64,
				    FI_ATOMIC_READ, &context));
	ended(&context);
	CHECK(result == 20);
	POST(&pair, fi_fetch_atomicv(pair.ep[0], operands, NULL, 2, results, NULL, 2, pair.addr[1], addr, key,
				     FI_UINT64, FI_ATOMIC_WRITE, &context));
	ended(&context);
	CHECK(result == 20 && result2 == 7 && target[0] == 5 && target[1] == 7);
	POST(&pair, fi_fetch_atomicmsg(pair.ep[0], &msg, results, NULL, 2, FI_COMPLETION));
	ended(&context);
	CHECK(result == 5 && result2 == 7 && target[0] == 10 && target[2] == 14);
	compare = 10;
	operand = 99;
	POST(&pair, fi_compare_atomic(pair.ep[0], &operand, 1, NULL, &compare, NULL, &result, NULL, pair.addr[1],
				      addr, key, FI_UINT64, FI_CSWAP, &context));
	ended(&context);
	CHECK(result == 10 && target[0] == 99);
	POST(&pair, fi_compare_atomicv(pair.ep[0], operands, NULL, 1, compares, NULL, 1, results, NULL, 1,
				       pair.addr[1], addr, key, FI_UINT64, FI_CSWAP, &context));
	ended(&context);
	CHECK(result == 99 && target[0] == 99);
	compare = 99;
	operand = 1;
	msg.iov_count = msg.rma_iov_count = 1;
	msg.op = FI_CSWAP;
	POST(&pair, fi_compare_atomicmsg(pair.ep[0], &msg, compares, NULL, 1, results, NULL, 1, FI_COMPLETION));
	ended(&context);
	CHECK(result == 99 && target[0] == 1);
	POST(&pair, fi_inject_atomic(pair.ep[0], &operand, 1, pair.addr[1], addr, key, FI_UINT64, FI_SUM));
	for (double end = now() + 20; target[0] != 2 && now() < end;) {
		fi_cq_read(pair.cq[0], NULL, 0);
		fi_cq_read(pair.cq[1], NULL, 0);
	}
	CHECK(target[0] == 2);
	OK(fi_close(&mr->fid));
}

static void counters(void)
{
	struct fi_cntr_attr attr = {.events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_UNSPEC};
	struct fid_cntr *cntr;
	struct fid_ep *ep;
	struct fid *fids[1];
	char name[256], in[8];
	size_t len = sizeof name;
	fi_addr_t addr;
	void *contexts[4];
	OK(fi_cntr_open(pair.domain, &attr, &cntr, &attr));
	OK(fi_endpoint(pair.domain, pair.info, &ep, NULL));
	OK(fi_ep_bind(ep, &pair.av->fid, 0));
	OK(fi_ep_bind(ep, &pair.cq[1]->fid, FI_TRANSMIT));
	OK(fi_ep_bind(ep, &cntr->fid, FI_RECV));
	OK(fi_enable(ep));
	OK(fi_getname(&ep->fid, name, &len));
	ANSWERS(fi_av_insert(pair.av, name, 1, &addr, 0, NULL), 1);
	ANSWERS(fi_close(&cntr->fid), -FI_EBUSY);

	struct fid_poll *set;
	struct fi_poll_attr poll_attr = {0};
	OK(fi_poll_open(pair.domain, &poll_attr, &set));
	OK(fi_poll_add(set, &cntr->fid, 0));
	ANSWERS(fi_poll(set, contexts, 4), 0);
	OK(fi_recv(ep, in, sizeof in, NULL, FI_ADDR_UNSPEC, NULL));
	POST(&pair, fi_inject(pair.ep[0], "counted", 8, addr));
	int found = 0;
	for (double end = now() + 20; !found && now() < end;) {
		found = fi_poll(set, contexts, 4);
		fi_cq_read(pair.cq[0], NULL, 0);
	}
	CHECK(found == 1 && contexts[0] == &attr);
	OK(fi_cntr_wait(cntr, 1, 10000));
	CHECK(fi_cntr_read(cntr) == 1 && fi_cntr_readerr(cntr) == 0);
	ANSWERS(fi_cntr_wait(cntr, 2, 20), -FI_ETIMEDOUT);
	OK(fi_cntr_add(cntr, 10));
	CHECK(fi_cntr_read(cntr) == 11);
	OK(fi_cntr_set(cntr, 3));
	OK(fi_cntr_adderr(cntr, 2));
	CHECK(fi_cntr_read(cntr) == 3 && fi_cntr_readerr(cntr) == 2);
	OK(fi_cntr_seterr(cntr, 0));
	CHECK(fi_cntr_read(cntr) == 3 && fi_cntr_readerr(cntr) == 0);
	fids[0] = &cntr->fid;
	OK(fi_trywait(pair.fabric, fids, 1));
	OK(fi_poll_del(set, &cntr->fid, 0));
	CHECK(fi_poll_del(set, &cntr->fid, 0) < 0);
	OK(fi_close(&set->fid));
	OK(fi_close(&ep->fid));
	OK(fi_close(&cntr->fid));
}

static void wait_sets(void)
{
	struct fi_wait_attr attr = {.wait_obj = FI_WAIT_FD};
	struct fid_wait *set;
	struct fid_cq *cq;
	int fd = -1;
	OK(fi_wait_open(pair.fabric, &attr, &set));
	struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_MSG, .wait_obj = FI_WAIT_SET, .wait_set = set};
	OK(fi_cq_open(pair.domain, &cq_attr, &cq, NULL));
	OK(fi_control(&set->fid, FI_GETWAIT, &fd));
	CHECK(fd >= 0);
	ANSWERS(fi_wait(set, 20), -FI_ETIMEDOUT);
	OK(fi_close(&cq->fid));
	OK(fi_close(&set->fid));
}

int main(void)
{
	pair_open(&pair, FI_MSG | FI_ATOMIC);
	atomics();
	counters();
	wait_sets();
	pair_close(&pair);
	return 0;
}
