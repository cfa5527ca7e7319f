/* Messages in every shape of call, tagged and not: data, order, truncation, peek, claim, cancel, multi-receive. */
#include "check.h"

static struct pair pair;

/* One call sends "hello" with `data`; the receiver gets it. */
static void received(const char *text, uint64_t tag, int has_data, void *context)
{
	struct fi_cq_tagged_entry entry;
	ANSWERS(completion(&pair, 1, &entry), 1);
	CHECK(entry.op_context == context);
	CHECK(entry.len == strlen(text));
	CHECK(entry.flags & FI_RECV);
	CHECK(!!(entry.flags & FI_REMOTE_CQ_DATA) == has_data);
	if (has_data)
		CHECK(entry.data == 0x1122334455667788);
	if (entry.flags & FI_TAGGED)
		CHECK(entry.tag == tag);
}

static void sent(void *context)
{
	struct fi_cq_tagged_entry entry;
	ANSWERS(completion(&pair, 0, &entry), 1);
	CHECK(entry.op_context == context && entry.flags & FI_SEND);
}

static void every_call_of_messages(void)
{
	const uint64_t data = 0x1122334455667788;
	char in[16], out[] = "hello";
	int rx, tx;
	struct iovec halves[2] = {{out, 2}, {out + 2, 3}}, place[2] = {{in, 1}, {in + 1, 15}};
	struct fi_msg send = {halves, NULL, 2, pair.addr[1], &tx, data};
	struct fi_msg recv = {place, NULL, 2, FI_ADDR_UNSPEC, &rx, 0};
	for (int call = 0; call < 7; call++) {
		memset(in, 0, sizeof in);
		switch (call % 3) {
		case 0: POST(&pair, fi_recv(pair.ep[1], in, sizeof in, NULL, FI_ADDR_UNSPEC, &rx)); break;
		case 1: POST(&pair, fi_recvv(pair.ep[1], place, NULL, 2, FI_ADDR_UNSPEC, &rx)); break;
		case 2: POST(&pair, fi_recvmsg(pair.ep[1], &recv, FI_COMPLETION)); break;
		}
		switch (call) {
		case 0: POST(&pair, fi_send(pair.ep[0], out, 5, NULL, pair.addr[1], &tx)); break;
		case 1: POST(&pair, fi_sendv(pair.ep[0], halves, NULL, 2, pair.addr[1], &tx)); break;
		case 2: POST(&pair, fi_sendmsg(pair.ep[0], &send, FI_COMPLETION)); break;
		case 3: POST(&pair, fi_senddata(pair.ep[0], out, 5, NULL, data, pair.addr[1], &tx)); break;
		case 4: POST(&pair, fi_sendmsg(pair.ep[0], &send, FI_REMOTE_CQ_DATA | FI_INJECT)); break;
		case 5: POST(&pair, fi_inject(pair.ep[0], out, 5, pair.addr[1])); break;
		case 6: POST(&pair, fi_injectdata(pair.ep[0], out, 5, data, pair.addr[1])); break;
		}
		received("hello", 0, call == 3 || call == 4 || call == 6, &rx);
		CHECK(!memcmp(in, "hello", 5));
		if (call < 5)
			sent(&tx);
	}
}

static void every_call_of_tagged_messages(void)
{
	const uint64_t data = 0x1122334455667788;
	char in[16], out[] = "hello";
	int rx, tx;
	struct iovec halves[2] = {{out, 2}, {out + 2, 3}}, place[2] = {{in, 1}, {in + 1, 15}};
	struct fi_msg_tagged send = {halves, NULL, 2, pair.addr[1], 42, 0, &tx, data};
	struct fi_msg_tagged recv = {place, NULL, 2, FI_ADDR_UNSPEC, 40, 3, &rx, 0};
	for (int call = 0; call < 7; call++) {
		memset(in, 0, sizeof in);
		switch (call % 3) {
		case 0: POST(&pair, fi_trecv(pair.ep[1], in, sizeof in, NULL, FI_ADDR_UNSPEC, 42, 0, &rx)); break;
		case 1: POST(&pair, fi_trecvv(pair.ep[1], place, NULL, 2, FI_ADDR_UNSPEC, 40, 3, &rx)); break;
		case 2: POST(&pair, fi_trecvmsg(pair.ep[1], &recv, FI_COMPLETION)); break;
		}
		switch (call) {
		case 0: POST(&pair, fi_tsend(pair.ep[0], out, 5, NULL, pair.addr[1], 42, &tx)); break;
		case 1: POST(&pair, fi_tsendv(pair.ep[0], halves, NULL, 2, pair.addr[1], 42, &tx)); break;
		case 2: POST(&pair, fi_tsendmsg(pair.ep[0], &send, FI_COMPLETION)); break;
		case 3: POST(&pair, fi_tsenddata(pair.ep[0], out, 5, NULL, data, pair.addr[1], 42, &tx)); break;
		case 4: POST(&pair, fi_tsendmsg(pair.ep[0], &send, FI_REMOTE_CQ_DATA | FI_INJECT)); break;
		case 5: POST(&pair, fi_tinject(pair.ep[0], out, 5, pair.addr[1], 42)); break;
		case 6: POST(&pair, fi_tinjectdata(pair.ep[0], out, 5, data, pair.addr[1], 42)); break;
		}
		received("hello", 42, call == 3 || call == 4 || call == 6, &rx);
		CHECK(!memcmp(in, "hello", 5));
		if (call < 5)
			sent(&tx);
	}
}

static void nothing_at_all(void)
{
	int rx, tx;
	POST(&pair, fi_recv(pair.ep[1], NULL, 0, NULL, FI_ADDR_UNSPEC, &rx));
	POST(&pair, fi_send(pair.ep[0], NULL, 0, NULL, pair.addr[1], &tx));
	received("", 0, 0, &rx);
	sent(&tx);
}

static void a_message_that_is_too_long(void)
{
	char in[16], out[100] = {0};
	int rx, tx;
	struct fi_cq_tagged_entry entry;
	struct fi_cq_err_entry error = {0};
	POST(&pair, fi_recv(pair.ep[1], in, sizeof in, NULL, FI_ADDR_UNSPEC, &rx));
	POST(&pair, fi_send(pair.ep[0], out, sizeof out, NULL, pair.addr[1], &tx));
	ANSWERS(completion(&pair, 1, &entry), -FI_EAVAIL);
	ANSWERS(fi_cq_read(pair.cq[1], &entry, 1), -FI_EAVAIL);
	/* libfabric's fi_efa_rnr_read_cq_error passes a flag. */
	ANSWERS(fi_cq_readerr(pair.cq[1], &error, FI_SEND), 1);
	CHECK(error.op_context == &rx && error.err == FI_ETRUNC && error.len == 16 && error.olen == 84);
	CHECK(strlen(fi_cq_strerror(pair.cq[1], error.prov_errno, error.err_data, NULL, 0)) > 0);
	ANSWERS(fi_cq_readerr(pair.cq[1], &error, 0), -FI_EAGAIN);
	sent(&tx);
}

static void peek_and_claim(void)
{
	char in[16], out[] = "claimed";
	int peek, tx;
	struct fi_context claim;
	struct fi_cq_tagged_entry entry;
	struct fi_cq_err_entry error = {0};
	struct iovec place = {in, sizeof in};
	struct fi_msg_tagged look = {NULL, NULL, 0, FI_ADDR_UNSPEC, 7, 0, &peek, 0};
	struct fi_msg_tagged take = {&place, NULL, 1, FI_ADDR_UNSPEC, 7, 0, &claim, 0};
	POST(&pair, fi_trecvmsg(pair.ep[1], &look, FI_PEEK));
	ANSWERS(completion(&pair, 1, &entry), -FI_EAVAIL);
	ANSWERS(fi_cq_readerr(pair.cq[1], &error, 0), 1);
	CHECK(error.err == FI_ENOMSG && error.op_context == &peek);
	POST(&pair, fi_tsend(pair.ep[0], out, 7, NULL, pair.addr[1], 7, &tx));
	sent(&tx);
	for (;;) {
		look.context = &claim;
		POST(&pair, fi_trecvmsg(pair.ep[1], &look, FI_PEEK | FI_CLAIM));
		if (completion(&pair, 1, &entry) == 1)
			break;
		ANSWERS(fi_cq_readerr(pair.cq[1], &error, 0), 1);
		CHECK(error.err == FI_ENOMSG);
	}
	CHECK(entry.len == 7 && entry.tag == 7);
	POST(&pair, fi_trecvmsg(pair.ep[1], &take, FI_CLAIM));
	received("claimed", 7, 0, &claim);
	CHECK(!memcmp(in, "claimed", 7));
}

static void a_receive_that_is_cancelled(void)
{
	char in[16];
	int rx;
	struct fi_cq_tagged_entry entry;
	struct fi_cq_err_entry error = {0};
	POST(&pair, fi_trecv(pair.ep[1], in, sizeof in, NULL, FI_ADDR_UNSPEC, 99, 0, &rx));
	OK(fi_cancel(&pair.ep[1]->fid, &rx));
	ANSWERS(completion(&pair, 1, &entry), -FI_EAVAIL);
	ANSWERS(fi_cq_readerr(pair.cq[1], &error, 0), 1);
	CHECK(error.err == FI_ECANCELED && error.op_context == &rx && error.flags & FI_RECV);
}

static void many_messages_into_one_buffer(void)
{
	static char in[64], out[16] = "0123456789abcde";
	int rx, messages = 0, released = 0;
	struct iovec place = {in, sizeof in};
	struct fi_msg recv = {&place, NULL, 1, FI_ADDR_UNSPEC, &rx, 0};
	struct fi_cq_tagged_entry entry;
	size_t least = 16, len = sizeof least, found = 0;
	OK(fi_setopt(&pair.ep[1]->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, len));
	OK(fi_getopt(&pair.ep[1]->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &found, &len));
	CHECK(found == least && len == sizeof least);
	POST(&pair, fi_recvmsg(pair.ep[1], &recv, FI_MULTI_RECV | FI_COMPLETION));
	for (int at = 0; at < 4; at++)
		POST(&pair, fi_inject(pair.ep[0], out, 16, pair.addr[1]));
	while (!released) {
		ANSWERS(completion(&pair, 1, &entry), 1);
		CHECK(entry.op_context == &rx);
		if (entry.flags & FI_RECV) {
			CHECK(entry.len == 16 && entry.buf == in + 16 * messages && !memcmp(entry.buf, out, 16));
			messages++;
		}
		released = !!(entry.flags & FI_MULTI_RECV);
	}
	CHECK(messages == 4);
}

int main(void)
{
	pair_open(&pair, FI_MSG | FI_TAGGED | FI_MULTI_RECV);
	every_call_of_messages();
	every_call_of_tagged_messages();
	nothing_at_all();
	a_message_that_is_too_long();
	peek_and_claim();
	a_receive_that_is_cancelled();
	many_messages_into_one_buffer();
	pair_close(&pair);
	return 0;
}
