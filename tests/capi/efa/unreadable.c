/* Long messages and writes to an endpoint whose device takes no more registrations, each end on the library that it was
 * started with.
 *
 *	unreadable receive|send SOCKET
 *
 * The receiver of a long message reads it into registered memory. If it cannot register memory, it declines to read
 * (READ_NACK), and the sender sends the message in packets. The device must have room for few registrations
 * (EFA_EMULATOR_REGIONS): the receiver takes all of them, and releases them later.
 */
#include <sys/mman.h>

#include "two.h"

enum { PAGE = 4096, MAX_LEN = 3 << 20, TAG = 7 };
/* Maximum number of one-page regions to register until the device has no room left. */
enum { MAX_REGIONS = 4096 };
/* The device reads some by one request and some by several; one is always sent in packets. */
static const size_t LENGTHS[] = {2 << 20, 100, MAX_LEN, (1 << 20) + 1};
enum { LENGTHS_COUNT = sizeof LENGTHS / sizeof *LENGTHS };

/* Descriptor of the sender's buffer: peers of C's endpoints read registered memory only. */
static void *desc;
/* The targets of writes. Each exchange has its own, so that no registration of one serves the next. */
static struct target {
	uint8_t *memory;
	uint64_t address, key;
} targets[3];

static uint64_t seed_of(size_t number, int kind) { return number * 3 + kind + 1; }

/* Every other message asks for delivery-complete, which uses other packets. */
static uint64_t flags_of(size_t number) { return FI_COMPLETION | (number % 2 ? FI_DELIVERY_COMPLETE : 0); }

static int holds(const uint8_t *bytes, size_t len, uint64_t seed)
{
	size_t at = 0;
	while (at < len && bytes[at] == byte_of(seed, at))
		at++;
	return at == len;
}

static void take(uint8_t *buffer, size_t number, int tagged)
{
	size_t len = LENGTHS[number];
	int before = arrivals;
	memset(buffer, 0, len);
	if (tagged)
		AGAIN(fi_trecv(ep, buffer, MAX_LEN, NULL, peer, TAG, 0, NULL));
	else
		AGAIN(fi_recv(ep, buffer, MAX_LEN, NULL, peer, NULL));
	UNTIL(arrivals > before);
	ANSWERS(arrived[before].len, len);
	compare(buffer, len, seed_of(number, tagged));
	arrivals = 0;
}

static void give(uint8_t *buffer, size_t number, int tagged)
{
	size_t len = LENGTHS[number];
	struct iovec piece = {buffer, len};
	struct fi_msg plain = {.msg_iov = &piece, .desc = &desc, .iov_count = 1, .addr = peer};
	struct fi_msg_tagged message = {
		.msg_iov = &piece, .desc = &desc, .iov_count = 1, .addr = peer, .tag = TAG};
	fill(buffer, len, seed_of(number, tagged));
	if (tagged)
		DONE(fi_tsendmsg(ep, &message, flags_of(number)));
	else
		DONE(fi_sendmsg(ep, &plain, flags_of(number)));
}

/* A write. Devices without remote writes leave it to the receiver. */
static void put(const struct target *target, const uint8_t *buffer, size_t number)
{
	struct iovec piece = {(void *)buffer, LENGTHS[number]};
	struct fi_rma_iov there = {target->address, piece.iov_len, target->key};
	struct fi_msg_rma write = {&piece, &desc, 1, peer, &there, 1, NULL, 0};
	fill(piece.iov_base, piece.iov_len, seed_of(number, 2));
	DONE(fi_writemsg(ep, &write, flags_of(number)));
}

/* Every length as both kinds of message, and as a write. The ends stay in step: the receiver says when it is ready for
 * the next. */
static void exchange(int socket, int receives, const struct target *target, uint8_t *buffer)
{
	char ready = 0;
	for (size_t number = 0; number < LENGTHS_COUNT; number++) {
		for (int tagged = 0; tagged < 2; tagged++)
			if (receives) {
				tell(socket, &ready, 1);
				take(buffer, number, tagged);
			} else {
				hear(socket, &ready, 1);
				give(buffer, number, tagged);
			}
		if (receives) {
			hear(socket, &ready, 1);
			/* The write may complete at its initiator before all of it has arrived. */
			UNTIL(holds(target->memory, LENGTHS[number], seed_of(number, 2)));
		} else {
			put(target, buffer, number);
			tell(socket, &ready, 1);
		}
	}
}

int main(int count, char **args)
{
	CHECK(count == 3);
	int receives = !strcmp(args[1], "receive");
	int socket = meet(args[2], receives);
	struct side side = side_open(FI_VERSION(2, 0), FI_MSG | FI_TAGGED | FI_DIRECTED_RECV | FI_RMA);
	side_enable(&side);
	ep = side.ep;
	cq = side.cq;
	uint8_t *buffer = aligned_alloc(PAGE, MAX_LEN);
	CHECK(buffer);
	greet(&side, socket, 0, 0);
	struct fid_mr *local = NULL, *remote[3];
	if (receives) {
		for (int time = 0; time < 3; time++) {
			struct target *target = &targets[time];
			target->memory = aligned_alloc(PAGE, MAX_LEN);
			CHECK(target->memory);
			OK(fi_mr_reg(side.domain, target->memory, MAX_LEN, FI_REMOTE_WRITE, 0, MAX_REGIONS + 1 + time,
				     0, &remote[time], NULL));
			target->address = (uintptr_t)target->memory;
			target->key = fi_mr_key(remote[time]);
		}
		tell(socket, targets, sizeof targets);
	} else {
		OK(fi_mr_reg(side.domain, buffer, MAX_LEN, FI_SEND | FI_WRITE, 0, MAX_REGIONS + 1, 0, &local, NULL));
		desc = fi_mr_desc(local);
		hear(socket, targets, sizeof targets);
	}

	exchange(socket, receives, &targets[0], buffer);
	if (receives) {
		/* A new buffer: a cache may still hold the registration of the old one. */
		uint8_t *other = mmap(NULL, MAX_LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		/* Every other page, so that no two regions are adjacent and can be merged. */
		uint8_t *pages = mmap(NULL, 2 * MAX_REGIONS * PAGE, PROT_READ | PROT_WRITE,
				      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		struct fid_mr *regions[MAX_REGIONS];
		size_t taken = 0;
		CHECK(other != MAP_FAILED && pages != MAP_FAILED);
		/* C's library releases the registration of the last message some time after its completion. */
		for (double end = now() + 0.3; now() < end; poll_queue())
			while (taken < MAX_REGIONS && !fi_mr_reg(side.domain, pages + 2 * taken * PAGE, PAGE,
							  FI_REMOTE_READ, 0, taken + 1, 0, &regions[taken], NULL))
				taken++;
		CHECK(taken);
		exchange(socket, 1, &targets[1], other);
		while (taken)
			OK(fi_close(&regions[--taken]->fid));
	} else
		exchange(socket, 0, &targets[1], buffer);
	exchange(socket, receives, &targets[2], buffer);
	for (int time = 0; time < 3 && receives; time++)
		OK(fi_close(&remote[time]->fid));
	side_close(&side, local, NULL);
	return 0;
}
