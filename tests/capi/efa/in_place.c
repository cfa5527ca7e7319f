/* Messages to an endpoint that may receive in place, each end on the library that it is started with.
 *
 *	in_place receive|send PATH [in-place]
 *
 * Both are opened for untagged messages of one packet only. Endpoints of libfabric 1.22 to 2.5 then receive messages
 * at a queue pair of their own, without headers, and fail if another kind arrives. With `in-place` the program checks
 * that its library does so: fi_cancel is not supported then. The ends exchange their names in files beside PATH.
 */
#include <stdbool.h>
#include <unistd.h>

#include "side.h"

enum { MAX_LEN = 8000, COUNT = 200, POSTED = 16 };

static struct fid_ep *ep;
static struct fid_cq *cq;
static uint8_t *memory;
static void *desc;

static size_t length(size_t number) { return number * 977 % (MAX_LEN + 1); }
static uint8_t byte_of(size_t number, size_t at) { return (uint8_t)(number * 31 + at * 7); }

static void post(size_t slot)
{
	OK(fi_recv(ep, memory + slot * MAX_LEN, MAX_LEN, desc, FI_ADDR_UNSPEC, (void *)slot));
}

/* The next completion. */
static struct fi_cq_data_entry next(void)
{
	struct fi_cq_data_entry entry = {0};
	double end = now() + 30;
	while (now() < end) {
		ssize_t answer = fi_cq_read(cq, &entry, 1);
		if (answer == 1)
			return entry;
		if (answer == -FI_EAVAIL) {
			struct fi_cq_err_entry error = {0};
			fi_cq_readerr(cq, &error, 0);
			fprintf(stderr, "%s (%d)\n", fi_strerror(error.err), error.prov_errno);
			exit(1);
		}
		ANSWERS(answer, -FI_EAGAIN);
	}
	fprintf(stderr, "no completion in time\n");
	exit(1);
}

static void send_one(fi_addr_t to, size_t number)
{
	size_t len = length(number);
	for (size_t at = 0; at < len; at++)
		memory[at] = byte_of(number, at);
	double end = now() + 30;
	ssize_t answer;
	while ((answer = fi_senddata(ep, memory, len, desc, number, to, NULL)) == -FI_EAGAIN && now() < end)
		fi_cq_read(cq, NULL, 0);
	ANSWERS(answer, 0);
	CHECK(next().flags & FI_SEND);
}

static void take(size_t wanted)
{
	struct fi_cq_data_entry entry = next();
	size_t slot = (size_t)entry.op_context;
	CHECK(entry.flags & FI_RECV && entry.flags & FI_REMOTE_CQ_DATA);
	ANSWERS(entry.data, wanted);
	ANSWERS(entry.len, length(wanted));
	for (size_t at = 0; at < entry.len; at++)
		CHECK(memory[slot * MAX_LEN + at] == byte_of(wanted, at));
	post(slot);
}

/* Reads a name of 32 bytes from a file that appears when it is complete. */
static void tell(const char *path, const char *role, const void *name)
{
	char file[256], unfinished[sizeof file + 1];
	snprintf(file, sizeof file, "%s.%s", path, role);
	snprintf(unfinished, sizeof unfinished, "%s~", file);
	FILE *out = fopen(unfinished, "w");
	CHECK(out && fwrite(name, 32, 1, out) == 1);
	OK(fclose(out));
	OK(rename(unfinished, file));
}

static void hear(const char *path, const char *role, void *name)
{
	char file[256];
	snprintf(file, sizeof file, "%s.%s", path, role);
	double end = now() + 30;
	FILE *in;
	while (!(in = fopen(file, "r")) && now() < end)
		usleep(1000);
	CHECK(in && fread(name, 32, 1, in) == 1);
	fclose(in);
	unlink(file);
}

int main(int argc, char **argv)
{
	CHECK(argc >= 3);
	int receives = !strcmp(argv[1], "receive"), in_place = argc > 3;
	struct side side = side_open(FI_VERSION(2, 0), FI_MSG);
	struct fid_mr *mr;
	ep = side.ep;
	cq = side.cq;
	size_t longest = MAX_LEN;
	bool shared = false;
	OK(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_MAX_MSG_SIZE, &longest, sizeof longest));
	OK(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_SHARED_MEMORY_PERMITTED, &shared, sizeof shared));
	side_enable(&side);
	memory = calloc(POSTED, MAX_LEN);
	OK(fi_mr_reg(side.domain, memory, POSTED * MAX_LEN, FI_SEND | FI_RECV, 0, 1, 0, &mr, NULL));
	desc = fi_mr_desc(mr);
	char name[64];
	size_t len = sizeof name;
	OK(fi_getname(&ep->fid, name, &len));
	ANSWERS(len, 32);
	fi_addr_t peer;
	/* The sender receives the reply in the last slot. */
	for (size_t slot = receives ? 0 : POSTED - 1; slot < POSTED; slot++)
		post(slot);
	if (in_place)
		ANSWERS(fi_cancel(&ep->fid, (void *)(POSTED - 1)), -FI_EOPNOTSUPP);
	tell(argv[2], argv[1], name);
	hear(argv[2], receives ? "send" : "receive", name);
	ANSWERS(fi_av_insert(side.av, name, 1, &peer, 0, NULL), 1);
	for (size_t number = 0; number < COUNT; number++) {
		/* One at a time: the device does not keep packets in order. */
		if (receives)
			take(number);
		else
			send_one(peer, number);
	}
	if (receives)
		send_one(peer, 7);
	else
		take(7);
	side_close(&side, mr, NULL);
	return 0;
}
