/* Triggered operations through flags and through an alias, and the deferred work queue. */
#include "check.h"
#include <rdma/fi_trigger.h>

static struct pair pair;

static struct fid_cntr *counter(void)
{
	struct fi_cntr_attr attr = {.events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_NONE};
	struct fid_cntr *cntr;
	OK(fi_cntr_open(pair.domain, &attr, &cntr, NULL));
	return cntr;
}

static void drive(void)
{
	for (int at = 0; at < 200; at++) {
		fi_cq_read(pair.cq[0], NULL, 0);
		fi_cq_read(pair.cq[1], NULL, 0);
	}
}

/* The message arrives, and had not arrived before. */
static void arrives(char *in, const char *text)
{
	struct fi_cq_tagged_entry entry;
	ANSWERS(completion(&pair, 1, &entry), 1);
	CHECK(entry.len == strlen(text) && !memcmp(in, text, entry.len));
}

static void waits(void)
{
	struct fi_cq_tagged_entry entry;
	drive();
	ANSWERS(fi_cq_read(pair.cq[1], &entry, 1), -FI_EAGAIN);
}

static void by_flag(void)
{
	struct fid_cntr *cntr = counter();
	struct fi_triggered_context when = {.event_type = FI_TRIGGER_THRESHOLD};
	char in[16] = {0}, out[] = "by flag";
	struct iovec iov = {out, 7};
	struct fi_msg msg = {.msg_iov = &iov, .iov_count = 1, .addr = pair.addr[1], .context = &when};
	struct fi_cq_tagged_entry entry;

	when.trigger.threshold.cntr = cntr;
	when.trigger.threshold.threshold = 2;
	POST(&pair, fi_recv(pair.ep[1], in, sizeof in, NULL, FI_ADDR_UNSPEC, NULL));
	OK(fi_sendmsg(pair.ep[0], &msg, FI_TRIGGER | FI_COMPLETION));
	OK(fi_cntr_add(cntr, 1));
	waits();
	OK(fi_cntr_add(cntr, 1));
	arrives(in, "by flag");
	ANSWERS(completion(&pair, 0, &entry), 1);
	CHECK(entry.op_context == &when);

	/* Refused: no context, another event type. */
	msg.context = NULL;
	ANSWERS(fi_sendmsg(pair.ep[0], &msg, FI_TRIGGER), -FI_EINVAL);
	msg.context = &when;
	when.event_type = 7;
	ANSWERS(fi_sendmsg(pair.ep[0], &msg, FI_TRIGGER), -FI_ENOSYS);
	OK(fi_close(&cntr->fid));
}

static void by_alias(void)
{
	struct fid_cntr *cntr = counter();
	struct fi_triggered_context when = {.event_type = FI_TRIGGER_THRESHOLD};
	struct fid_ep *alias = NULL;
	char in[16] = {0};

	when.trigger.threshold.cntr = cntr;
	when.trigger.threshold.threshold = 1;
	OK(fi_ep_alias(pair.ep[0], &alias, FI_TRANSMIT | FI_TRIGGER));
	POST(&pair, fi_trecv(pair.ep[1], in, sizeof in, NULL, FI_ADDR_UNSPEC, 5, 0, NULL));
	OK(fi_tsend(alias, "alias", 5, NULL, pair.addr[1], 5, &when));
	waits();
	OK(fi_cntr_add(cntr, 1));
	arrives(in, "alias");
	OK(fi_close(&alias->fid));
	OK(fi_close(&cntr->fid));
	drive();
	struct fi_cq_tagged_entry entry;
	fi_cq_read(pair.cq[0], &entry, 1);
}

static void by_work(void)
{
	struct fid_cntr *cntr = counter(), *done = counter();
	char in[16] = {0}, out[] = "by work";
	struct iovec iov = {out, 7};
	struct fi_op_msg send = {.ep = pair.ep[0], .msg = {.msg_iov = &iov, .iov_count = 1, .addr = pair.addr[1]}};
	struct fi_deferred_work work = {.threshold = 1, .triggering_cntr = cntr, .completion_cntr = done};
	struct fi_op_cntr add = {.cntr = cntr, .value = 1};
	struct fi_deferred_work chain = {.threshold = 3, .triggering_cntr = done, .op_type = FI_OP_CNTR_ADD};

	work.op_type = FI_OP_SEND;
	work.op.msg = &send;
	OK(fi_control(&pair.domain->fid, FI_QUEUE_WORK, &work));
	POST(&pair, fi_recv(pair.ep[1], in, sizeof in, NULL, FI_ADDR_UNSPEC, NULL));
	waits();
	OK(fi_cntr_add(cntr, 1));
	arrives(in, "by work");
	for (double end = now() + 20; fi_cntr_read(done) == 0 && now() < end;)
		drive();
	/* The counter has no wait object, and fi_cntr_wait works nevertheless. */
	OK(fi_cntr_wait(done, 1, 10000));
	ANSWERS(fi_cntr_wait(done, 2, 20), -FI_ETIMEDOUT);
	ANSWERS(fi_control(&pair.domain->fid, FI_CANCEL_WORK, &work), -FI_ENOENT);

	/* A counter that triggers an addition to another. */
	chain.op.cntr = &add;
	OK(fi_control(&pair.domain->fid, FI_QUEUE_WORK, &chain));
	OK(fi_cntr_add(done, 2));
	drive();
	ANSWERS(fi_cntr_read(cntr), 2);

	/* Cancelled: one, then all of a counter, then all. */
	work.threshold = 100;
	OK(fi_control(&pair.domain->fid, FI_QUEUE_WORK, &work));
	OK(fi_control(&pair.domain->fid, FI_CANCEL_WORK, &work));
	OK(fi_control(&pair.domain->fid, FI_QUEUE_WORK, &work));
	OK(fi_control(&pair.domain->fid, FI_FLUSH_WORK, &work));
	ANSWERS(fi_control(&pair.domain->fid, FI_CANCEL_WORK, &work), -FI_ENOENT);
	OK(fi_control(&pair.domain->fid, FI_QUEUE_WORK, &work));
	OK(fi_control(&pair.domain->fid, FI_FLUSH_WORK, NULL));
	OK(fi_cntr_add(cntr, 100));
	waits();

	/* An atomic operation. */
	uint64_t cell = 40, two = 2;
	struct fid_mr *mr;
	OK(fi_mr_reg(pair.domain, &cell, sizeof cell, FI_REMOTE_WRITE | FI_REMOTE_READ, 0, 9, 0, &mr, NULL));
	struct fi_ioc ioc = {&two, 1};
	struct fi_rma_ioc target = {far_address(&pair, &cell), 1, fi_mr_key(mr)};
	struct fi_op_atomic sum = {.ep = pair.ep[0],
				   .msg = {.msg_iov = &ioc,
					   .iov_count = 1,
					   .addr = pair.addr[1],
					   .rma_iov = &target,
					   .rma_iov_count = 1,
					   .datatype = FI_UINT64,
					   .op = FI_SUM}};
	uint64_t before = fi_cntr_read(done);
	work.threshold = 1; /* reached long ago */
	work.op_type = FI_OP_ATOMIC;
	work.op.atomic = &sum;
	OK(fi_control(&pair.domain->fid, FI_QUEUE_WORK, &work));
	for (double end = now() + 20; fi_cntr_read(done) == before && now() < end;)
		drive();
	CHECK(cell == 42);
	OK(fi_close(&mr->fid));

	/* Bad work. */
	ANSWERS(fi_control(&pair.domain->fid, FI_QUEUE_WORK, NULL), -FI_EINVAL);
	work.op_type = 99;
	ANSWERS(fi_control(&pair.domain->fid, FI_QUEUE_WORK, &work), -FI_ENOSYS);
	work.op.msg = NULL;
	ANSWERS(fi_control(&pair.domain->fid, FI_QUEUE_WORK, &work), -FI_EINVAL);
	work.triggering_cntr = NULL;
	ANSWERS(fi_control(&pair.domain->fid, FI_QUEUE_WORK, &work), -FI_EINVAL);
	OK(fi_close(&cntr->fid));
	OK(fi_close(&done->fid));
}

int main(void)
{
	pair_open(&pair, FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_TRIGGER);
	by_flag();
	by_alias();
	by_work();
	pair_close(&pair);
	return 0;
}
