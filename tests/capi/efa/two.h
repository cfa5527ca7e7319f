/* Two processes, each with one endpoint of provider efa. They meet at a Unix socket, over which one tells the other what to
 * expect, and poll their queues meanwhile.
 */
#ifndef TWO_H
#define TWO_H

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "side.h"

/* The first message of each. */
struct greeting {
	size_t len;
	char name[256];
	uint64_t address, key;
};

static struct fid_cq *cq;
static struct fid_ep *ep;
static fi_addr_t peer;
static struct fi_cq_data_entry arrived[16]; /* completions that nobody has waited for yet */
static int arrivals, sent;

static inline uint8_t byte_of(uint64_t seed, size_t at) { return (uint8_t)((seed + at) * 0x9e3779b97f4a7c15ULL >> 56); }

static inline void fill(uint8_t *bytes, size_t len, uint64_t seed)
{
	for (size_t at = 0; at < len; at++)
		bytes[at] = byte_of(seed, at);
}

static inline void compare(const uint8_t *bytes, size_t len, uint64_t seed)
{
	for (size_t at = 0; at < len; at++)
		if (bytes[at] != byte_of(seed, at)) {
			fprintf(stderr, "byte %zu of %zu: %#x, wanted %#x\n", at, len, bytes[at], byte_of(seed, at));
			exit(1);
		}
}

static inline void poll_queue(void)
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

/* Posts an operation, and waits for its completion. */
#define DONE(call)                               \
	do {                                     \
		int before_ = sent;              \
		AGAIN(call);                     \
		UNTIL(sent > before_);           \
	} while (0)

static inline void tell(int socket, const void *bytes, size_t len) { ANSWERS(write(socket, bytes, len), len); }

/* Receives from the other process, and polls meanwhile. */
static inline void hear(int socket, void *bytes, size_t len)
{
	ssize_t got = -1;
	UNTIL((got = recv(socket, bytes, len, MSG_DONTWAIT)) >= 0 || errno != EAGAIN);
	ANSWERS(got, len);
}

static inline int meet(const char *path, int first)
{
	struct sockaddr_un at = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	double end = now() + 20;
	CHECK(fd >= 0 && strlen(path) < sizeof at.sun_path);
	strcpy(at.sun_path, path);
	if (!first) {
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

/* Exchanges names with the other process, each with an address and a key. */
static inline struct greeting greet(const struct side *side, int socket, uint64_t address, uint64_t key)
{
	struct greeting mine = {sizeof mine.name, {0}, address, key}, theirs;
	OK(fi_getname(&ep->fid, mine.name, &mine.len));
	tell(socket, &mine, sizeof mine);
	hear(socket, &theirs, sizeof theirs);
	ANSWERS(fi_av_insert(side->av, theirs.name, 1, &peer, 0, NULL), 1);
	return theirs;
}

#endif
