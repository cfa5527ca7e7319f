/* Atomics between connected endpoints of two processes over verbs, each on the library that it was started with.
 *
 *	atomics own|access ADDRESS
 *
 * One owns a number, listens at ADDRESS, and passes the number's address and key when it accepts. The other changes it,
 * checks the old values, and sends the value that it must have at the end.
 */
#include "../check.h"

enum { ROOM = 4096 };

struct place {
	uint64_t address, key;
};

static struct fid_eq *eq;
static struct fid_cq *cq;
static struct fid_ep *ep;

/* Reads the next event, which must be this one. */
static void event(uint32_t wanted, void *entry, size_t len)
{
	uint32_t kind = 0;
	ssize_t answer = fi_eq_sread(eq, &kind, entry, len, 20000, 0);
	if (answer < 0) {
		struct fi_eq_err_entry error = {0};
		fi_eq_readerr(eq, &error, 0);
		fprintf(stderr, "no event %u: %zd, %s\n", wanted, answer, fi_strerror(error.err));
		exit(1);
	}
	ANSWERS(kind, wanted);
}

/* Waits for the end of an operation. */
static void done(void)
{
	struct fi_cq_data_entry entry;
	struct fi_cq_err_entry error = {0};
	double end = now() + 20;
	ssize_t answer;
	while ((answer = fi_cq_read(cq, &entry, 1)) == -FI_EAGAIN)
		CHECK(now() < end);
	if (answer == -FI_EAVAIL) {
		fi_cq_readerr(cq, &error, 0);
		fprintf(stderr, "an operation failed: %s\n", fi_strerror(error.err));
		exit(1);
	}
	ANSWERS(answer, 1);
}

#define DONE(call)                                \
	do {                                      \
		OK(call);                         \
		done();                           \
	} while (0)

/* C's verbs provider of libfabric 1.17 and 2.1 uses the addresses of operands as their values (2.6 does not). */
static uint64_t meant(const uint64_t *operand, int by_address) { return by_address ? (uintptr_t)operand : *operand; }

static void access_all(const struct place *place, uint64_t *words, void *desc)
{
	uint64_t at = place->address, key = place->key;
	uint64_t *operand = &words[0], *was = &words[1], *compare = &words[2], holds = 100;
	int by_address = 0;

	*operand = holds;
	DONE(fi_atomic(ep, operand, 1, desc, 0, at, key, FI_UINT64, FI_ATOMIC_WRITE, NULL));
	for (int time = 0; time < 20; time++) {
		*operand = 5;
		DONE(fi_fetch_atomic(ep, operand, 1, desc, was, desc, 0, at, key, FI_UINT64, FI_SUM, NULL));
		ANSWERS(*was, holds);
		DONE(fi_fetch_atomic(ep, NULL, 1, NULL, was, desc, 0, at, key, FI_INT64, FI_ATOMIC_READ, NULL));
		if (!time)
			by_address = *was == holds + (uintptr_t)operand;
		holds += meant(operand, by_address);
		ANSWERS(*was, holds);
	}
	if (by_address)
		printf("this library adds the addresses of operands\n");
	/* A compare operand that works for either kind of library. */
	*operand = (uintptr_t)compare;
	DONE(fi_atomic(ep, operand, 1, desc, 0, at, key, FI_UINT64, FI_ATOMIC_WRITE, NULL));
	holds = *operand;
	for (int hits = 0; hits < 2; hits++) {
		/* The address of an operand that does not match, and of one that does. */
		uint64_t *expected = hits ? compare : compare + 1;
		*expected = (uintptr_t)expected;
		*operand = 0x0102030405060708;
		DONE(fi_compare_atomic(ep, operand, 1, desc, expected, desc, was, desc, 0, at, key, FI_UINT64, FI_CSWAP,
				       NULL));
		ANSWERS(*was, holds);
	}
	*operand = meant(operand, by_address);
	DONE(fi_send(ep, operand, sizeof *operand, desc, 0, NULL));
}

/* Checks whether the library offers an operation, and the attributes that it returns. */
static void query(struct fid_domain *domain, enum fi_datatype type, enum fi_op op, uint64_t flags, int wanted)
{
	struct fi_atomic_attr attr = {0};
	int answer = fi_query_atomic(domain, type, op, &attr, flags);
	CHECK(wanted == !answer);
	if (!answer) {
		ANSWERS(attr.count, 1);
		ANSWERS(attr.size, 8);
	}
}

int main(int count, char **args)
{
	CHECK(count == 3);
	int owner = !strcmp(args[1], "own");

	struct fi_info *hints = fi_allocinfo(), *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_pep *pep;
	struct fid_mr *mr;
	struct fi_eq_attr eq_attr = {.wait_obj = FI_WAIT_UNSPEC};
	struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_DATA, .wait_obj = FI_WAIT_NONE};
	_Alignas(16) uint8_t room[sizeof(struct fi_eq_cm_entry) + 256];
	struct fi_eq_cm_entry *entry = (struct fi_eq_cm_entry *)room;

	hints->caps = FI_MSG | FI_RMA | FI_ATOMIC;
	hints->mode = FI_RX_CQ_DATA;
	hints->ep_attr->type = FI_EP_MSG;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->fabric_attr->prov_name = strdup("verbs");
	OK(fi_getinfo(FI_VERSION(1, 17), args[2], "7471", owner ? FI_SOURCE : 0, hints, &info));
	CHECK(info->caps & FI_ATOMIC);
	OK(fi_fabric(info->fabric_attr, &fabric, NULL));
	OK(fi_eq_open(fabric, &eq_attr, &eq, NULL));
	if (owner) {
		OK(fi_passive_ep(fabric, info, &pep, NULL));
		OK(fi_pep_bind(pep, &eq->fid, 0));
		OK(fi_listen(pep));
		fi_freeinfo(info);
		event(FI_CONNREQ, room, sizeof room);
		info = entry->info;
	}
	OK(fi_domain(fabric, info, &domain, NULL));
	query(domain, FI_UINT64, FI_ATOMIC_WRITE, 0, 1);
	query(domain, FI_UINT64, FI_SUM, 0, 0);
	query(domain, FI_UINT64, FI_SUM, FI_FETCH_ATOMIC, 1);
	query(domain, FI_UINT32, FI_SUM, FI_FETCH_ATOMIC, 0);
	query(domain, FI_INT64, FI_CSWAP, FI_COMPARE_ATOMIC, 1);
	query(domain, FI_INT64, FI_MSWAP, FI_COMPARE_ATOMIC, 0);
	OK(fi_cq_open(domain, &cq_attr, &cq, NULL));
	OK(fi_endpoint(domain, info, &ep, NULL));
	OK(fi_ep_bind(ep, &eq->fid, 0));
	OK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	OK(fi_enable(ep));

	/* The number, and the final value that arrives by message. */
	uint64_t *words = aligned_alloc(ROOM, ROOM);
	CHECK(words);
	memset(words, 0, ROOM);
	OK(fi_mr_reg(domain, words, ROOM, FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 1, 0,
		     &mr, NULL));
	if (owner) {
		struct place place = {(uintptr_t)words, fi_mr_key(mr)};
		OK(fi_recv(ep, &words[8], sizeof *words, fi_mr_desc(mr), 0, NULL));
		OK(fi_accept(ep, &place, sizeof place));
		event(FI_CONNECTED, room, sizeof room);
		done();
		CHECK(words[8] && words[0] == words[8]);
	} else {
		OK(fi_connect(ep, info->dest_addr, NULL, 0));
		event(FI_CONNECTED, room, sizeof room);
		struct place place;
		memcpy(&place, entry->data, sizeof place);
		access_all(&place, words, fi_mr_desc(mr));
	}

	OK(fi_close(&ep->fid));
	OK(fi_close(&mr->fid));
	OK(fi_close(&cq->fid));
	OK(fi_close(&domain->fid));
	if (owner)
		OK(fi_close(&pep->fid));
	OK(fi_close(&eq->fid));
	OK(fi_close(&fabric->fid));
	fi_freeinfo(info);
	fi_freeinfo(hints);
	return 0;
}
