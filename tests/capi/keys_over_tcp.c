/* Authorization keys over tcp: ends with one key talk, by TLS; others are refused in time. What is on the wire is seen
 * by a relay between two ends. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"

#define LEN 100000
#define TIMEOUT 20 /* seconds */
#define REFUSED_IN 10 /* seconds: two for a peer of C, or five for one that says nothing, on a busy machine */

static const char MARK[] = "nobody reads this mark";

struct end {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_cq *cq;
	struct fid_av *av;
	struct fid_ep *ep;
	struct fid_mr *mr;
	struct sockaddr_in name;
	unsigned char in[LEN], out[LEN], memory[LEN];
};

static struct fi_info *info_of(const char *key)
{
	struct fi_info *hints = fi_allocinfo(), *info = NULL;
	struct sockaddr_in *own = calloc(1, sizeof *own);
	CHECK(hints && own);
	own->sin_family = AF_INET;
	own->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	hints->caps = FI_MSG | FI_RMA;
	hints->addr_format = FI_SOCKADDR_IN;
	hints->src_addr = own;
	hints->src_addrlen = sizeof *own;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->fabric_attr->prov_name = strdup("tcp");
	if (key) {
		hints->ep_attr->auth_key = (uint8_t *)strdup(key);
		hints->ep_attr->auth_key_size = strlen(key);
	}
	OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
	fi_freeinfo(hints);
	return info;
}

/* `key` may be NULL. */
static void open_end(struct end *end, const char *key)
{
	struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_MSG};
	struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
	size_t len = sizeof end->name;
	end->info = info_of(key);
	if (key) {
		ANSWERS(end->info->ep_attr->auth_key_size, strlen(key));
		CHECK(!memcmp(end->info->ep_attr->auth_key, key, strlen(key)));
	}
	OK(fi_fabric(end->info->fabric_attr, &end->fabric, NULL));
	OK(fi_domain(end->fabric, end->info, &end->domain, NULL));
	OK(fi_cq_open(end->domain, &cq_attr, &end->cq, NULL));
	OK(fi_av_open(end->domain, &av_attr, &end->av, NULL));
	OK(fi_endpoint(end->domain, end->info, &end->ep, NULL));
	OK(fi_ep_bind(end->ep, &end->av->fid, 0));
	OK(fi_ep_bind(end->ep, &end->cq->fid, FI_TRANSMIT | FI_RECV));
	OK(fi_enable(end->ep));
	OK(fi_getname(&end->ep->fid, &end->name, &len));
	OK(fi_mr_reg(end->domain, end->memory, LEN, FI_REMOTE_WRITE | FI_REMOTE_READ, 0, 1, 0, &end->mr, NULL));
	for (size_t at = 0; at < LEN; at++)
		end->out[at] = (unsigned char)MARK[at % sizeof MARK];
	memset(end->in, 0, LEN);
	memset(end->memory, 0, LEN);
}

static void close_end(struct end *end)
{
	OK(fi_close(&end->mr->fid));
	OK(fi_close(&end->ep->fid));
	OK(fi_close(&end->av->fid));
	OK(fi_close(&end->cq->fid));
	OK(fi_close(&end->domain->fid));
	OK(fi_close(&end->fabric->fid));
	fi_freeinfo(end->info);
}

static fi_addr_t insert(struct end *end, const struct sockaddr_in *name)
{
	fi_addr_t addr;
	ANSWERS(fi_av_insert(end->av, name, 1, &addr, 0, NULL), 1);
	return addr;
}

static void drive(struct end *other)
{
	ssize_t answer = fi_cq_read(other->cq, NULL, 0);
	CHECK(answer == 0 || answer == -FI_EAGAIN || answer == -FI_EAVAIL);
}

/* The result of the next operation of `end`: 0, or its error. */
static int result_of(struct end *end, struct end *other, double seconds)
{
	struct fi_cq_msg_entry entry;
	struct fi_cq_err_entry error = {0};
	for (double until = now() + seconds; now() < until; drive(other)) {
		ssize_t answer = fi_cq_read(end->cq, &entry, 1);
		if (answer == -FI_EAGAIN)
			continue;
		if (answer == 1)
			return 0;
		ANSWERS(answer, -FI_EAVAIL);
		ANSWERS(fi_cq_readerr(end->cq, &error, 0), 1);
		return error.err;
	}
	fprintf(stderr, "no result in %.0f s\n", seconds);
	exit(1);
}

#define POSTED(end, other, call)                                                          \
	do {                                                                              \
		ssize_t posted_;                                                          \
		double until_ = now() + TIMEOUT;                                          \
		while ((posted_ = (call)) == -FI_EAGAIN && now() < until_) {              \
			drive(end);                                                       \
			drive(other);                                                     \
		}                                                                         \
		ANSWERS(posted_, 0);                                                      \
	} while (0)

/* A message from one end, by this name of the other. */
static void message(struct end *from, fi_addr_t to, struct end *at)
{
	memset(at->in, 0, LEN);
	POSTED(at, from, fi_recv(at->ep, at->in, LEN, NULL, FI_ADDR_UNSPEC, NULL));
	POSTED(from, at, fi_send(from->ep, from->out, LEN, NULL, to, NULL));
	ANSWERS(result_of(from, at, TIMEOUT), 0);
	ANSWERS(result_of(at, from, TIMEOUT), 0);
	CHECK(!memcmp(from->out, at->in, LEN));
}

/* A write, and a read of the same memory. */
static void accesses(struct end *from, fi_addr_t to, struct end *at)
{
	uint64_t addr = at->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)at->memory : 0;
	uint64_t key = fi_mr_key(at->mr);
	struct iovec iov = {from->out, LEN};
	struct fi_rma_iov rma = {addr, LEN, key};
	struct fi_msg_rma msg = {&iov, NULL, 1, to, &rma, 1, NULL, 0};
	POSTED(from, at, fi_writemsg(from->ep, &msg, FI_COMPLETION | FI_DELIVERY_COMPLETE));
	ANSWERS(result_of(from, at, TIMEOUT), 0);
	CHECK(!memcmp(from->out, at->memory, LEN));
	memset(from->in, 0, LEN);
	POSTED(from, at, fi_read(from->ep, from->in, LEN, NULL, to, addr, key, NULL));
	ANSWERS(result_of(from, at, TIMEOUT), 0);
	CHECK(!memcmp(from->in, at->memory, LEN));
}

/* Between a caller and an end, in a thread of its own: passes all bytes on, and keeps those of both directions. */
struct relay {
	struct sockaddr_in name, to;
	int listener;
	unsigned char kept[2][16 * LEN];
	size_t len[2];
	pthread_t thread;
};

static void *run_relay(void *argument)
{
	struct relay *relay = argument;
	int ends[2] = {accept(relay->listener, NULL, NULL), socket(AF_INET, SOCK_STREAM, 0)};
	CHECK(ends[0] >= 0 && ends[1] >= 0);
	OK(connect(ends[1], (struct sockaddr *)&relay->to, sizeof relay->to));
	for (bool goes_on = true; goes_on;) {
		struct pollfd found[2] = {{ends[0], POLLIN, 0}, {ends[1], POLLIN, 0}};
		CHECK(poll(found, 2, TIMEOUT * 1000) > 0);
		for (int from = 0; from < 2 && goes_on; from++) {
			unsigned char *kept = relay->kept[from] + relay->len[from];
			ssize_t got, sent;
			if (!found[from].revents)
				continue;
			CHECK(relay->len[from] < sizeof relay->kept[from]);
			got = recv(ends[from], kept, sizeof relay->kept[from] - relay->len[from], 0);
			goes_on = got > 0;
			for (ssize_t at = 0; at < got && goes_on; at += sent) {
				sent = send(ends[!from], kept + at, (size_t)(got - at), MSG_NOSIGNAL);
				goes_on = sent > 0;
				sent = goes_on ? sent : got;
			}
			relay->len[from] += got > 0 ? (size_t)got : 0;
		}
	}
	close(ends[0]);
	close(ends[1]);
	close(relay->listener);
	return NULL;
}

static void start_relay(struct relay *relay, const struct sockaddr_in *to)
{
	socklen_t len = sizeof relay->name;
	memset(relay, 0, sizeof *relay);
	relay->to = *to;
	relay->name.sin_family = AF_INET;
	relay->name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	relay->listener = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(relay->listener >= 0);
	OK(bind(relay->listener, (struct sockaddr *)&relay->name, sizeof relay->name));
	OK(getsockname(relay->listener, (struct sockaddr *)&relay->name, &len));
	OK(listen(relay->listener, 1));
	OK(pthread_create(&relay->thread, NULL, run_relay, relay));
}

static struct end one, two, stranger;
static struct relay relay;

/* Ends of the same key, or of none. Returns whether the payload was seen on the wire. */
static bool is_seen(const char *key)
{
	size_t seen = 0;
	fi_addr_t to, back;
	open_end(&one, key);
	open_end(&two, key);
	start_relay(&relay, &two.name);
	to = insert(&one, &relay.name);
	back = insert(&two, &one.name);
	message(&one, to, &two);
	accesses(&one, to, &two);
	message(&two, back, &one);
	close_end(&one);
	close_end(&two);
	OK(pthread_join(relay.thread, NULL));
	/* At least the message and the write, and the read's answer and the other message. */
	CHECK(relay.len[0] > 2 * LEN && relay.len[1] > 2 * LEN);
	CHECK((relay.kept[0][0] == 22) == (key != NULL)); /* the first byte of TLS */
	for (int from = 0; from < 2; from++)
		for (size_t at = 0; at + sizeof MARK < relay.len[from]; at++)
			seen += !memcmp(relay.kept[from] + at, MARK, sizeof MARK);
	return seen > 0;
}

/* An end that does not agree with `own` on its key is refused, and learns why. */
static void refuses(const char *own, const char *other)
{
	double began;
	fi_addr_t to, back;
	open_end(&one, own);
	open_end(&two, own);
	open_end(&stranger, other);
	to = insert(&stranger, &one.name);
	began = now();
	POSTED(&stranger, &one, fi_send(stranger.ep, stranger.out, LEN, NULL, to, NULL));
	ANSWERS(result_of(&stranger, &one, REFUSED_IN), FI_EKEYREJECTED);
	CHECK(now() - began < REFUSED_IN);
	back = insert(&one, &stranger.name);
	POSTED(&one, &stranger, fi_send(one.ep, one.out, LEN, NULL, back, NULL));
	ANSWERS(result_of(&one, &stranger, REFUSED_IN), FI_EKEYREJECTED);
	/* Those that agree are served. */
	message(&two, insert(&two, &one.name), &one);
	close_end(&stranger);
	close_end(&one);
	close_end(&two);
}

int main(void)
{
	setenv("FI_TCP_SHARED_MEMORY", "0", 1);
	setenv("FI_TCP_ADDRESS_TRANSLATION", "1", 1); /* the relay has an address of its own */
	CHECK(is_seen(NULL));
	CHECK(!is_seen("job 7"));
	refuses("job 7", "job 8");
	refuses("job 7", NULL);
	refuses(NULL, "job 7");
	return 0;
}
