/* A plug-in's provider beside ours: it is listed, selected by name, used, and kept apart from our objects. */
#include "check.h"

static int listed(const struct fi_info *info, const char *name)
{
	int count = 0;
	for (; info; info = info->next)
		count += !strcmp(info->fabric_attr->prov_name, name);
	return count;
}

int main(void)
{
	struct fi_info *all = NULL, *toy = NULL, *hints = fi_allocinfo();
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_cq *cq;
	struct fid_ep *ep;
	struct fi_cq_attr attr = {.format = FI_CQ_FORMAT_CONTEXT};
	struct fi_cq_entry entry;
	struct pair pair;
	char in[64] = {0};

	/* All providers, with names and versions. */
	OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, NULL, &all));
	ANSWERS(listed(all, "toy"), 1);
	CHECK(listed(all, "shm") > 0);
	fi_freeinfo(all);
	OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, FI_PROV_ATTR_ONLY, NULL, &all));
	ANSWERS(listed(all, "toy"), 1);
	fi_freeinfo(all);

	/* Selected by name, and refused for capabilities that it lacks. */
	hints->fabric_attr->prov_name = strdup("toy");
	OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &toy));
	CHECK(!toy->next && !strcmp(toy->domain_attr->name, "toybox"));
	CHECK(toy->fabric_attr->prov_version == FI_VERSION(7, 3));
	CHECK(toy->fabric_attr->api_version == FI_VERSION(1, 17));
	hints->caps = FI_RMA;
	ANSWERS(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &all), -FI_ENODATA);
	fi_freeinfo(hints);

	OK(fi_fabric(toy->fabric_attr, &fabric, NULL));
	CHECK(fabric->api_version == FI_VERSION(1, 17));
	OK(fi_domain(fabric, toy, &domain, NULL));
	OK(fi_cq_open(domain, &attr, &cq, NULL));
	OK(fi_endpoint(domain, toy, &ep, NULL));
	OK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	OK(fi_enable(ep));
	OK(fi_send(ep, "to myself", 9, NULL, 0, NULL));
	ANSWERS(fi_cq_read(cq, &entry, 1), -FI_EAGAIN);
	OK(fi_recv(ep, in, sizeof in, NULL, 0, &in));
	ANSWERS(fi_cq_read(cq, &entry, 1), 1);
	CHECK(entry.op_context == &in && !strcmp(in, "to myself"));

	/* Ours beside it; neither accepts the other's objects. */
	pair_open(&pair, FI_MSG);
	struct fid_ep *ours;
	OK(fi_endpoint(pair.domain, pair.info, &ours, NULL));
	ANSWERS(fi_ep_bind(ours, &cq->fid, FI_TRANSMIT | FI_RECV), -FI_EINVAL);
	struct fid *fids[1] = {&cq->fid};
	ANSWERS(fi_trywait(pair.fabric, fids, 1), -FI_EINVAL);
	OK(fi_close(&ours->fid));
	pair_close(&pair);

	OK(fi_close(&ep->fid));
	OK(fi_close(&cq->fid));
	OK(fi_close(&domain->fid));
	OK(fi_close(&fabric->fid));
	fi_freeinfo(toy);
	return 0;
}
