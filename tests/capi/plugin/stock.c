/* One of our providers in C's libfabric: messages, accesses, completions, errors. The name is the argument. */
#include "check.h"

static struct pair pair;

static void open_named(const char *name)
{
	struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED};
	struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
	struct fi_info *hints = fi_allocinfo();
	hints->caps = FI_MSG | FI_TAGGED | FI_RMA;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->fabric_attr->prov_name = strdup(name);
	OK(fi_getinfo(FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION), NULL, NULL, 0, hints, &pair.info));
	CHECK(!strcmp(pair.info->fabric_attr->prov_name, name));
	fi_freeinfo(hints);
	OK(fi_fabric(pair.info->fabric_attr, &pair.fabric, NULL));
	OK(fi_domain(pair.fabric, pair.info, &pair.domain, NULL));
	OK(fi_av_open(pair.domain, &av_attr, &pair.av, NULL));
	for (int at = 0; at < 2; at++) {
		char address[256];
		size_t len = sizeof address;
		OK(fi_cq_open(pair.domain, &cq_attr, &pair.cq[at], NULL));
		OK(fi_endpoint(pair.domain, pair.info, &pair.ep[at], NULL));
		OK(fi_ep_bind(pair.ep[at], &pair.av->fid, 0));
		OK(fi_ep_bind(pair.ep[at], &pair.cq[at]->fid, FI_TRANSMIT | FI_RECV));
		OK(fi_enable(pair.ep[at]));
		OK(fi_getname(&pair.ep[at]->fid, address, &len));
		ANSWERS(fi_av_insert(pair.av, address, 1, &pair.addr[at], 0, NULL), 1);
	}
}

int main(int argc, char **argv)
{
	static char in[100000], out[100000], target[64];
	struct fi_cq_tagged_entry entry;
	struct fi_cq_err_entry error = {0};
	struct fid_mr *mr;
	int context;

	CHECK(argc == 2);
	open_named(argv[1]);
	/* Messages, short and long. */
	for (size_t len = 1; len <= sizeof out; len *= 10) {
		memset(out, (int)len % 251 + 1, len);
		POST(&pair, fi_trecv(pair.ep[1], in, len, NULL, FI_ADDR_UNSPEC, len, 0, &context));
		POST(&pair, fi_tsend(pair.ep[0], out, len, NULL, pair.addr[1], len, NULL));
		ANSWERS(completion(&pair, 1, &entry), 1);
		CHECK(entry.op_context == &context && entry.len == len && entry.tag == len && !memcmp(in, out, len));
		ANSWERS(completion(&pair, 0, &entry), 1);
		CHECK(entry.flags & FI_SEND);
	}
	/* Remote memory accesses. */
	OK(fi_mr_reg(pair.domain, target, sizeof target, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 7, 0, &mr, NULL));
	uint64_t addr = far_address(&pair, target), key = fi_mr_key(mr);
	POST(&pair, fi_write(pair.ep[0], "written", 8, NULL, pair.addr[1], addr, key, &context));
	ANSWERS(completion(&pair, 0, &entry), 1);
	CHECK(entry.flags & FI_WRITE && !strcmp(target, "written"));
	POST(&pair, fi_read(pair.ep[0], in, 8, NULL, pair.addr[1], addr, key, &context));
	ANSWERS(completion(&pair, 0, &entry), 1);
	CHECK(entry.flags & FI_READ && !strcmp(in, "written"));
	/* Errors: an invalid key, a message longer than its receive, an unknown peer. */
	POST(&pair, fi_write(pair.ep[0], "x", 1, NULL, pair.addr[1], addr, key + 1, &context));
	ANSWERS(completion(&pair, 0, &entry), -FI_EAVAIL);
	ANSWERS(fi_cq_readerr(pair.cq[0], &error, 0), 1);
	CHECK(error.op_context == &context && error.err != 0);
	POST(&pair, fi_recv(pair.ep[1], in, 2, NULL, FI_ADDR_UNSPEC, &context));
	POST(&pair, fi_send(pair.ep[0], "long", 4, NULL, pair.addr[1], NULL));
	ANSWERS(completion(&pair, 1, &entry), -FI_EAVAIL);
	ANSWERS(fi_cq_readerr(pair.cq[1], &error, 0), 1);
	CHECK(error.err == FI_ETRUNC && error.olen == 2);
	CHECK(fi_send(pair.ep[0], "x", 1, NULL, 4711, NULL) == -FI_EINVAL);
	OK(fi_close(&mr->fid));
	pair_close(&pair);
	return 0;
}
