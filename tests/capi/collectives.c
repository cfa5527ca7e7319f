/* Sets of addresses, groups, and each collective on two endpoints of one process. */
#include "check.h"
#include <rdma/fi_collective.h>

static struct pair pair;
static struct fid_eq *eq;
static struct fid_mc *mc[2];

static void drive(void)
{
	fi_cq_read(pair.cq[0], NULL, 0);
	fi_cq_read(pair.cq[1], NULL, 0);
}

static void open_pair(void)
{
	struct fi_eq_attr eq_attr = {.wait_obj = FI_WAIT_NONE};
	struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED};
	struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
	pair.info = pair_info(FI_MSG | FI_COLLECTIVE);
	OK(fi_fabric(pair.info->fabric_attr, &pair.fabric, NULL));
	OK(fi_domain(pair.fabric, pair.info, &pair.domain, NULL));
	OK(fi_eq_open(pair.fabric, &eq_attr, &eq, NULL));
	OK(fi_av_open(pair.domain, &av_attr, &pair.av, NULL));
	for (int at = 0; at < 2; at++) {
		char name[256];
		size_t len = sizeof name;
		OK(fi_cq_open(pair.domain, &cq_attr, &pair.cq[at], NULL));
		OK(fi_endpoint(pair.domain, pair.info, &pair.ep[at], NULL));
		OK(fi_ep_bind(pair.ep[at], &pair.av->fid, 0));
		OK(fi_ep_bind(pair.ep[at], &eq->fid, 0));
		OK(fi_ep_bind(pair.ep[at], &pair.cq[at]->fid, FI_TRANSMIT | FI_RECV));
		OK(fi_enable(pair.ep[at]));
		OK(fi_getname(&pair.ep[at]->fid, name, &len));
		ANSWERS(fi_av_insert(pair.av, name, 1, &pair.addr[at], 0, NULL), 1);
	}
}

/* Sets: by range, by single addresses, and by operations on other sets. */
static struct fid_av_set *sets(void)
{
	struct fi_av_set_attr none = {.start_addr = FI_ADDR_NOTAVAIL, .end_addr = FI_ADDR_NOTAVAIL};
	struct fi_av_set_attr both = {.start_addr = 0, .end_addr = 1, .stride = 1};
	struct fi_av_set_attr unknown = {.flags = FI_PEEK};
	struct fid_av_set *all, *one;
	fi_addr_t addr = FI_ADDR_NOTAVAIL;

	ANSWERS(fi_av_set(pair.av, &unknown, &all, NULL), -FI_EBADFLAGS);
	ANSWERS(fi_av_set(pair.av, &both, NULL, NULL), -FI_EINVAL);
	OK(fi_av_set(pair.av, &both, &all, NULL));
	OK(fi_av_set(pair.av, &none, &one, NULL));
	OK(fi_av_set_insert(one, pair.addr[1]));
	CHECK(fi_av_set_insert(one, 77) < 0);
	OK(fi_av_set_diff(all, one));
	OK(fi_av_set_union(all, one));
	OK(fi_av_set_intersect(one, all));
	OK(fi_av_set_remove(one, pair.addr[1]));
	CHECK(fi_av_set_remove(one, pair.addr[1]) < 0);
	ANSWERS(fi_close(&pair.av->fid), -FI_EBUSY);
	OK(fi_close(&one->fid));
	ANSWERS(fi_av_set_addr(all, NULL), -FI_EINVAL);
	OK(fi_av_set_addr(all, &addr));
	CHECK(addr != FI_ADDR_NOTAVAIL);
	return all;
}

static void joins(struct fid_av_set *set)
{
	int seen = 0, context[2];
	fi_addr_t addr;
	OK(fi_av_set_addr(set, &addr));
	for (int at = 0; at < 2; at++)
		OK(fi_join_collective(pair.ep[at], addr, set, 0, &mc[at], &context[at]));
	/* Without FI_COLLECTIVE, fi_join joins a multicast group by its address; shared memory has none. */
	ANSWERS(fi_join(pair.ep[0], "somewhere", 0, &mc[0], NULL), -FI_EINVAL);
	ANSWERS(fi_join(pair.ep[0], "fi_shm://somewhere", 0, &mc[0], NULL), -FI_EOPNOTSUPP);
	for (double end = now() + 20; seen != 3 && now() < end; drive()) {
		struct fi_eq_entry entry;
		uint32_t event;
		ssize_t answer = fi_eq_read(eq, &event, &entry, sizeof entry, 0);
		if (answer == -FI_EAGAIN)
			continue;
		ANSWERS(answer, sizeof entry);
		CHECK(event == FI_JOIN_COMPLETE);
		int at = entry.fid == &mc[0]->fid ? 0 : 1;
		CHECK(entry.fid == &mc[at]->fid && entry.context == &context[at]);
		seen |= 1 << at;
	}
	CHECK(seen == 3);
	ANSWERS(fi_close(&pair.ep[0]->fid), -FI_EBUSY);
}

/* Both ranks have posted: both complete, with their contexts. */
static void complete(void *contexts)
{
	for (int at = 0; at < 2; at++) {
		struct fi_cq_tagged_entry entry;
		ANSWERS(completion(&pair, at, &entry), 1);
		CHECK(entry.op_context == (char *)contexts + at && entry.flags & FI_COLLECTIVE);
	}
}

int main(void)
{
	struct fi_collective_attr query = {.op = FI_SUM, .datatype = FI_UINT64};
	char context[2];
	uint64_t in[2][2] = {{1, 2}, {10, 20}}, out[2][4];
	fi_addr_t group[2];

	open_pair();
	OK(fi_query_collective(pair.domain, FI_ALLREDUCE, &query, 0));
	CHECK(query.max_members >= 2 && query.datatype_attr.size == 8);
	query.op = FI_MSWAP;
	ANSWERS(fi_query_collective(pair.domain, FI_ALLREDUCE, &query, 0), -FI_EOPNOTSUPP);
	ANSWERS(fi_query_collective(pair.domain, 99, &query, 0), -FI_EOPNOTSUPP);
	ANSWERS(fi_query_collective(pair.domain, FI_BARRIER, NULL, 0), -FI_EINVAL);

	struct fid_av_set *set = sets();
	joins(set);
	for (int at = 0; at < 2; at++)
		group[at] = fi_mc_addr(mc[at]);

	/* The input and the expected result of each rank; `at` is the rank. */
#define BOTH(call)                                  \
	do {                                        \
		memset(out, 0, sizeof out);         \
		for (int at = 0; at < 2; at++)      \
			POST(&pair, call);          \
		complete(context);                  \
	} while (0)
	BOTH(fi_barrier(pair.ep[at], group[at], &context[at]));
	BOTH(fi_allreduce(pair.ep[at], in[at], 2, NULL, out[at], NULL, group[at], FI_UINT64, FI_SUM, 0, &context[at]));
	for (int at = 0; at < 2; at++)
		CHECK(out[at][0] == 11 && out[at][1] == 22);
	BOTH(fi_allgather(pair.ep[at], in[at], 2, NULL, out[at], NULL, group[at], FI_UINT64, 0, &context[at]));
	for (int at = 0; at < 2; at++)
		CHECK(out[at][0] == 1 && out[at][1] == 2 && out[at][2] == 10 && out[at][3] == 20);
	BOTH(fi_alltoall(pair.ep[at], in[at], 1, NULL, out[at], NULL, group[at], FI_UINT64, 0, &context[at]));
	CHECK(out[0][0] == 1 && out[0][1] == 10 && out[1][0] == 2 && out[1][1] == 20);
	BOTH(fi_reduce_scatter(pair.ep[at], in[at], 1, NULL, out[at], NULL, group[at], FI_UINT64, FI_SUM, 0,
			       &context[at]));
	CHECK(out[0][0] == 11 && out[1][0] == 22);
	BOTH(fi_reduce(pair.ep[at], in[at], 2, NULL, at ? out[at] : NULL, NULL, group[at], pair.addr[1], FI_UINT64,
		       FI_MAX, 0, &context[at]));
	CHECK(out[1][0] == 10 && out[1][1] == 20);
	BOTH(fi_scatter(pair.ep[at], at ? NULL : in[0], 1, NULL, out[at], NULL, group[at], pair.addr[0], FI_UINT64, 0,
			&context[at]));
	CHECK(out[0][0] == 1 && out[1][0] == 2);
	BOTH(fi_gather(pair.ep[at], in[at], 2, NULL, at ? NULL : out[at], NULL, group[at], pair.addr[0], FI_UINT64, 0,
		       &context[at]));
	CHECK(out[0][0] == 1 && out[0][1] == 2 && out[0][2] == 10 && out[0][3] == 20);
	BOTH(fi_broadcast(pair.ep[at], at ? (void *)in[1] : out[at], 2, NULL, group[at], pair.addr[1], FI_UINT64, 0,
			  &context[at]));
	CHECK(out[0][0] == 10 && out[0][1] == 20);

	/* Through struct fi_msg_collective. */
	struct fi_ioc from[2] = {{in[0], 2}, {in[1], 2}}, to[2] = {{out[0], 2}, {out[1], 2}};
	struct fi_msg_collective msg = {.iov_count = 1, .coll = FI_ALLREDUCE, .datatype = FI_UINT64, .op = FI_PROD};
	memset(out, 0, sizeof out);
	for (int at = 0; at < 2; at++) {
		msg.msg_iov = &from[at];
		msg.coll_addr = group[at];
		msg.context = &context[at];
		POST(&pair, pair.ep[at]->collective->msg(pair.ep[at], &msg, &to[at], NULL, 1, 0));
	}
	complete(context);
	CHECK(out[0][0] == 10 && out[1][1] == 40);

	/* A null group, an unknown type, a null buffer. */
	ANSWERS(fi_barrier(pair.ep[0], 12345, NULL), -FI_EINVAL);
	CHECK(fi_allgather(pair.ep[0], in[0], 2, NULL, out[0], NULL, group[0], 99, 0, NULL) < 0);
	CHECK(fi_allgather(pair.ep[0], NULL, 2, NULL, out[0], NULL, group[0], FI_UINT64, 0, NULL) < 0);

	OK(fi_close(&mc[0]->fid));
	OK(fi_close(&mc[1]->fid));
	OK(fi_close(&set->fid));
	for (int at = 0; at < 2; at++)
		OK(fi_close(&pair.ep[at]->fid));
	OK(fi_close(&eq->fid));
	for (int at = 0; at < 2; at++)
		OK(fi_close(&pair.cq[at]->fid));
	OK(fi_close(&pair.av->fid));
	OK(fi_close(&pair.domain->fid));
	OK(fi_close(&pair.fabric->fid));
	fi_freeinfo(pair.info);
	return 0;
}
