/* Names of endpoints, which they have before they are enabled. Names of shared memory: any node and service form one,
 * and a second endpoint of the same fi_getinfo name gets a name of its own. */
#include "check.h"

#include <unistd.h>

static struct fi_info *info_of(const char *node, const char *service, uint32_t format, uint64_t flags)
{
	struct fi_info *hints = fi_allocinfo(), *info = NULL;
	hints->caps = FI_MSG;
	hints->ep_attr->type = FI_EP_RDM;
	hints->addr_format = format;
	hints->fabric_attr->prov_name = strdup("shm");
	OK(fi_getinfo(FI_VERSION(1, 17), node, service, flags, hints, &info));
	fi_freeinfo(hints);
	return info;
}

static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_av *av;
static struct fid_cq *cq;

/* Opens and enables an endpoint. Returns the result of fi_enable. */
static int open_ep(struct fi_info *info, const char *name, struct fid_ep **ep)
{
	OK(fi_endpoint(domain, info, ep, NULL));
	OK(fi_ep_bind(*ep, &av->fid, 0));
	OK(fi_ep_bind(*ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	if (name)
		OK(fi_setname(&(*ep)->fid, (void *)name, strlen(name) + 1));
	return fi_enable(*ep);
}

static void name_of(struct fid_ep *ep, char *name)
{
	size_t len = 256;
	OK(fi_getname(&ep->fid, name, &len));
	CHECK(len == strlen(name) + 1);
}

/* A program asks for the name of a new endpoint, before it binds anything, and tells its peers. */
static void before_enabling(const char *provider, enum fi_ep_type type)
{
	struct fi_info *hints = fi_allocinfo(), *of;
	struct fi_eq_attr eq_attr = {.wait_obj = FI_WAIT_NONE};
	struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_CONTEXT};
	struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
	struct fid_eq *eq = NULL;
	struct fid_av *peers = NULL;
	struct fid_ep *ep;
	char early[256], again[256];
	size_t len = sizeof early, len_again = sizeof again, small = 1;
	hints->caps = FI_MSG;
	hints->ep_attr->type = type;
	hints->fabric_attr->prov_name = strdup(provider);
	OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &of));
	OK(fi_fabric(of->fabric_attr, &fabric, NULL));
	OK(fi_domain(fabric, of, &domain, NULL));
	OK(fi_endpoint(domain, of, &ep, NULL));
	ANSWERS(fi_getname(&ep->fid, early, &small), -FI_ETOOSMALL);
	OK(fi_getname(&ep->fid, early, &len));
	CHECK(small == len);
	OK(fi_cq_open(domain, &cq_attr, &cq, NULL));
	OK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	if (type == FI_EP_MSG) {
		OK(fi_eq_open(fabric, &eq_attr, &eq, NULL));
		OK(fi_ep_bind(ep, &eq->fid, 0));
	} else {
		OK(fi_av_open(domain, &av_attr, &peers, NULL));
		OK(fi_ep_bind(ep, &peers->fid, 0));
	}
	OK(fi_enable(ep));
	OK(fi_getname(&ep->fid, again, &len_again));
	CHECK(len == len_again && !memcmp(early, again, len));
	OK(fi_close(&ep->fid));
	if (eq)
		OK(fi_close(&eq->fid));
	if (peers)
		OK(fi_close(&peers->fid));
	OK(fi_close(&cq->fid));
	OK(fi_close(&domain->fid));
	OK(fi_close(&fabric->fid));
	fi_freeinfo(of);
	fi_freeinfo(hints);
}

int main(void)
{
	struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED};
	struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
	struct fi_cq_tagged_entry entry;
	struct fid_ep *first, *second, *third;
	char node[64], wanted[128], name[256], other[256], in[8];
	fi_addr_t to;

	before_enabling("shm", FI_EP_RDM);
	before_enabling("udp", FI_EP_RDM);
	before_enabling("udp", FI_EP_DGRAM);
	before_enabling("udp", FI_EP_MSG);
	before_enabling("tcp", FI_EP_RDM);
	before_enabling("tcp", FI_EP_MSG);

	snprintf(node, sizeof node, "target-%d", (int)getpid());
	snprintf(wanted, sizeof wanted, "fi_ns://%s:activation", node);
	/* FI_ADDR_STR, or a service that is not a port number, selects names. */
	struct fi_info *info = info_of(node, "activation", 0, FI_SOURCE);
	CHECK(info->addr_format == FI_ADDR_STR && !strcmp(info->src_addr, wanted));
	fi_freeinfo(info);
	info = info_of("127.0.0.1", "4711", FI_ADDR_STR, 0);
	CHECK(info->addr_format == FI_ADDR_STR && !strcmp(info->dest_addr, "fi_ns://127.0.0.1:4711"));
	fi_freeinfo(info);
	info = info_of("127.0.0.1", "4711", 0, 0);
	CHECK(info->addr_format == FI_ADDR_STR && !strcmp(info->dest_addr, "fi_sockaddr_in://127.0.0.1:4711"));
	fi_freeinfo(info);
	info = info_of(node, NULL, FI_ADDR_STR, FI_SOURCE);
	CHECK(!strncmp(info->src_addr, "fi_shm://target-", 16));
	fi_freeinfo(info);

	info = info_of(node, "activation", FI_ADDR_STR, FI_SOURCE);
	CHECK(info->addr_format == FI_ADDR_STR && !strcmp(info->src_addr, wanted));
	OK(fi_fabric(info->fabric_attr, &fabric, NULL));
	OK(fi_domain(fabric, info, &domain, NULL));
	OK(fi_av_open(domain, &av_attr, &av, NULL));
	OK(fi_cq_open(domain, &cq_attr, &cq, NULL));
	OK(open_ep(info, NULL, &first));
	name_of(first, name);
	CHECK(!strcmp(name, wanted));
	OK(open_ep(info, NULL, &second));
	name_of(second, other);
	CHECK(strcmp(other, wanted) && !strncmp(other, wanted, strlen(wanted)) && other[strlen(wanted)] == ':');
	/* The endpoint gets the name that the program sets, or none. */
	ANSWERS(open_ep(info, wanted, &third), -FI_EADDRINUSE);
	OK(fi_close(&third->fid));

	ANSWERS(fi_av_insert(av, other, 1, &to, 0, NULL), 1);
	OK(fi_recv(second, in, sizeof in, NULL, FI_ADDR_UNSPEC, in));
	double end = now() + 20;
	ssize_t answer;
	while ((answer = fi_send(first, "hello", 5, NULL, to, NULL)) == -FI_EAGAIN && now() < end)
		fi_cq_read(cq, NULL, 0);
	OK(answer);
	for (int seen = 0; seen < 2;) {
		CHECK(now() < end);
		answer = fi_cq_read(cq, &entry, 1);
		CHECK(answer == 1 || answer == -FI_EAGAIN);
		seen += answer == 1;
	}
	CHECK(!memcmp(in, "hello", 5));

	OK(fi_close(&first->fid));
	OK(fi_close(&second->fid));
	OK(fi_close(&cq->fid));
	OK(fi_close(&av->fid));
	OK(fi_close(&domain->fid));
	OK(fi_close(&fabric->fid));
	fi_freeinfo(info);
	return 0;
}
