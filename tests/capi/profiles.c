/* Profiles of endpoints and domains: variables are listed and read, singly and as a snapshot; events of endpoints. */
#include "profile.h"

static struct pair pair;
static int context;

/* The id of a variable by its name. */
static uint32_t id_of(struct profile *profile, const char *name)
{
	struct profile_desc all[128];
	size_t count = 128;
	ssize_t listed = profile->ops->query_vars(profile, all, &count);
	CHECK(listed > 0 && (size_t)listed == count);
	for (ssize_t at = 0; at < listed; at++)
		if (!strcmp(all[at].name, name))
			return all[at].id;
	fprintf(stderr, "no variable %s\n", name);
	exit(1);
}

/* Sends a message, and drives both ends until `wanted` unexpected messages wait at the second. */
static void send_unexpected(struct profile *profile, uint64_t wanted)
{
	struct fi_cq_tagged_entry entry;
	double end = now() + 20;
	POST(&pair, fi_send(pair.ep[0], "hello", 5, NULL, pair.addr[1], NULL));
	ANSWERS(completion(&pair, 0, &entry), 1);
	while (value(profile, VAR_UNEXP_MSG_CNT) != wanted && now() < end)
		fi_cq_read(pair.cq[1], NULL, 0);
	ANSWERS(value(profile, VAR_UNEXP_MSG_CNT), wanted);
}

static void variables(void)
{
	struct profile *profile, *other;
	struct profile_desc all[128], one;
	size_t total = 0, count = 1;
	OK(profile_open(&pair.ep[1]->fid, 0, &profile, &context));
	CHECK(profile->fid.fclass == CLASS_PROFILE && profile->fid.context == &context);
	CHECK(profile->ops->size == sizeof *profile->ops);

	ANSWERS(profile->ops->query_vars(profile, NULL, &total), 0);
	CHECK(total > 5 && total <= 128);
	ANSWERS(profile->ops->query_vars(profile, &one, &count), 1);
	CHECK(count == total);
	count = 128;
	ANSWERS(profile->ops->query_vars(profile, all, &count), total);
	CHECK(one.id == all[0].id && one.name == all[0].name && one.id == VAR_UNEXP_MSG_CNT);
	for (size_t at = 0; at < total; at++) {
		CHECK(all[at].datatype_sel == 0 && all[at].datatype == FI_UINT64 && all[at].size == 8);
		CHECK(strlen(all[at].name) && strlen(all[at].desc));
		for (size_t before = 0; before < at; before++)
			CHECK(all[before].id != all[at].id && strcmp(all[before].name, all[at].name));
		value(profile, all[at].id);
	}
	/* A name has the same id at every endpoint. */
	OK(profile_open(&pair.ep[0]->fid, 0, &other, &context));
	CHECK(id_of(other, "rx_messages") == id_of(profile, "rx_messages"));
	OK(fi_close(&other->fid));
	OK(fi_close(&profile->fid));
}

static void values(void)
{
	struct profile *profile, *sender;
	struct fi_cq_tagged_entry entry;
	char received[16];
	OK(profile_open(&pair.ep[1]->fid, 0, &profile, &context));
	OK(profile_open(&pair.ep[0]->fid, 0, &sender, &context));
	uint32_t messages = id_of(profile, "rx_messages"), sent = id_of(sender, "tx_messages");
	uint64_t before = value(profile, messages), sent_before = value(sender, sent);
	ANSWERS(value(profile, VAR_UNEXP_MSG_CNT), 0);
	send_unexpected(profile, 1);
	send_unexpected(profile, 2);
	ANSWERS(value(sender, sent), sent_before + 2);

	/* Between start_reads and end_reads the values are a snapshot. */
	profile->ops->start_reads(profile, 0);
	for (int at = 0; at < 2; at++) {
		POST(&pair, fi_recv(pair.ep[1], received, sizeof received, NULL, FI_ADDR_UNSPEC, NULL));
		ANSWERS(completion(&pair, 1, &entry), 1);
	}
	ANSWERS(value(profile, VAR_UNEXP_MSG_CNT), 2);
	ANSWERS(value(profile, messages), before);
	profile->ops->end_reads(profile, 0);
	ANSWERS(value(profile, VAR_UNEXP_MSG_CNT), 0);
	ANSWERS(value(profile, messages), before + 2);

	/* A reset also ends the snapshot, and the counters continue. */
	profile->ops->start_reads(profile, 0);
	POST(&pair, fi_send(pair.ep[0], "hello", 5, NULL, pair.addr[1], NULL));
	ANSWERS(completion(&pair, 0, &entry), 1);
	profile->ops->reset(profile, 0);
	POST(&pair, fi_recv(pair.ep[1], received, sizeof received, NULL, FI_ADDR_UNSPEC, NULL));
	ANSWERS(completion(&pair, 1, &entry), 1);
	ANSWERS(value(profile, messages), before + 3);
	OK(fi_close(&sender->fid));
	OK(fi_close(&profile->fid));
}

/* The events that a callback has received. */
struct heard {
	int count;
	uint32_t last;
	uint64_t waiting;
};

static int callback(struct profile *profile, struct profile_desc *event, void *param, size_t size, void *context)
{
	struct heard *heard = context;
	size_t count = 0;
	CHECK(!param && !size && strlen(event->name) && strlen(event->desc));
	heard->count++;
	heard->last = event->id;
	/* A callback may read variables, which include the event. All other calls are refused. */
	heard->waiting = value(profile, VAR_UNEXP_MSG_CNT);
	ANSWERS(profile->ops->query_vars(profile, NULL, &count), -FI_EBUSY);
	ANSWERS(profile->ops->query_events(profile, NULL, &count), -FI_EBUSY);
	ANSWERS(profile->ops->reg_callback(profile, event->id, NULL, NULL), -FI_EBUSY);
	ANSWERS(fi_close(&profile->fid), -FI_EBUSY);
	return 0;
}

static void events(void)
{
	struct fi_alias alias = {.flags = FI_RECV};
	struct profile *profile, *second, *sender;
	struct profile_desc all[4];
	struct heard received = {0}, matched = {0}, also = {0};
	struct fi_cq_tagged_entry entry;
	struct fid *other;
	size_t count = 4;
	char into[16];
	OK(profile_open(&pair.ep[1]->fid, 0, &profile, &context));
	ANSWERS(profile->ops->query_events(profile, NULL, &count), 0);
	ANSWERS(count, 2);
	ANSWERS(profile->ops->query_events(profile, all, &count), 2);
	CHECK(all[0].id == EVENT_UNEXP_MSG_RECVD && all[1].id == EVENT_UNEXP_MSG_MATCHED);
	ANSWERS(profile->ops->reg_callback(profile, 2, callback, &received), -FI_EINVAL);
	OK(profile->ops->reg_callback(profile, EVENT_UNEXP_MSG_RECVD, callback, &received));
	OK(profile->ops->reg_callback(profile, EVENT_UNEXP_MSG_MATCHED, callback, &matched));
	/* Another handle of the endpoint has profiles of its own. */
	alias.fid = &other;
	OK(fi_control(&pair.ep[1]->fid, FI_ALIAS, &alias));
	OK(profile_open(other, 0, &second, &context));
	OK(second->ops->reg_callback(second, EVENT_UNEXP_MSG_MATCHED, callback, &also));
	/* The sender gets no events. */
	struct heard nothing = {0};
	OK(profile_open(&pair.ep[0]->fid, 0, &sender, &context));
	OK(sender->ops->reg_callback(sender, EVENT_UNEXP_MSG_RECVD, callback, &nothing));

	send_unexpected(profile, 1);
	CHECK(received.count == 1 && received.last == EVENT_UNEXP_MSG_RECVD && received.waiting == 1);
	send_unexpected(profile, 2);
	CHECK(received.count == 2 && received.waiting == 2 && !matched.count);
	POST(&pair, fi_recv(pair.ep[1], into, sizeof into, NULL, FI_ADDR_UNSPEC, NULL));
	ANSWERS(completion(&pair, 1, &entry), 1);
	CHECK(matched.count == 1 && matched.last == EVENT_UNEXP_MSG_MATCHED && matched.waiting == 1);
	CHECK(also.count == 1);

	/* Callbacks of closed profiles, and removed ones, are not called any more; the others are. */
	OK(fi_close(&second->fid));
	OK(fi_close(other));
	OK(profile->ops->reg_callback(profile, EVENT_UNEXP_MSG_RECVD, NULL, NULL));
	POST(&pair, fi_recv(pair.ep[1], into, sizeof into, NULL, FI_ADDR_UNSPEC, NULL));
	ANSWERS(completion(&pair, 1, &entry), 1);
	CHECK(matched.count == 2 && matched.waiting == 0 && also.count == 1);
	send_unexpected(profile, 1);
	OK(fi_close(&profile->fid));
	POST(&pair, fi_recv(pair.ep[1], into, sizeof into, NULL, FI_ADDR_UNSPEC, NULL));
	ANSWERS(completion(&pair, 1, &entry), 1);
	CHECK(received.count == 2 && matched.count == 2 && !nothing.count);
	OK(fi_close(&sender->fid));
}

/* A domain's values are the sums of its endpoints'. */
static void domains(void)
{
	struct profile *domain, *sides[2];
	struct profile_desc event;
	struct fi_cq_tagged_entry entry;
	struct fid_mr *mr;
	size_t count = 1;
	char into[16];
	OK(profile_open(&pair.domain->fid, 0, &domain, &context));
	for (int at = 0; at < 2; at++)
		OK(profile_open(&pair.ep[at]->fid, 0, &sides[at], &context));
	uint32_t messages = id_of(domain, "rx_messages"), regions = id_of(domain, "memory_regions");
	ANSWERS(value(domain, id_of(domain, "endpoints")), 2);
	ANSWERS(value(domain, messages), value(sides[0], messages) + value(sides[1], messages));

	uint64_t before = value(domain, messages), registered = value(domain, regions);
	send_unexpected(sides[1], 1);
	ANSWERS(value(domain, VAR_UNEXP_MSG_CNT), 1);
	domain->ops->start_reads(domain, 0);
	POST(&pair, fi_recv(pair.ep[1], into, sizeof into, NULL, FI_ADDR_UNSPEC, NULL));
	ANSWERS(completion(&pair, 1, &entry), 1);
	ANSWERS(value(domain, VAR_UNEXP_MSG_CNT), 1);
	domain->ops->end_reads(domain, 0);
	ANSWERS(value(domain, VAR_UNEXP_MSG_CNT), 0);
	ANSWERS(value(domain, messages), before + 1);
	OK(fi_mr_reg(pair.domain, into, sizeof into, FI_SEND, 0, 77, 0, &mr, NULL));
	ANSWERS(value(domain, regions), registered + 1);
	OK(fi_close(&mr->fid));
	ANSWERS(value(domain, regions), registered);

	/* Only endpoints have events. */
	ANSWERS(domain->ops->query_events(domain, &event, &count), 0);
	ANSWERS(count, 0);
	ANSWERS(domain->ops->reg_callback(domain, EVENT_UNEXP_MSG_RECVD, callback, NULL), -FI_EINVAL);
	for (int at = 0; at < 2; at++)
		OK(fi_close(&sides[at]->fid));
	OK(fi_close(&domain->fid));
}

static void refusals(void)
{
	struct profile *profile;
	uint64_t number;
	uint32_t half;
	size_t size, count = 1;
	void *ops;
	OK(profile_open(&pair.ep[1]->fid, 0, &profile, &context));
	size = sizeof number;
	ANSWERS(profile->ops->read_var(profile, VAR_UNEXP_MSG_QUEUE, &number, &size), -FI_EINVAL);
	ANSWERS(profile->ops->read_var(profile, 0xffffffff, &number, &size), -FI_EINVAL);
	ANSWERS(profile->ops->read_var(profile, VAR_UNEXP_MSG_CNT, NULL, &size), -FI_EINVAL);
	ANSWERS(profile->ops->read_var(profile, VAR_UNEXP_MSG_CNT, &number, NULL), -FI_EINVAL);
	size = sizeof half;
	ANSWERS(profile->ops->read_var(profile, VAR_UNEXP_MSG_CNT, &half, &size), -FI_ETOOSMALL);
	ANSWERS(profile->ops->query_vars(profile, NULL, NULL), -FI_EINVAL);
	ANSWERS(fi_open_ops(&pair.ep[1]->fid, "nothing", 0, &ops, NULL), -FI_ENOSYS);
	ANSWERS(fi_open_ops(&pair.ep[1]->fid, NULL, 0, &ops, NULL), -FI_EINVAL);
	ANSWERS(fi_open_ops(&pair.ep[1]->fid, "fi_profile_ops", 0, NULL, NULL), -FI_EINVAL);
	ANSWERS(profile_open(&pair.ep[1]->fid, 1, &profile, &context), -FI_EBADFLAGS);
	ANSWERS(profile_open(&pair.domain->fid, 1, &profile, &context), -FI_EBADFLAGS);
	/* fi_profile(3) has profiles of endpoints and domains only. */
	ANSWERS(profile_open(&pair.fabric->fid, 0, &profile, &context), -FI_ENOSYS);
	ANSWERS(profile_open(&pair.av->fid, 0, &profile, &context), -FI_ENOSYS);
	ANSWERS(profile_open(&pair.cq[0]->fid, 0, &profile, &context), -FI_ENOSYS);

	/* A closed profile returns errors. */
	OK(fi_close(&profile->fid));
	CHECK(fi_close(&profile->fid) < 0);
	CHECK(profile->ops->query_vars(profile, NULL, &count) < 0);
	profile->ops->start_reads(profile, 0);
}

/* An endpoint over two transports with the same counters lists each counter once. */
static void two_transports(void)
{
	struct fi_info *hints = fi_allocinfo(), *info;
	struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_MSG};
	struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
	struct profile *profile;
	struct profile_desc all[256];
	size_t count = 256, near = 0;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_cq *cq;
	struct fid_av *av;
	struct fid_ep *ep;
	hints->caps = FI_MSG;
	hints->ep_attr->type = FI_EP_RDM;
	hints->fabric_attr->prov_name = strdup("udp");
	OK(fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", NULL, FI_SOURCE, hints, &info));
	fi_freeinfo(hints);
	OK(fi_fabric(info->fabric_attr, &fabric, NULL));
	OK(fi_domain(fabric, info, &domain, NULL));
	OK(fi_av_open(domain, &av_attr, &av, NULL));
	OK(fi_cq_open(domain, &cq_attr, &cq, NULL));
	OK(fi_endpoint(domain, info, &ep, NULL));
	OK(fi_ep_bind(ep, &av->fid, 0));
	OK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	OK(profile_open(&ep->fid, 0, &profile, &context)); /* before it is enabled, there is less to list */
	id_of(profile, "rx_messages");
	OK(fi_enable(ep));
	ANSWERS(profile->ops->query_vars(profile, all, &count), count);
	for (size_t at = 0; at < count; at++) {
		near += !strcmp(all[at].name, "peers_local");
		value(profile, all[at].id);
		for (size_t before = 0; before < at; before++)
			CHECK(all[before].id != all[at].id && strcmp(all[before].name, all[at].name));
	}
	ANSWERS(near, 1);
	/* An endpoint may close before its profile, which then returns errors for all but snapshot values. */
	uint64_t number;
	size_t size = sizeof number;
	profile->ops->start_reads(profile, 0);
	OK(fi_close(&ep->fid));
	ANSWERS(value(profile, VAR_UNEXP_MSG_CNT), 0);
	profile->ops->end_reads(profile, 0);
	ANSWERS(profile->ops->read_var(profile, VAR_UNEXP_MSG_CNT, &number, &size), -FI_EINVAL);
	ANSWERS(profile->ops->query_vars(profile, NULL, &count), -FI_EINVAL);
	OK(fi_close(&profile->fid));
	OK(fi_close(&cq->fid));
	OK(fi_close(&av->fid));
	OK(fi_close(&domain->fid));
	OK(fi_close(&fabric->fid));
	fi_freeinfo(info);
}

int main(void)
{
	two_transports();
	pair_open(&pair, FI_MSG);
	variables();
	values();
	events();
	domains();
	refusals();
	pair_close(&pair);
	return 0;
}
