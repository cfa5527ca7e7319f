/* One end of a conversation over tcp; the other end runs on another library. Arguments: the role, `serve` or `call`;
 * the conversation, `rdm`, `msg`, `survive` (a client that is killed, and its successor) or `truncate`; the provider;
 * and the first of some free ports of loopback. */
#include <signal.h>

#include "end.h"

static bool serves;

/* The server can be called: its line on standard output says so. */
static void ready(void)
{
	if (serves) {
		puts("ready");
		fflush(stdout);
	}
}

static unsigned char tx[LONGEST], rx[LONGEST], memory[2 * LONGEST];

/* Where the server's memory is. */
struct place {
	uint64_t addr, key;
};

/* Messages of many lengths, which the server sends back. */
static void echo(struct end *end, uint64_t tag, uint64_t data, uint64_t flags)
{
	static const size_t SIZES[] = {0, 1, 64, 128, 129, 4096, 16384, 16385, 100000, LONGEST};
	for (unsigned at = 0; at < sizeof SIZES / sizeof *SIZES; at++) {
		size_t len = SIZES[at];
		struct told told;
		fill(tx, len, at + serves);
		post_recv(end, rx, sizeof rx, tag);
		if (!serves)
			post_send(end, tx, len, tag, data, flags);
		told = done(end, &receiving);
		ANSWERS(told.len, len);
		holds(rx, len, at + !serves);
		CHECK(tag == NO_TAG || told.tag == tag);
		if (data)
			CHECK((told.flags & FI_REMOTE_CQ_DATA) && told.data == data);
		if (serves)
			post_send(end, tx, len, tag, data, flags);
		done(end, &sending);
	}
}

/* Both ends have come here. */
static void meet(struct end *end)
{
	post_recv(end, rx, 4, NO_TAG);
	post_send(end, "meet", 4, NO_TAG, 0, 0);
	ANSWERS(done(end, &receiving).len, 4);
	done(end, &sending);
}

static void write_to(struct end *end, const struct place *place, size_t at, size_t len, uint64_t data, uint64_t flags)
{
	struct iovec iov = {.iov_base = tx, .iov_len = len};
	/* Two pieces, so that the header has more than one. */
	struct fi_rma_iov to[2] = {{place->addr + at, len / 2, place->key},
				   {place->addr + at + len / 2, len - len / 2, place->key}};
	struct fi_msg_rma msg = {.msg_iov = &iov, .iov_count = 1, .addr = end->peer, .rma_iov = to,
				 .rma_iov_count = len > 64 ? 2 : 1, .context = &accessing, .data = data};
	if (len <= 64)
		to[0].len = len;
	POSTED(end, fi_writemsg(end->ep, &msg, flags | FI_COMPLETION | (data ? FI_REMOTE_CQ_DATA : 0)));
	ANSWERS(told_of(end, &accessing).err, 0);
}

/* The client writes to the server's memory, with and without remote data, and reads it. */
static void access_memory(struct end *end)
{
	struct fid_mr *mr = NULL;
	struct place place;
	if (serves) {
		OK(fi_mr_reg(end->domain, memory, sizeof memory, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 0x77, 0, &mr, NULL));
		place.addr = end->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)memory : 0;
		place.key = fi_mr_key(mr);
		post_send(end, &place, sizeof place, NO_TAG, 0, 0);
		done(end, &sending);
		CHECK(told_of(end, NULL).data == 0xABCD);
		holds(memory, 64, 1);
		holds(memory + 4096, LONGEST, 2);
		holds(memory + 4096 + LONGEST, 64, 3);
		meet(end);
		/* C's endpoints take nothing from a peer whose message has no receive yet: nothing is sent until the reads
		 * have ended. */
		post_recv(end, rx, 4, NO_TAG);
		ANSWERS(done(end, &receiving).len, 4);
		OK(fi_close(&mr->fid));
		return;
	}
	post_recv(end, &place, sizeof place, NO_TAG);
	done(end, &receiving);
	fill(tx, 64, 1);
	write_to(end, &place, 0, 64, 0, 0);
	fill(tx, LONGEST, 2);
	write_to(end, &place, 4096, LONGEST, 0, FI_DELIVERY_COMPLETE);
	fill(tx, 64, 3);
	write_to(end, &place, 4096 + LONGEST, 64, 0xABCD, 0);
	meet(end);
	POSTED(end, fi_read(end->ep, rx, 64, NULL, end->peer, place.addr, place.key, &accessing));
	ANSWERS(done(end, &accessing).err, 0);
	holds(rx, 64, 1);
	POSTED(end, fi_read(end->ep, rx, LONGEST, NULL, end->peer, place.addr + 4096, place.key, &accessing));
	ANSWERS(done(end, &accessing).err, 0);
	holds(rx, LONGEST, 2);
	post_send(end, "read", 4, NO_TAG, 0, 0);
	done(end, &sending);
}

/* A key that the server does not know: an error of the access, after which both go on. */
static void be_refused(struct end *end)
{
	if (!serves) {
		POSTED(end, fi_read(end->ep, rx, 64, NULL, end->peer, 0, 0xBAD, &accessing));
		CHECK(told_of(end, &accessing).err);
	}
	echo(end, NO_TAG, 0, 0);
}

/* Both send first, on endpoints that have no connection yet. */
static void call_each_other(struct end *main, const char *provider, int port)
{
	for (int round = 0; round < 8; round++) {
		struct end end;
		int server = port + 2 * round, own = serves ? server : server + 1;
		open_rdm(&end, provider, own, own ^ server ^ (server + 1));
		meet(main);
		meet(&end);
		/* Nobody closes while the other end has not read. */
		meet(main);
		close_end(&end);
	}
}

static void talk_rdm(const char *provider, int port)
{
	struct end end;
	open_rdm(&end, provider, port + !serves, port + serves);
	ready();
	echo(&end, NO_TAG, 0, 0);
	echo(&end, NO_TAG, 0x1122334455667788, FI_DELIVERY_COMPLETE);
	echo(&end, 0x5A5A, 0, 0);
	echo(&end, 7, 0x99, FI_TRANSMIT_COMPLETE);
	access_memory(&end);
	be_refused(&end);
	call_each_other(&end, provider, port + 2);
	close_end(&end);
}

/* The next event, with private data of the other end. */
static uint32_t event_of(struct end *end, struct fi_eq_cm_entry *entry, char *data, size_t room)
{
	char buffer[sizeof *entry + 256];
	uint32_t event;
	double until = now() + PATIENCE;
	ssize_t got;
	do {
		if (end->cq)
			drive(end);
		got = fi_eq_read(end->eq, &event, buffer, sizeof buffer, 0);
	} while (got == -FI_EAGAIN && now() < until);
	if (got == -FI_EAVAIL) {
		struct fi_eq_err_entry error = {0};
		CHECK(fi_eq_readerr(end->eq, &error, 0) > 0);
		CHECK(error.err == FI_ECONNREFUSED && error.err_data_size <= room);
		memcpy(data, error.err_data, error.err_data_size);
		return 0;
	}
	CHECK(got >= (ssize_t)sizeof *entry);
	memcpy(entry, buffer, sizeof *entry);
	CHECK((size_t)got - sizeof *entry <= room);
	memcpy(data, buffer + sizeof *entry, (size_t)got - sizeof *entry);
	return event;
}

static void accept_second(struct end *end, const char *provider, const char *port)
{
	struct fid_pep *pep;
	struct fi_eq_cm_entry entry;
	char data[256] = "";
	open_domain(end, info_of(provider, FI_EP_MSG, port, FI_SOURCE));
	OK(fi_passive_ep(end->fabric, end->info, &pep, NULL));
	OK(fi_pep_bind(pep, &end->eq->fid, 0));
	OK(fi_listen(pep));
	ready();
	CHECK(event_of(end, &entry, data, sizeof data) == FI_CONNREQ && !strcmp(data, "first"));
	OK(fi_reject(pep, entry.info->handle, "no", 3));
	fi_freeinfo(entry.info);
	CHECK(event_of(end, &entry, data, sizeof data) == FI_CONNREQ);
	holds((unsigned char *)data, sizeof data, 5);
	open_endpoint(end, entry.info);
	OK(fi_accept(end->ep, "yes", 4));
	fi_freeinfo(entry.info);
	CHECK(event_of(end, &entry, data, sizeof data) == FI_CONNECTED);
	OK(fi_close(&pep->fid));
}

static void connect_twice(struct end *end, const char *provider, const char *port)
{
	struct fi_eq_cm_entry entry;
	char data[256] = "";
	open_domain(end, info_of(provider, FI_EP_MSG, port, 0));
	open_endpoint(end, end->info);
	OK(fi_connect(end->ep, end->info->dest_addr, "first", 6));
	CHECK(event_of(end, &entry, data, sizeof data) == 0 && !strcmp(data, "no"));
	close_endpoint(end);
	open_endpoint(end, end->info);
	fill((unsigned char *)data, sizeof data, 5);
	OK(fi_connect(end->ep, end->info->dest_addr, data, sizeof data));
	CHECK(event_of(end, &entry, data, sizeof data) == FI_CONNECTED && !strcmp(data, "yes"));
}

static void talk_msg(const char *provider, int port)
{
	struct end end = {0};
	struct fi_eq_cm_entry entry;
	char text[16], data[256];
	snprintf(text, sizeof text, "%d", port);
	if (serves)
		accept_second(&end, provider, text);
	else
		connect_twice(&end, provider, text);
	echo(&end, NO_TAG, 0, 0);
	echo(&end, NO_TAG, 0x99, FI_DELIVERY_COMPLETE);
	access_memory(&end);
	if (!serves)
		OK(fi_shutdown(end.ep, 0));
	else
		CHECK(event_of(&end, &entry, data, sizeof data) == FI_SHUTDOWN);
	close_end(&end);
}

/* The server gets a message of a client that dies in the middle of its next one, and a message of its successor. */
static void survive(const char *provider, int port)
{
	struct end end;
	open_rdm(&end, provider, port + !serves, port + serves);
	ready();
	if (!serves) {
		post_recv(&end, rx, sizeof rx, NO_TAG);
		post_send(&end, tx, 64, NO_TAG, 0, 0);
		ANSWERS(done(&end, &receiving).len, 64);
		done(&end, &sending);
		if (getenv("VICTIM")) {
			post_send(&end, tx, sizeof tx, NO_TAG, 0, 0);
			raise(SIGKILL);
		}
		close_end(&end);
		return;
	}
	for (int served = 0; served < 2;) {
		struct told told;
		post_recv(&end, rx, sizeof rx, NO_TAG);
		told = told_of(&end, &receiving);
		if (told.err || told.len != 64)
			continue; /* of the victim's last message */
		post_send(&end, tx, 64, NO_TAG, 0, 0);
		done(&end, &sending);
		served++;
	}
	close_end(&end);
}

/* A message that is longer than its receive is an error there, and what follows arrives. */
static void truncate_message(const char *provider, int port)
{
	struct end end;
	open_rdm(&end, provider, port + !serves, port + serves);
	ready();
	meet(&end);
	if (serves) {
		post_recv(&end, rx, 10, NO_TAG);
		ANSWERS(told_of(&end, &receiving).err, FI_ETRUNC);
	} else {
		post_send(&end, tx, 20000, NO_TAG, 0, FI_DELIVERY_COMPLETE);
		done(&end, &sending);
	}
	echo(&end, NO_TAG, 0, 0);
	close_end(&end);
}

int main(int argc, char **argv)
{
	int port;
	CHECK(argc == 5);
	alarm(40);
	serves = !strcmp(argv[1], "serve");
	port = atoi(argv[4]);
	if (!strcmp(argv[2], "rdm"))
		talk_rdm(argv[3], port);
	else if (!strcmp(argv[2], "msg"))
		talk_msg(argv[3], port);
	else if (!strcmp(argv[2], "survive"))
		survive(argv[3], port);
	else
		truncate_message(argv[3], port);
	return 0;
}
