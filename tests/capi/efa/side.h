/* One endpoint of provider efa, with a vector and a queue for both directions. */
#ifndef SIDE_H
#define SIDE_H

#include "check.h"

struct side {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fid_cq *cq;
	struct fid_ep *ep;
};

/* Opens everything but the endpoint's queues: options can be set until side_enable. */
static inline struct side side_open(uint32_t version, uint64_t caps)
{
	struct side side = {0};
	struct fi_info *hints = fi_allocinfo();
	struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_DATA, .wait_obj = FI_WAIT_NONE};
	struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
	hints->caps = caps;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->domain_attr->threading = FI_THREAD_SAFE;
	hints->fabric_attr->prov_name = strdup("efa");
	hints->fabric_attr->name = strdup("efa");
	OK(fi_getinfo(version, NULL, NULL, 0, hints, &side.info));
	fi_freeinfo(hints);
	OK(fi_fabric(side.info->fabric_attr, &side.fabric, NULL));
	OK(fi_domain(side.fabric, side.info, &side.domain, NULL));
	OK(fi_av_open(side.domain, &av_attr, &side.av, NULL));
	OK(fi_cq_open(side.domain, &cq_attr, &side.cq, NULL));
	OK(fi_endpoint(side.domain, side.info, &side.ep, NULL));
	return side;
}

static inline void side_enable(const struct side *side)
{
	OK(fi_ep_bind(side->ep, &side->av->fid, 0));
	OK(fi_ep_bind(side->ep, &side->cq->fid, FI_TRANSMIT | FI_RECV));
	OK(fi_enable(side->ep));
}

/* Closes the endpoint, then up to two registrations, then the rest. */
static inline void side_close(struct side *side, struct fid_mr *one, struct fid_mr *other)
{
	OK(fi_close(&side->ep->fid));
	if (one)
		OK(fi_close(&one->fid));
	if (other)
		OK(fi_close(&other->fid));
	OK(fi_close(&side->cq->fid));
	OK(fi_close(&side->av->fid));
	OK(fi_close(&side->domain->fid));
	OK(fi_close(&side->fabric->fid));
	fi_freeinfo(side->info);
}

#endif
