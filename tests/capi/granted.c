/* What getinfo grants, works: what hints without capabilities get, and what random hints get at every version of the
 * interface; and what it refuses. OFI_GRANTED is the number of random hints for each provider, OFI_GRANTED_SEED their
 * start. */
#include <netinet/in.h>

#include "check.h"

/* The headers of 1.17 have the field, and these numbers are no class. */
static const uint32_t no_class[] = {0x999, 0x2ff, 5, 0x141};

static struct fi_info *hints_for(const char *provider)
{
	struct fi_info *hints = fi_allocinfo();
	CHECK(hints);
	hints->fabric_attr->prov_name = strdup(provider);
	return hints;
}

/* An info that a program without capabilities gets, whatever it does about registrations. */
static struct fi_info *unasked(const char *provider, int mr_mode)
{
	struct fi_info *hints = hints_for(provider), *info = NULL;
	hints->domain_attr->mr_mode = mr_mode;
	hints->ep_attr->type = FI_EP_RDM;
	OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
	fi_freeinfo(hints);
	return info;
}

static void opens(struct fi_info *info)
{
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_ep *ep, *context;
	struct fid_av *av;
	struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
	OK(fi_fabric(info->fabric_attr, &fabric, NULL));
	OK(fi_domain(fabric, info, &domain, NULL));
	OK(fi_av_open(domain, &av_attr, &av, NULL));
	/* As MPICH does: with the attributes of the info. */
	OK(fi_scalable_ep(domain, info, &ep, NULL));
	OK(fi_scalable_ep_bind(ep, &av->fid, 0));
	OK(fi_tx_context(ep, 0, info->tx_attr, &context, NULL));
	OK(fi_close(&context->fid));
	OK(fi_rx_context(ep, 0, info->rx_attr, &context, NULL));
	OK(fi_close(&context->fid));
	OK(fi_enable(ep));
	OK(fi_close(&ep->fid));
	OK(fi_close(&av->fid));
	OK(fi_close(&domain->fid));
	OK(fi_close(&fabric->fid));
}

static void without_capabilities(const char *provider)
{
	const uint64_t target = FI_RMA | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
	const int modes[] = {0, FI_MR_VIRT_ADDR, FI_MR_PROV_KEY, FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY};
	for (size_t at = 0; at < sizeof modes / sizeof *modes; at++) {
		struct fi_info *info = unasked(provider, modes[at]);
		CHECK((info->caps & target) == target);
		CHECK(info->caps & FI_COLLECTIVE && info->domain_attr->max_ep_tx_ctx > 1);
		opens(info);
		fi_freeinfo(info);
	}
}

static void classes(const char *provider)
{
	for (size_t at = 0; at < sizeof no_class / sizeof *no_class; at++) {
		struct fi_info *hints = hints_for(provider), *info = NULL;
		hints->tx_attr->tclass = no_class[at];
		ANSWERS(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info), -FI_ENODATA);
		hints->tx_attr->tclass = 0;
		hints->domain_attr->tclass = no_class[at];
		ANSWERS(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info), -FI_ENODATA);
		fi_freeinfo(hints);
	}
}

/* A service is a name of services(5), where the host has them. */
static void services(void)
{
	FILE *database = fopen("/etc/services", "r");
	struct fi_info *hints = hints_for("udp"), *info = NULL;
	if (database) {
		fclose(database);
		OK(fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", "domain", 0, hints, &info));
		CHECK(((struct sockaddr_in *)info->dest_addr)->sin_port == htons(53));
		fi_freeinfo(info);
	}
	ANSWERS(fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", "no such service", 0, hints, &info), -FI_ENODATA);
	fi_freeinfo(hints);
}

/* The text of an info has the source that the structure has. */
static void text(const char *provider)
{
	struct fi_info *info = unasked(provider, 0);
	CHECK(info->src_addr && info->src_addrlen);
	char wanted[64];
	snprintf(wanted, sizeof wanted, "src_addrlen: %zu", info->src_addrlen);
	CHECK(strstr(fi_tostr(info, FI_TYPE_INFO), wanted));
	fi_freeinfo(info);
}

/* The hints of now, for the message of a failure. */
static char here[128];

static uint64_t state = 88172645463325252;

/* Xorshift (Marsaglia 2003). */
static uint64_t next(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	return state ^= state << 17;
}

static uint64_t any_caps(uint64_t value)
{
	const uint64_t rare = FI_MULTI_RECV | FI_TRIGGER | FI_FENCE | FI_SOURCE | FI_SOURCE_ERR | FI_RMA_EVENT |
			      FI_DIRECTED_RECV | FI_NAMED_RX_CTX | FI_SHARED_AV | FI_LOCAL_COMM | FI_REMOTE_COMM |
			      FI_COLLECTIVE | FI_HMEM | FI_MULTICAST;
	return (value & 0x3f1e) | (value & 3 ? 0 : rare & next() & next());
}

static size_t any_size(uint64_t value)
{
	static const size_t sizes[] = {0, 1, 8, 64, 1024, 4096, 1 << 16, 1 << 20, SIZE_MAX};
	return sizes[value % (sizeof sizes / sizeof *sizes)];
}

/* Sets one field. */
static void choose(struct fi_info *hints)
{
	uint64_t value = next();
	struct fi_tx_attr *tx = hints->tx_attr;
	struct fi_rx_attr *rx = hints->rx_attr;
	struct fi_ep_attr *ep = hints->ep_attr;
	struct fi_domain_attr *domain = hints->domain_attr;
	switch (next() % 36) {
	case 0: case 1: case 2: case 3: hints->caps = any_caps(value); break;
	case 4: hints->mode = value; break;
	case 5: hints->addr_format = value % 18; break;
	case 6: tx->caps = any_caps(value); break;
	case 7: rx->caps = any_caps(value); break;
	case 8: tx->mode = rx->mode = value & (FI_CONTEXT | FI_MSG_PREFIX | FI_RX_CQ_DATA); break;
	case 9: tx->op_flags = value & next() & (FI_COMPLETION | FI_INJECT | FI_INJECT_COMPLETE |
						 FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE); break;
	case 10: rx->op_flags = value & (FI_COMPLETION | FI_MULTI_RECV); break;
	case 11: tx->msg_order = value & next() & 0x1ff; break;
	case 12: rx->msg_order = value & next() & 0x1ff; break;
	case 13: tx->comp_order = value % 3; break;
	case 14: rx->comp_order = value % 3; break;
	case 15: tx->inject_size = any_size(value); break;
	case 16: tx->size = any_size(value); break;
	case 17: rx->size = any_size(value); break;
	case 18: tx->iov_limit = rx->iov_limit = value % 6; break;
	case 19: tx->rma_iov_limit = value % 6; break;
	case 20: rx->total_buffered_recv = any_size(value); break;
	case 21: case 22: ep->type = value % 4; break;
	case 23: ep->max_msg_size = any_size(value); break;
	case 24: ep->protocol_version = value % 5; break;
	case 25: ep->mem_tag_format = value >> value % 64; break;
	case 26: ep->tx_ctx_cnt = value % 4; break;
	case 27: ep->rx_ctx_cnt = value % 4; break;
	case 28: domain->threading = value % 6; break;
	case 29: domain->control_progress = value % 3; domain->data_progress = next() % 3; break;
	case 30: domain->resource_mgmt = value % 3; break;
	case 31: domain->av_type = value % 3; break;
	case 32: domain->mr_mode = value & 0x1ffc; break;
	case 33: domain->mr_mode = value & 3; break;
	case 34: domain->mr_key_size = value % 6; domain->cq_data_size = next() % 6; break;
	case 35: domain->caps = value & (FI_LOCAL_COMM | FI_REMOTE_COMM | FI_SHARED_AV); break;
	}
}

/* An endpoint that is its own peer. */
struct end {
	struct fi_info *info;
	struct fid_domain *domain;
	struct fid_cq *cq;
	struct fid_ep *ep;
	fi_addr_t self;
};

static void completes(struct end *end, void *context)
{
	struct fi_cq_entry entry;
	ssize_t answer;
	double limit = now() + 20;
	do
		answer = fi_cq_read(end->cq, &entry, 1);
	while (answer == -FI_EAGAIN && now() < limit);
	ANSWERS(answer, 1);
	CHECK(!context || entry.op_context == context);
}

/* Whether it has a kind of transfer in these directions. */
static int has(const struct end *end, uint64_t kind, uint64_t directions, uint64_t all)
{
	uint64_t caps = end->info->caps;
	return caps & kind && (!(caps & all) || (caps & directions) == directions);
}

static void transfers(struct end *end)
{
	static char from[8] = "granted", into[8], there[8];
	struct fi_context contexts[2];
	const struct fi_tx_attr *tx = end->info->tx_attr;
	const uint64_t rights = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
	size_t len = tx->op_flags & FI_INJECT && tx->inject_size < 8 ? tx->inject_size : 8;
	if (len > end->info->ep_attr->max_msg_size)
		len = end->info->ep_attr->max_msg_size;
	memset(into, 0, sizeof into);
	memset(there, 0, sizeof there);
	if (has(end, FI_MSG, FI_SEND | FI_RECV, FI_SEND | FI_RECV)) {
		OK(fi_recv(end->ep, into, 8, NULL, FI_ADDR_UNSPEC, &contexts[0]));
		OK(fi_send(end->ep, from, len, NULL, end->self, &contexts[1]));
		completes(end, NULL);
		completes(end, NULL);
		CHECK(!memcmp(from, into, len));
	}
	if (has(end, FI_TAGGED, FI_SEND | FI_RECV, FI_SEND | FI_RECV)) {
		OK(fi_trecv(end->ep, into, 8, NULL, FI_ADDR_UNSPEC, 5, 0, &contexts[0]));
		OK(fi_tsend(end->ep, from, len, NULL, end->self, 5, &contexts[1]));
		completes(end, NULL);
		completes(end, NULL);
	}
	if (has(end, FI_RMA, FI_WRITE | FI_REMOTE_WRITE, rights)) {
		struct fid_mr *mr;
		int mode = end->info->domain_attr->mr_mode;
		OK(fi_mr_reg(end->domain, there, 8, FI_REMOTE_WRITE, 0, mode & (FI_MR_PROV_KEY | FI_MR_BASIC) ? 0 : 7, 0,
			     &mr, NULL));
		uint64_t address = mode & (FI_MR_VIRT_ADDR | FI_MR_BASIC) ? (uintptr_t)there : 0;
		OK(fi_write(end->ep, from, len, NULL, end->self, address, fi_mr_key(mr), &contexts[0]));
		completes(end, &contexts[0]);
		double limit = now() + 20;
		while (memcmp(from, there, len) && now() < limit)
			fi_cq_read(end->cq, NULL, 0);
		CHECK(!memcmp(from, there, len));
		OK(fi_close(&mr->fid));
	}
}

/* Opens all that an info describes, and uses it. */
static void works(struct fi_info *info)
{
	struct end end = {.info = info};
	struct fid_fabric *fabric;
	struct fid_eq *eq;
	struct fid_pep *pep;
	struct fid_av *av = NULL;
	struct fi_eq_attr eq_attr = {.wait_obj = FI_WAIT_NONE};
	struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_CONTEXT};
	struct fi_av_attr av_attr = {.type = info->domain_attr->av_type};
	OK(fi_fabric(info->fabric_attr, &fabric, NULL));
	OK(fi_eq_open(fabric, &eq_attr, &eq, NULL));
	if (info->ep_attr->type == FI_EP_MSG) {
		OK(fi_passive_ep(fabric, info, &pep, NULL));
		OK(fi_pep_bind(pep, &eq->fid, 0));
		OK(fi_listen(pep));
		OK(fi_close(&pep->fid));
	}
	OK(fi_domain(fabric, info, &end.domain, NULL));
	OK(fi_cq_open(end.domain, &cq_attr, &end.cq, NULL));
	OK(fi_endpoint(end.domain, info, &end.ep, NULL));
	OK(fi_ep_bind(end.ep, &end.cq->fid, FI_TRANSMIT | FI_RECV));
	if (info->ep_attr->type == FI_EP_MSG) {
		OK(fi_ep_bind(end.ep, &eq->fid, 0));
		OK(fi_enable(end.ep));
	} else {
		char name[256];
		size_t len = sizeof name;
		OK(fi_av_open(end.domain, &av_attr, &av, NULL));
		OK(fi_ep_bind(end.ep, &av->fid, 0));
		OK(fi_enable(end.ep));
		OK(fi_getname(&end.ep->fid, name, &len));
		ANSWERS(fi_av_insert(av, name, 1, &end.self, 0, NULL), 1);
		transfers(&end);
	}
	OK(fi_close(&end.ep->fid));
	OK(fi_close(&end.cq->fid));
	if (av)
		OK(fi_close(&av->fid));
	OK(fi_close(&end.domain->fid));
	OK(fi_close(&eq->fid));
	OK(fi_close(&fabric->fid));
}

/* Random hints, of a program of any version that these headers serve. */
static void random_hints(const char *provider, long count)
{
	long granted = 0;
	for (long at = 0; at < count; at++) {
		struct fi_info *hints = hints_for(provider), *info = NULL;
		/* A line of a failure names the hints by this state. */
		uint64_t seed = state;
		uint32_t version = FI_VERSION(1, next() % 18);
		for (uint64_t changes = next() % 7; changes; changes--)
			choose(hints);
		int shared = hints->ep_attr->tx_ctx_cnt > 1 || hints->ep_attr->rx_ctx_cnt > 1;
		int answer = fi_getinfo(version, NULL, NULL, 0, at % 50 ? hints : NULL, &info);
		if (answer != -FI_ENODATA)
			OK(answer);
		enum fi_ep_type last = FI_EP_UNSPEC;
		for (struct fi_info *each = info; each; each = each->next) {
			if (strcmp(each->fabric_attr->prov_name, provider) || each->ep_attr->type == last || shared ||
			    each->mode & FI_MSG_PREFIX)
				continue;
			last = each->ep_attr->type;
			snprintf(here, sizeof here, "OFI_GRANTED_SEED=%llu, provider %s, version %u.%u",
				 (unsigned long long)seed, provider, FI_MAJOR(version), FI_MINOR(version));
			works(each);
			granted++;
		}
		if (info)
			fi_freeinfo(info);
		fi_freeinfo(hints);
	}
	printf("%s: %ld hints, %ld infos opened\n", provider, count, granted);
	CHECK(granted > count / 5);
	*here = 0;
}

/* Says which hints a failure is of. */
static void failed(void)
{
	if (*here)
		fprintf(stderr, "random hints of %s\n", here);
}

int main(void)
{
	const char *providers[] = {"shm", "udp", "tcp"}, *count = getenv("OFI_GRANTED"), *seed = getenv("OFI_GRANTED_SEED");
	CHECK(!atexit(failed));
	for (int at = 0; at < 3; at++) {
		/* C's protocol has neither collectives nor contexts. */
		if (strcmp(providers[at], "tcp"))
			without_capabilities(providers[at]);
		classes(providers[at]);
		text(providers[at]);
		if (seed)
			state = strtoull(seed, NULL, 10);
		random_hints(providers[at], count ? atol(count) : 64);
	}
	services();
	return 0;
}
