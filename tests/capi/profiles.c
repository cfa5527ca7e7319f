/* Profiles of endpoints: variables are listed and read, alone and as of one moment. Headers before 1.20 do not have
 * fi_profile.h, so its structures are declared here as it has them. */
#include "check.h"

#include <stddef.h>

#define VAR_UNEXP_MSG_CNT 0
#define VAR_UNEXP_MSG_QUEUE 1
#define EVENT_UNEXP_MSG_RECVD 0
#define CLASS_PROFILE 30

struct profile;

struct profile_desc {
	uint32_t id;
	int datatype_sel;
	int datatype;
	uint64_t flags;
	size_t size;
	const char *name;
	const char *desc;
};

typedef int (*profile_callback)(struct profile *, struct profile_desc *, void *, size_t, void *);

struct profile_ops {
	size_t size;
	void (*reset)(struct profile *, uint64_t);
	ssize_t (*query_vars)(struct profile *, struct profile_desc *, size_t *);
	ssize_t (*query_events)(struct profile *, struct profile_desc *, size_t *);
	ssize_t (*read_var)(struct profile *, uint32_t, void *, size_t *);
	int (*reg_callback)(struct profile *, uint32_t, profile_callback, void *);
	void (*start_reads)(struct profile *, uint64_t);
	void (*end_reads)(struct profile *, uint64_t);
};

struct profile {
	struct fid fid;
	struct profile_ops *ops;
};

static struct pair pair;
static int context;

/* What fi_profile_open does. */
static int profile_open(struct fid *fid, uint64_t flags, struct profile **profile)
{
	void *ops;
	int answer = fi_open_ops(fid, "fi_profile_ops", flags, &ops, &context);
	if (!answer)
		*profile = (struct profile *)((char *)ops - offsetof(struct profile, ops));
	return answer;
}

static uint64_t value(struct profile *profile, uint32_t id)
{
	uint64_t value = 4711;
	size_t size = sizeof value;
	ANSWERS(profile->ops->read_var(profile, id, &value, &size), sizeof value);
	return value;
}

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

/* Sends a message, and drives both ends until so many wait at the second for their receive. */
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
	OK(profile_open(&pair.ep[1]->fid, 0, &profile));
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
	/* One name has one id, whichever endpoint. */
	OK(profile_open(&pair.ep[0]->fid, 0, &other));
	CHECK(id_of(other, "rx_messages") == id_of(profile, "rx_messages"));
	OK(fi_close(&other->fid));
	OK(fi_close(&profile->fid));
}

static void values(void)
{
	struct profile *profile, *sender;
	struct fi_cq_tagged_entry entry;
	char received[16];
	OK(profile_open(&pair.ep[1]->fid, 0, &profile));
	OK(profile_open(&pair.ep[0]->fid, 0, &sender));
	uint32_t messages = id_of(profile, "rx_messages"), sent = id_of(sender, "tx_messages");
	uint64_t before = value(profile, messages), sent_before = value(sender, sent);
	ANSWERS(value(profile, VAR_UNEXP_MSG_CNT), 0);
	send_unexpected(profile, 1);
	send_unexpected(profile, 2);
	ANSWERS(value(sender, sent), sent_before + 2);

	/* Between start and end of reads the values are those of one moment. */
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

	/* A reset ends that too, and the counters go on. */
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

static int callback(struct profile *profile, struct profile_desc *event, void *param, size_t size, void *context)
{
	return 0;
}

static void refusals(void)
{
	struct profile *profile;
	struct profile_desc event;
	uint64_t number;
	uint32_t half;
	size_t size, count = 1;
	void *ops;
	OK(profile_open(&pair.ep[1]->fid, 0, &profile));
	size = sizeof number;
	ANSWERS(profile->ops->read_var(profile, VAR_UNEXP_MSG_QUEUE, &number, &size), -FI_EINVAL);
	ANSWERS(profile->ops->read_var(profile, 0xffffffff, &number, &size), -FI_EINVAL);
	ANSWERS(profile->ops->read_var(profile, VAR_UNEXP_MSG_CNT, NULL, &size), -FI_EINVAL);
	ANSWERS(profile->ops->read_var(profile, VAR_UNEXP_MSG_CNT, &number, NULL), -FI_EINVAL);
	size = sizeof half;
	ANSWERS(profile->ops->read_var(profile, VAR_UNEXP_MSG_CNT, &half, &size), -FI_ETOOSMALL);
	ANSWERS(profile->ops->query_vars(profile, NULL, NULL), -FI_EINVAL);
	/* There are no events. */
	ANSWERS(profile->ops->query_events(profile, &event, &count), 0);
	ANSWERS(count, 0);
	ANSWERS(profile->ops->reg_callback(profile, EVENT_UNEXP_MSG_RECVD, callback, NULL), -FI_EINVAL);

	ANSWERS(fi_open_ops(&pair.ep[1]->fid, "nothing", 0, &ops, NULL), -FI_ENOSYS);
	ANSWERS(fi_open_ops(&pair.ep[1]->fid, NULL, 0, &ops, NULL), -FI_EINVAL);
	ANSWERS(fi_open_ops(&pair.ep[1]->fid, "fi_profile_ops", 0, NULL, NULL), -FI_EINVAL);
	ANSWERS(profile_open(&pair.ep[1]->fid, 1, &profile), -FI_EBADFLAGS);
	ANSWERS(profile_open(&pair.domain->fid, 0, &profile), -FI_ENOSYS);
	ANSWERS(profile_open(&pair.cq[0]->fid, 0, &profile), -FI_ENOSYS);

	/* What was closed answers errors. */
	OK(fi_close(&profile->fid));
	CHECK(fi_close(&profile->fid) < 0);
	CHECK(profile->ops->query_vars(profile, NULL, &count) < 0);
	profile->ops->start_reads(profile, 0);
}

/* An endpoint over two transports, which count the same things, lists each once. */
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
	OK(profile_open(&ep->fid, 0, &profile)); /* before it is enabled, there is less to list */
	id_of(profile, "rx_messages");
	OK(fi_enable(ep));
	ANSWERS(profile->ops->query_vars(profile, all, &count), count);
	for (size_t at = 0; at < count; at++) {
		near += !strcmp(all[at].name, "lanes_near");
		value(profile, all[at].id);
		for (size_t before = 0; before < at; before++)
			CHECK(all[before].id != all[at].id && strcmp(all[before].name, all[at].name));
	}
	ANSWERS(near, 1);
	/* An endpoint closes under its profile, which then answers errors but for what was frozen. */
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
	refusals();
	pair_close(&pair);
	return 0;
}
