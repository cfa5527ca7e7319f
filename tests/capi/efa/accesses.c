/* Accesses between two processes over efa, each on the library that it is started with.
 *
 *	accesses own|access SOCKET
 *
 * One owns a region, the other writes to it, with data and without, reads it and changes it. They meet at a Unix socket,
 * over which the accessing process says what the owner must find.
 */
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "side.h"

enum { LONGEST = 1 << 20, WORD_AT = LONGEST, REGION = LONGEST + 64 };
static const size_t LENGTHS[] = {8, 4000, 65536, LONGEST};

/* What the owner is told. */
enum kind { HOLDS, DATA, MESSAGE, END };
struct order {
	enum kind kind;
	size_t len;
	uint64_t seed; /* of the bytes; the data */
};

/* What each tells the other at first. */
struct greeting {
	size_t len;
	char name[256];
	uint64_t address, key;
};

static struct fid_cq *cq;
static struct fid_ep *ep;
static fi_addr_t peer;
static struct fi_cq_data_entry arrived[16]; /* not asked for yet */
static int arrivals, sent;

static uint8_t byte_of(uint64_t seed, size_t at) { return (uint8_t)((seed + at) * 0x9e3779b97f4a7c15ULL >> 56); }

static void fill(uint8_t *bytes, size_t len, uint64_t seed)
{
	for (size_t at = 0; at < len; at++)
		bytes[at] = byte_of(seed, at);
}

static void compare(const uint8_t *bytes, size_t len, uint64_t seed)
{
	for (size_t at = 0; at < len; at++)
		if (bytes[at] != byte_of(seed, at)) {
			fprintf(stderr, "byte %zu of %zu: %#x, wanted %#x\n", at, len, bytes[at], byte_of(seed, at));
			exit(1);
		}
}

static void poll_queue(void)
{
	struct fi_cq_data_entry entry;
	struct fi_cq_err_entry error = {0};
	ssize_t answer = fi_cq_read(cq, &entry, 1);
	if (answer == -FI_EAVAIL) {
		fi_cq_readerr(cq, &error, 0);
		fprintf(stderr, "an operation failed: %s\n", fi_strerror(error.err));
		exit(1);
	}
	if (answer == -FI_EAGAIN)
		return;
	ANSWERS(answer, 1);
	if (entry.flags & (FI_REMOTE_CQ_DATA | FI_RECV)) {
		CHECK(arrivals < 16);
		arrived[arrivals++] = entry;
	} else
		sent++;
}

/* Polls until `condition`, 20 s at most. */
#define UNTIL(condition)                         \
	do {                                     \
		double end_ = now() + 20;        \
		while (!(condition)) {           \
			CHECK(now() < end_);     \
			poll_queue();            \
		}                                \
	} while (0)

#define AGAIN(call)                              \
	do {                                     \
		ssize_t posted_;                 \
		double end_ = now() + 20;        \
		while ((posted_ = (call)) == -FI_EAGAIN && now() < end_) \
			poll_queue();            \
		ANSWERS(posted_, 0);             \
	} while (0)

/* Posts, and waits for the end. */
#define DONE(call)                               \
	do {                                     \
		int before_ = sent;              \
		AGAIN(call);                     \
		UNTIL(sent > before_);           \
	} while (0)

static void tell(int socket, const void *bytes, size_t len) { ANSWERS(write(socket, bytes, len), len); }

/* Hears from the other process, and polls meanwhile. */
static void hear(int socket, void *bytes, size_t len)
{
	ssize_t got = -1;
	UNTIL((got = recv(socket, bytes, len, MSG_DONTWAIT)) >= 0 || errno != EAGAIN);
	ANSWERS(got, len);
}

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
	AGAIN(fi_recv(ep, buffer, LONGEST, desc, FI_ADDR_UNSPEC, NULL));
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
			AGAIN(fi_recv(ep, buffer, LONGEST, desc, FI_ADDR_UNSPEC, NULL));
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

static int meet(const char *path, int owner)
{
	struct sockaddr_un at = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	double end = now() + 20;
	CHECK(fd >= 0 && strlen(path) < sizeof at.sun_path);
	strcpy(at.sun_path, path);
	if (!owner) {
		while (connect(fd, (struct sockaddr *)&at, sizeof at))
			CHECK(now() < end && !usleep(10000));
		return fd;
	}
	OK(bind(fd, (struct sockaddr *)&at, sizeof at));
	OK(listen(fd, 1));
	fd = accept(fd, NULL, NULL);
	CHECK(fd >= 0);
	OK(unlink(path));
	return fd;
}

int main(int count, char **args)
{
	CHECK(count == 3);
	int owner = !strcmp(args[1], "own");
	int socket = meet(args[2], owner);

	struct side side = side_open(FI_VERSION(1, 17), FI_MSG | FI_RMA | FI_ATOMIC);
	/* Otherwise no device would find the region. */
	CHECK(side.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR && side.info->domain_attr->mr_mode & FI_MR_PROV_KEY);
	side_enable(&side);
	ep = side.ep;
	cq = side.cq;
	struct fid_mr *mr, *local;

	uint8_t *region = aligned_alloc(4096, (REGION + 4095) & ~4095), *buffer = aligned_alloc(4096, LONGEST);
	CHECK(region && buffer);
	memset(region, 0, REGION);
	*(uint64_t *)(region + WORD_AT) = 100;
	OK(fi_mr_reg(side.domain, region, REGION, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 1, 0, &mr, NULL));
	OK(fi_mr_reg(side.domain, buffer, LONGEST, FI_SEND | FI_RECV | FI_READ | FI_WRITE, 0, 2, 0, &local, NULL));

	struct greeting mine = {sizeof mine.name, {0}, (uintptr_t)region, fi_mr_key(mr)}, theirs;
	OK(fi_getname(&ep->fid, mine.name, &mine.len));
	tell(socket, &mine, sizeof mine);
	hear(socket, &theirs, sizeof theirs);
	ANSWERS(fi_av_insert(side.av, theirs.name, 1, &peer, 0, NULL), 1);

	if (owner)
		own(socket, region, buffer, fi_mr_desc(local));
	else
		access_all(socket, theirs.address, theirs.key, buffer, fi_mr_desc(local));

	side_close(&side, mr, local);
	return 0;
}
