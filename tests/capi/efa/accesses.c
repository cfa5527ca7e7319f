/* Accesses between two processes over efa, each on the library that it was started with.
 *
 *	accesses own|access SOCKET
 *
 * One process owns a region. The other writes to it (with and without remote CQ data), reads it, and changes it by
 * atomics. They meet at a Unix socket, over which the accessing process tells the owner what to expect.
 */
#include "two.h"

enum { MAX_LEN = 1 << 20, WORD_AT = MAX_LEN, REGION = MAX_LEN + 64 };
static const size_t LENGTHS[] = {8, 4000, 65536, MAX_LEN};

/* The message to the owner. */
enum kind { HOLDS, DATA, MESSAGE, END };
struct order {
	enum kind kind;
	size_t len;
	uint64_t seed; /* of the bytes; the data */
};

static void order(int socket, enum kind kind, size_t len, uint64_t seed)
{
	struct order order = {kind, len, seed};
	char done;
	tell(socket, &order, sizeof order);
	hear(socket, &done, 1);
}

static void own(int socket, const uint8_t *region, uint8_t *buffer, void *desc)
{
	struct order order = {0};
	int taken = 0;
	AGAIN(fi_recv(ep, buffer, MAX_LEN, desc, FI_ADDR_UNSPEC, NULL));
	while (order.kind != END) {
		hear(socket, &order, sizeof order);
		if (order.kind == HOLDS)
			compare(region, order.len, order.seed);
		if (order.kind == DATA || order.kind == MESSAGE) {
			UNTIL(arrivals > taken);
			const struct fi_cq_data_entry *entry = &arrived[taken++];
			CHECK(entry->flags & FI_REMOTE_CQ_DATA);
			CHECK(!(entry->flags & FI_RECV) == (order.kind == DATA));
			ANSWERS(entry->data, order.seed);
		}
		if (order.kind == MESSAGE) {
			compare(buffer, order.len, order.seed);
			AGAIN(fi_recv(ep, buffer, MAX_LEN, desc, FI_ADDR_UNSPEC, NULL));
		}
		tell(socket, "", 1);
	}
}

static void access_all(int socket, uint64_t address, uint64_t key, uint8_t *buffer, void *desc)
{
	for (size_t at = 0; at < sizeof LENGTHS / sizeof *LENGTHS; at++) {
		size_t len = LENGTHS[at];
		/* Each byte of the data differs. */
		uint32_t data = 0x01020304 + (uint32_t)at * 0x10101010;

		fill(buffer, len, data);
		DONE(fi_writedata(ep, buffer, len, desc, data, peer, address, key, NULL));
		order(socket, DATA, len, data);
		order(socket, HOLDS, len, data);

		struct iovec piece = {buffer, len};
		struct fi_rma_iov target = {address, len, key};
		struct fi_msg_rma write = {&piece, &desc, 1, peer, &target, 1, NULL, 0};
		fill(buffer, len, data + 1);
		DONE(fi_writemsg(ep, &write, FI_COMPLETION | FI_DELIVERY_COMPLETE));
		order(socket, HOLDS, len, data + 1);

		memset(buffer, 0, len);
		DONE(fi_read(ep, buffer, len, desc, peer, address, key, NULL));
		compare(buffer, len, data + 1);

		fill(buffer, len, data + 2);
		DONE(fi_senddata(ep, buffer, len, desc, data + 2, peer, NULL));
		order(socket, MESSAGE, len, data + 2);
	}
	fill(buffer, 16, 0x0a0b0c0d);
	AGAIN(fi_inject_writedata(ep, buffer, 16, 0x0a0b0c0d, peer, address, key));
	order(socket, DATA, 16, 0x0a0b0c0d);
	order(socket, HOLDS, 16, 0x0a0b0c0d);

	uint64_t *words = (uint64_t *)buffer;
	for (uint64_t time = 0; time < 3; time++) {
		words[0] = 5;
		DONE(fi_fetch_atomic(ep, &words[0], 1, desc, &words[1], desc, peer, address + WORD_AT, key, FI_UINT64, FI_SUM,
				     NULL));
		ANSWERS(words[1], 100 + 5 * time);
	}
	order(socket, END, 0, 0);
}

int main(int count, char **args)
{
	CHECK(count == 3);
	int owner = !strcmp(args[1], "own");
	int socket = meet(args[2], owner);

	struct side side = side_open(FI_VERSION(1, 17), FI_MSG | FI_RMA | FI_ATOMIC);
	/* Otherwise no device could find the region. */
	CHECK(side.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR && side.info->domain_attr->mr_mode & FI_MR_PROV_KEY);
	side_enable(&side);
	ep = side.ep;
	cq = side.cq;
	struct fid_mr *mr, *local;

	uint8_t *region = aligned_alloc(4096, (REGION + 4095) & ~4095), *buffer = aligned_alloc(4096, MAX_LEN);
	CHECK(region && buffer);
	memset(region, 0, REGION);
	*(uint64_t *)(region + WORD_AT) = 100;
	OK(fi_mr_reg(side.domain, region, REGION, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 1, 0, &mr, NULL));
	OK(fi_mr_reg(side.domain, buffer, MAX_LEN, FI_SEND | FI_RECV | FI_READ | FI_WRITE, 0, 2, 0, &local, NULL));

	struct greeting theirs = greet(&side, socket, (uintptr_t)region, fi_mr_key(mr));

	if (owner)
		own(socket, region, buffer, fi_mr_desc(local));
	else
		access_all(socket, theirs.address, theirs.key, buffer, fi_mr_desc(local));

	side_close(&side, mr, local);
	return 0;
}
