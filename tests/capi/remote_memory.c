/* Remote reads and writes in every shape of call, registrations in every shape, raw keys, and refusals. */
#include "check.h"

static struct pair pair;

static void ended(int at, uint64_t flags, void *context)
{
	struct fi_cq_tagged_entry entry;
	ANSWERS(completion(&pair, at, &entry), 1);
	CHECK(entry.op_context == context && (entry.flags & flags) == flags);
}

static void failed(int wanted, void *context)
{
	struct fi_cq_tagged_entry entry;
	struct fi_cq_err_entry error = {0};
	ANSWERS(completion(&pair, 0, &entry), -FI_EAVAIL);
	ANSWERS(fi_cq_readerr(pair.cq[0], &error, 0), 1);
	CHECK(error.op_context == context && error.err == wanted);
	/* The text in the program's buffer names the peer; without a buffer it is one that lives on. */
	char text[256] = "";
	CHECK(fi_cq_strerror(pair.cq[0], error.prov_errno, error.err_data, text, sizeof text) == text);
	CHECK(strstr(text, ": peer fi_") != NULL);
	const char *lasting = fi_cq_strerror(pair.cq[0], error.prov_errno, error.err_data, NULL, 0);
	CHECK(strlen(lasting) > 0 && !strstr(lasting, "peer fi_"));
}

static void every_call(void)
{
	static char target[64], local[16] = "0123456789abcde";
	const uint64_t data = 0xfeedfacecafebeef;
	struct fid_mr *mr;
	struct fi_cq_tagged_entry entry;
	uint64_t addr = far_address(&pair, target), key;
	int context;
	OK(fi_mr_reg(pair.domain, target, sizeof target, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 1, 0, &mr, NULL));
	key = fi_mr_key(mr);
	CHECK(key != FI_KEY_NOTAVAIL && fi_mr_desc(mr));
	struct iovec halves[2] = {{local, 6}, {local + 6, 10}};
	struct fi_rma_iov far[2] = {{addr, 4, key}, {addr + 32, 12, key}};
	struct fi_msg_rma msg = {halves, NULL, 2, pair.addr[1], far, 2, &context, data};

	POST(&pair, fi_write(pair.ep[0], local, 16, NULL, pair.addr[1], addr, key, &context));
	ended(0, FI_RMA | FI_WRITE, &context);
	CHECK(!memcmp(target, local, 16));
	memset(target, 0, sizeof target);
	POST(&pair, fi_writev(pair.ep[0], halves, NULL, 2, pair.addr[1], addr, key, &context));
	ended(0, FI_RMA | FI_WRITE, &context);
	CHECK(!memcmp(target, local, 16));
	memset(target, 0, sizeof target);
	POST(&pair, fi_writemsg(pair.ep[0], &msg, FI_COMPLETION | FI_DELIVERY_COMPLETE));
	ended(0, FI_RMA | FI_WRITE, &context);
	CHECK(!memcmp(target, local, 4) && !memcmp(target + 32, local + 4, 12));
	memset(target, 0, sizeof target);
	POST(&pair, fi_writedata(pair.ep[0], local, 16, NULL, data, pair.addr[1], addr, key, &context));
	ended(0, FI_RMA | FI_WRITE, &context);
	ANSWERS(completion(&pair, 1, &entry), 1);
	CHECK(entry.flags & FI_REMOTE_CQ_DATA && entry.flags & FI_REMOTE_WRITE && entry.data == data);
	CHECK(!memcmp(target, local, 16));
	POST(&pair, fi_inject_write(pair.ep[0], "x", 1, pair.addr[1], addr, key));
	POST(&pair, fi_inject_writedata(pair.ep[0], "y", 1, data + 1, pair.addr[1], addr + 1, key));
	ANSWERS(completion(&pair, 1, &entry), 1);
	CHECK(entry.data == data + 1 && target[0] == 'x' && target[1] == 'y');

	char back[16];
	struct iovec places[2] = {{back, 3}, {back + 3, 13}};
	struct fi_msg_rma read = {places, NULL, 2, pair.addr[1], far, 2, &context, 0};
	memcpy(target, "abcdefghijklmnop", 16);
	memcpy(target + 32, "ABCDEFGHIJKL", 12);
	POST(&pair, fi_read(pair.ep[0], back, 16, NULL, pair.addr[1], addr, key, &context));
	ended(0, FI_RMA | FI_READ, &context);
	CHECK(!memcmp(back, target, 16));
	memset(back, 0, sizeof back);
	POST(&pair, fi_readv(pair.ep[0], places, NULL, 2, pair.addr[1], addr, key, &context));
	ended(0, FI_RMA | FI_READ, &context);
	CHECK(!memcmp(back, target, 16));
	POST(&pair, fi_readmsg(pair.ep[0], &read, FI_COMPLETION));
	ended(0, FI_RMA | FI_READ, &context);
	CHECK(!memcmp(back, "abcdABCDEFGHIJKL", 16));

	/* Across the end of the region, and beyond it. */
	POST(&pair, fi_write(pair.ep[0], local, 16, NULL, pair.addr[1], addr + 60, key, &context));
	failed(FI_EACCES, &context);
	OK(fi_close(&mr->fid));
	POST(&pair, fi_write(pair.ep[0], local, 16, NULL, pair.addr[1], addr, key, &context));
	failed(FI_EKEYREJECTED, &context);
}

static void every_registration(void)
{
	static char memory[128];
	struct iovec pieces[2] = {{memory, 32}, {memory + 64, 32}};
	struct fi_mr_attr attr = {.mr_iov = pieces, .iov_count = 2, .access = FI_REMOTE_READ, .requested_key = 5};
	struct fid_mr *mr;
	uint64_t base = 0, key = 0;
	uint8_t raw[64];
	size_t size = 1;
	OK(fi_mr_regv(pair.domain, pieces, 2, FI_SEND | FI_RECV, 0, 0, 0, &mr, NULL));
	OK(fi_close(&mr->fid));
	OK(fi_mr_regattr(pair.domain, &attr, 0, &mr));
	ANSWERS(fi_mr_raw_attr(mr, &base, raw, &size, 0), -FI_ETOOSMALL);
	CHECK(size <= sizeof raw);
	OK(fi_mr_raw_attr(mr, &base, raw, &size, 0));
	OK(fi_mr_map_raw(pair.domain, base, raw, size, &key, 0));
	CHECK(key == fi_mr_key(mr));
	OK(fi_mr_unmap_key(pair.domain, key));
	OK(fi_mr_enable(mr));
	OK(fi_close(&mr->fid));
	/* No bytes, and empty pieces. */
	OK(fi_mr_reg(pair.domain, memory, 0, FI_REMOTE_READ, 0, 0, 0, &mr, NULL));
	OK(fi_close(&mr->fid));
	OK(fi_mr_reg(pair.domain, NULL, 0, FI_SEND, 0, 0, 0, &mr, NULL));
	OK(fi_close(&mr->fid));
	pieces[1].iov_len = 0;
	OK(fi_mr_regv(pair.domain, pieces, 2, FI_REMOTE_READ, 0, 0, 0, &mr, NULL));
	OK(fi_close(&mr->fid));
	ANSWERS(fi_mr_regv(pair.domain, pieces, 0, FI_SEND, 0, 0, 0, &mr, NULL), -FI_EINVAL);
	attr.iface = FI_HMEM_CUDA;
	CHECK(fi_mr_regattr(pair.domain, &attr, 0, &mr) < 0);
}

/* The idiom of OpenSHMEM and of MPI's dynamic windows: what is not mapped is an error for the peer, and only that. */
static void the_whole_address_space(void)
{
	static char target[100000], from[100000];
	static const char constant[] = "it stays as it is";
	static const size_t lengths[] = {256, SIZE_MAX};
	struct fid_mr *mr;
	int context;
	memset(from, 7, sizeof from);
	for (int at = 0; at < 2; at++) {
		OK(fi_mr_reg(pair.domain, NULL, lengths[at], FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 9, 0, &mr, NULL));
		uint64_t key = fi_mr_key(mr);
		for (size_t len = 8; at == 1 && len <= sizeof target; len += sizeof target - 8) {
			memset(target, 0, sizeof target);
			POST(&pair, fi_write(pair.ep[0], from, len, NULL, pair.addr[1], (uintptr_t)target, key, &context));
			ended(0, FI_RMA | FI_WRITE, &context);
			CHECK(!memcmp(target, from, len));
			POST(&pair, fi_read(pair.ep[0], from, len, NULL, pair.addr[1], (uintptr_t)target, key, &context));
			ended(0, FI_RMA | FI_READ, &context);
			POST(&pair, fi_write(pair.ep[0], from, len, NULL, pair.addr[1], 4096, key, &context));
			failed(FI_EACCES, &context);
		}
		POST(&pair, fi_write(pair.ep[0], from, 8, NULL, pair.addr[1], 0, key, &context));
		failed(FI_EACCES, &context);
		POST(&pair, fi_read(pair.ep[0], from, 8, NULL, pair.addr[1], 0, key, &context));
		failed(FI_EACCES, &context);
		POST(&pair, fi_write(pair.ep[0], from, 8, NULL, pair.addr[1], (uintptr_t)constant, key, &context));
		failed(FI_EACCES, &context);
		OK(fi_close(&mr->fid));
	}
}

int main(void)
{
	pair_open(&pair, FI_MSG | FI_RMA);
	every_call();
	every_registration();
	the_whole_address_space();
	pair_close(&pair);
	return 0;
}
