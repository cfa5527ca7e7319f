/* Event queues of domains: registrations that report events, and endpoints without an event queue of their own. Also
 * multicast groups, joined by address. */
#include "check.h"

#include <arpa/inet.h>
#include <netinet/in.h>

static void open_queue(struct fid_fabric *fabric, struct fid_eq **eq)
{
	struct fi_eq_attr attr = {.wait_obj = FI_WAIT_UNSPEC};
	OK(fi_eq_open(fabric, &attr, eq, NULL));
}

/* The next event, which must be `wanted`. */
static struct fi_eq_entry next(struct fid_eq *eq, uint32_t wanted)
{
	struct fi_eq_entry entry;
	uint32_t event = 0;
	ANSWERS(fi_eq_sread(eq, &event, &entry, sizeof entry, 10000, 0), sizeof entry);
	CHECK(event == wanted);
	return entry;
}

static void registrations(void)
{
	struct pair pair;
	struct fid_eq *eq, *other;
	struct fid_mr *mr[2] = {NULL, NULL};
	struct fi_eq_entry entry;
	uint32_t event;
	char memory[64], tag;
	pair_open(&pair, FI_MSG | FI_RMA);
	open_queue(pair.fabric, &eq);
	open_queue(pair.fabric, &other);
	ANSWERS(fi_domain_bind(pair.domain, &pair.cq[0]->fid, FI_REG_MR), -FI_ENOSYS);
	ANSWERS(fi_domain_bind(pair.domain, &eq->fid, FI_SEND), -FI_EBADFLAGS);
	OK(fi_domain_bind(pair.domain, &eq->fid, FI_REG_MR));
	ANSWERS(fi_domain_bind(pair.domain, &other->fid, FI_REG_MR), -FI_EBUSY);
	ANSWERS(fi_close(&eq->fid), -FI_EBUSY);
	for (int at = 0; at < 2; at++)
		OK(fi_mr_reg(pair.domain, memory, sizeof memory, FI_REMOTE_READ, 0, 1 + at, 0, &mr[at], at ? &tag : NULL));
	/* A failed call reports no event. */
	ANSWERS(fi_mr_reg(pair.domain, memory, 16, FI_SEND, 5, 0, 0, &mr[0], NULL), -FI_EINVAL);
	for (int at = 0; at < 2; at++) {
		entry = next(eq, FI_MR_COMPLETE);
		CHECK(entry.fid == &mr[at]->fid && entry.context == (at ? &tag : NULL));
	}
	ANSWERS(fi_eq_read(eq, &event, &entry, sizeof entry, 0), -FI_EAGAIN);
	for (int at = 0; at < 2; at++)
		OK(fi_close(&mr[at]->fid));
	pair_close_but_fabric(&pair);
	OK(fi_close(&eq->fid));
	OK(fi_close(&other->fid));
	OK(fi_close(&pair.fabric->fid));
	fi_freeinfo(pair.info);
}

/* An endpoint of FI_EP_MSG needs an event queue; that of its domain suffices. */
static void endpoints_without_a_queue(void)
{
	struct fi_info *hints = fi_allocinfo(), *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_eq *eq;
	struct fid_cq *cq;
	struct fid_ep *ep[2];
	struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_MSG};
	struct fi_eq_err_entry error = {0};
	struct fi_eq_cm_entry entry;
	uint32_t event;
	hints->caps = FI_MSG;
	hints->ep_attr->type = FI_EP_MSG;
	hints->fabric_attr->prov_name = strdup("shm");
	OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
	OK(fi_fabric(info->fabric_attr, &fabric, NULL));
	OK(fi_domain(fabric, info, &domain, NULL));
	OK(fi_cq_open(domain, &cq_attr, &cq, NULL));
	for (int at = 0; at < 2; at++) {
		OK(fi_endpoint(domain, info, &ep[at], NULL));
		OK(fi_ep_bind(ep[at], &cq->fid, FI_TRANSMIT | FI_RECV));
	}
	ANSWERS(fi_enable(ep[0]), -FI_ENOEQ);
	open_queue(fabric, &eq);
	OK(fi_domain_bind(domain, &eq->fid, 0));
	OK(fi_enable(ep[0]));
	OK(fi_connect(ep[0], "fi_shm://nobody at all", NULL, 0));
	ANSWERS(fi_eq_sread(eq, &event, &entry, sizeof entry, 10000, 0), -FI_EAVAIL);
	ANSWERS(fi_eq_readerr(eq, &error, 0), sizeof error);
	CHECK(error.fid == &ep[0]->fid && error.err == FI_ECONNREFUSED);
	for (int at = 0; at < 2; at++)
		OK(fi_close(&ep[at]->fid));
	OK(fi_close(&cq->fid));
	OK(fi_close(&domain->fid));
	OK(fi_close(&eq->fid));
	OK(fi_close(&fabric->fid));
	fi_freeinfo(info);
	fi_freeinfo(hints);
}

static void multicast(void)
{
	struct fi_info *hints = fi_allocinfo(), *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_eq *eq;
	struct fid_cq *cq;
	struct fid_av *av;
	struct fid_ep *ep[2];
	struct fid_mc *mc[2] = {NULL, NULL};
	struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_MSG};
	struct fi_cq_msg_entry done;
	struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
	struct sockaddr_in group = {.sin_family = AF_INET};
	char got[2][16] = {{0}};
	size_t len = sizeof group;
	hints->caps = FI_MSG | FI_MULTICAST;
	hints->addr_format = FI_SOCKADDR_IN;
	hints->ep_attr->type = FI_EP_DGRAM;
	hints->fabric_attr->prov_name = strdup("udp");
	OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
	OK(fi_fabric(info->fabric_attr, &fabric, NULL));
	OK(fi_domain(fabric, info, &domain, NULL));
	OK(fi_cq_open(domain, &cq_attr, &cq, NULL));
	OK(fi_av_open(domain, &av_attr, &av, NULL));
	open_queue(fabric, &eq);
	for (int at = 0; at < 2; at++) {
		OK(fi_endpoint(domain, info, &ep[at], NULL));
		OK(fi_ep_bind(ep[at], &cq->fid, FI_TRANSMIT | FI_RECV));
		OK(fi_ep_bind(ep[at], &av->fid, 0));
		OK(fi_ep_bind(ep[at], &eq->fid, 0));
		OK(fi_enable(ep[at]));
	}
	OK(fi_getname(&ep[0]->fid, &group, &len));
	/* An address of organisation-local scope (RFC 2365), with a port that only this program uses. */
	CHECK(inet_pton(AF_INET, "239.192.77.2", &group.sin_addr) == 1);
	ANSWERS(fi_join(ep[0], NULL, 0, &mc[0], NULL), -FI_EINVAL);
	ANSWERS(fi_join(ep[0], &group, FI_READ, &mc[0], NULL), -FI_EBADFLAGS);
	for (int at = 0; at < 2; at++) {
		OK(fi_join(ep[at], &group, FI_SEND | FI_RECV, &mc[at], &got[at]));
		struct fi_eq_entry entry = next(eq, FI_JOIN_COMPLETE);
		CHECK(entry.fid == &mc[at]->fid && entry.context == &got[at]);
		OK(fi_recv(ep[at], got[at], sizeof got[at], NULL, FI_ADDR_UNSPEC, got[at]));
	}
	OK(fi_send(ep[0], "to all of you", 14, NULL, fi_mc_addr(mc[0]), NULL));
	double end = now() + 10;
	for (int left = 3; left;) {
		ssize_t read = fi_cq_read(cq, &done, 1);
		CHECK(read == 1 || read == -FI_EAGAIN);
		left -= read == 1;
		CHECK(now() < end);
	}
	for (int at = 0; at < 2; at++)
		CHECK(!strcmp(got[at], "to all of you"));
	for (int at = 0; at < 2; at++) {
		ANSWERS(fi_close(&ep[at]->fid), -FI_EBUSY);
		OK(fi_close(&mc[at]->fid));
		OK(fi_close(&ep[at]->fid));
	}
	OK(fi_close(&cq->fid));
	OK(fi_close(&av->fid));
	OK(fi_close(&eq->fid));
	OK(fi_close(&domain->fid));
	OK(fi_close(&fabric->fid));
	fi_freeinfo(info);
	fi_freeinfo(hints);
}

int main(void)
{
	registrations();
	endpoints_without_a_queue();
	multicast();
	return 0;
}
