/* The operation tables of every object, for each provider and endpoint type: all exist, have the size that they state,
 * and hold no null pointer. The same holds after the object is closed. */
#include "check.h"

#include <rdma/fi_collective.h>
#include <rdma/fi_ext.h>

/* fi_profile_open and fi_import_log also create objects. Debian's headers do not have all of them. */
struct profile {
	struct fid fid;
	void *ops;
};

static int seen;

/* A table begins with its size in bytes; functions follow. */
static void table(const char *what, const void *table, size_t known)
{
	size_t size;
	CHECK(table);
	memcpy(&size, table, sizeof size);
	if (size < known || size % sizeof(void *)) {
		fprintf(stderr, "%s: a table of %zu bytes, where the headers have %zu\n", what, size, known);
		exit(1);
	}
	void *const *call = (void *const *)table + 1;
	for (size_t at = 0; at < size / sizeof(void *) - 1; at++)
		if (!call[at]) {
			fprintf(stderr, "%s: function %zu is null\n", what, at);
			exit(1);
		}
	seen++;
}

#define TABLE(pointer) table(#pointer, pointer, sizeof *(pointer))

static void fid(struct fid *fid, size_t class)
{
	ANSWERS(fid->fclass, class);
	TABLE(fid->ops);
}

static void ep_tables(struct fid_ep *ep)
{
	TABLE(ep->fid.ops);
	TABLE(ep->ops);
	TABLE(ep->cm);
	TABLE(ep->msg);
	TABLE(ep->rma);
	TABLE(ep->tagged);
	TABLE(ep->atomic);
	TABLE(ep->collective);
}

/* Closes an object and looks at its tables once more: a closed handle answers errors. */
static void close_ep(struct fid_ep *ep)
{
	OK(fi_close(&ep->fid));
	ep_tables(ep);
}

#define CLOSE(object)                       \
	do {                                \
		OK(fi_close(&(object)->fid)); \
		TABLE((object)->fid.ops);   \
		TABLE((object)->ops);       \
	} while (0)

static void endpoints(struct fid_domain *domain, struct fi_info *info, struct fid_av *av, struct fid_cq *cq,
		      struct fid_eq *eq)
{
	struct fid_ep *ep;
	OK(fi_endpoint(domain, info, &ep, NULL));
	fid(&ep->fid, FI_CLASS_EP);
	ep_tables(ep);

	struct fid_ep *alias = NULL;
	OK(fi_ep_alias(ep, &alias, FI_TRANSMIT));
	fid(&alias->fid, FI_CLASS_EP);
	ep_tables(alias);
	close_ep(alias);

	void *ops;
	OK(fi_open_ops(&ep->fid, "fi_profile_ops", 0, &ops, NULL));
	struct profile *profile = (struct profile *)((char *)ops - offsetof(struct profile, ops));
	TABLE(profile->fid.ops);
	table("fi_profile_ops", profile->ops, 8 * sizeof(void *));
	OK(fi_close(&profile->fid));
	TABLE(profile->fid.ops);
	table("fi_profile_ops of a closed one", profile->ops, 8 * sizeof(void *));

	if (info->caps & FI_COLLECTIVE && info->ep_attr->type == FI_EP_RDM) {
		struct fi_av_set_attr attr = {.count = 1, .start_addr = FI_ADDR_NOTAVAIL, .end_addr = FI_ADDR_NOTAVAIL};
		struct fid_av_set *set;
		struct fid_mc *group = NULL;
		fi_addr_t address, self;
		char name[256];
		size_t len = sizeof name;
		OK(fi_ep_bind(ep, &av->fid, 0));
		OK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
		OK(fi_ep_bind(ep, &eq->fid, 0));
		OK(fi_enable(ep));
		OK(fi_getname(&ep->fid, name, &len));
		ANSWERS(fi_av_insert(av, name, 1, &self, 0, NULL), 1);
		OK(fi_av_set(av, &attr, &set, NULL));
		fid(&set->fid, FI_CLASS_AV_SET);
		TABLE(set->ops);
		OK(fi_av_set_insert(set, self));
		OK(fi_av_set_addr(set, &address));
		OK(fi_join_collective(ep, address, set, 0, &group, NULL));
		fid(&group->fid, FI_CLASS_MC);
		OK(fi_close(&group->fid));
		TABLE(group->fid.ops);
		CLOSE(set);
	}
	close_ep(ep);

	struct fid_ep *shared;
	if (!fi_srx_context(domain, info->rx_attr, &shared, NULL)) {
		fid(&shared->fid, FI_CLASS_SRX_CTX);
		ep_tables(shared);
		close_ep(shared);
	}
	struct fid_stx *stx;
	if (!fi_stx_context(domain, info->tx_attr, &stx, NULL)) {
		fid(&stx->fid, FI_CLASS_STX_CTX);
		TABLE(stx->ops);
		CLOSE(stx);
	}
	struct fi_info *several = fi_dupinfo(info);
	/* With all that getinfo granted, FI_COLLECTIVE among it: MPICH opens one so. */
	several->ep_attr->tx_ctx_cnt = several->ep_attr->rx_ctx_cnt = 2;
	struct fid_ep *scalable, *context;
	if (info->ep_attr->type == FI_EP_RDM && info->domain_attr->max_ep_tx_ctx > 1) {
		OK(fi_scalable_ep(domain, several, &scalable, NULL));
		fid(&scalable->fid, FI_CLASS_SEP);
		ep_tables(scalable);
		OK(fi_tx_context(scalable, 1, NULL, &context, NULL));
		fid(&context->fid, FI_CLASS_TX_CTX);
		ep_tables(context);
		close_ep(context);
		OK(fi_rx_context(scalable, 1, NULL, &context, NULL));
		fid(&context->fid, FI_CLASS_RX_CTX);
		ep_tables(context);
		close_ep(context);
		close_ep(scalable);
	}
	fi_freeinfo(several);
}

static void objects(struct fi_info *info)
{
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_cq *cq;
	struct fid_cntr *cntr;
	struct fid_av *av;
	struct fid_eq *eq;
	struct fid_mr *mr;
	struct fid_wait *wait;
	struct fid_poll *poll;
	struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED};
	struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
	struct fi_eq_attr eq_attr = {.wait_obj = FI_WAIT_NONE};
	struct fi_cntr_attr cntr_attr = {.events = FI_CNTR_EVENTS_COMP};
	struct fi_wait_attr wait_attr = {.wait_obj = FI_WAIT_FD};
	struct fi_poll_attr poll_attr = {.flags = 0};
	static char memory[64];

	OK(fi_fabric(info->fabric_attr, &fabric, NULL));
	fid(&fabric->fid, FI_CLASS_FABRIC);
	TABLE(fabric->ops);
	OK(fi_domain(fabric, info, &domain, NULL));
	fid(&domain->fid, FI_CLASS_DOMAIN);
	TABLE(domain->ops);
	TABLE(domain->mr);
	OK(fi_eq_open(fabric, &eq_attr, &eq, NULL));
	fid(&eq->fid, FI_CLASS_EQ);
	TABLE(eq->ops);
	OK(fi_wait_open(fabric, &wait_attr, &wait));
	fid(&wait->fid, FI_CLASS_WAIT);
	TABLE(wait->ops);
	OK(fi_poll_open(domain, &poll_attr, &poll));
	fid(&poll->fid, FI_CLASS_POLL);
	TABLE(poll->ops);
	OK(fi_cq_open(domain, &cq_attr, &cq, NULL));
	fid(&cq->fid, FI_CLASS_CQ);
	TABLE(cq->ops);
	OK(fi_cntr_open(domain, &cntr_attr, &cntr, NULL));
	fid(&cntr->fid, FI_CLASS_CNTR);
	TABLE(cntr->ops);
	OK(fi_av_open(domain, &av_attr, &av, NULL));
	fid(&av->fid, FI_CLASS_AV);
	TABLE(av->ops);
	OK(fi_mr_reg(domain, memory, sizeof memory, FI_SEND | FI_RECV, 0, 1, 0, &mr, NULL));
	fid(&mr->fid, FI_CLASS_MR);
	OK(fi_close(&mr->fid));
	TABLE(mr->fid.ops);

	endpoints(domain, info, av, cq, eq);

	if (info->ep_attr->type == FI_EP_MSG) {
		struct fid_pep *pep;
		OK(fi_passive_ep(fabric, info, &pep, NULL));
		fid(&pep->fid, FI_CLASS_PEP);
		TABLE(pep->ops);
		TABLE(pep->cm);
		CLOSE(pep);
		TABLE(pep->cm);
	}
	CLOSE(av);
	CLOSE(cntr);
	CLOSE(cq);
	CLOSE(poll);
	CLOSE(wait);
	CLOSE(eq);
	CLOSE(domain);
	TABLE(domain->mr);
	CLOSE(fabric);
}

/* The handle of a connection request, which is a bare fid. */
static void request(void)
{
	struct fi_info *hints = fi_allocinfo(), *info, *far;
	hints->fabric_attr->prov_name = strdup("shm");
	hints->ep_attr->type = FI_EP_MSG;
	hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_PROV_KEY;
	OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
	fi_freeinfo(hints);
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_eq *eq;
	struct fid_pep *pep;
	struct fid_ep *ep;
	struct fi_eq_attr eq_attr = {.wait_obj = FI_WAIT_UNSPEC};
	OK(fi_fabric(info->fabric_attr, &fabric, NULL));
	OK(fi_domain(fabric, info, &domain, NULL));
	OK(fi_eq_open(fabric, &eq_attr, &eq, NULL));
	OK(fi_passive_ep(fabric, info, &pep, NULL));
	OK(fi_pep_bind(pep, &eq->fid, 0));
	OK(fi_listen(pep));
	char name[256];
	size_t len = sizeof name;
	OK(fi_getname(&pep->fid, name, &len));
	OK(fi_endpoint(domain, info, &ep, NULL));
	OK(fi_ep_bind(ep, &eq->fid, 0));
	struct fid_cq *cq;
	struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED};
	OK(fi_cq_open(domain, &cq_attr, &cq, NULL));
	OK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	OK(fi_enable(ep));
	OK(fi_connect(ep, name, NULL, 0));
	struct fi_eq_cm_entry entry;
	uint32_t event;
	ANSWERS(fi_eq_sread(eq, &event, &entry, sizeof entry, 20000, 0), sizeof entry);
	CHECK(event == FI_CONNREQ && entry.info && entry.info->handle);
	far = entry.info;
	fid(far->handle, FI_CLASS_CONNREQ);
	OK(fi_reject(pep, far->handle, NULL, 0));
	fi_freeinfo(far);
	OK(fi_close(&ep->fid));
	OK(fi_close(&pep->fid));
	OK(fi_close(&cq->fid));
	OK(fi_close(&eq->fid));
	OK(fi_close(&domain->fid));
	OK(fi_close(&fabric->fid));
	fi_freeinfo(info);
}

int main(void)
{
	static const char *providers[] = {"shm", "udp"};
	static const enum fi_ep_type types[] = {FI_EP_RDM, FI_EP_MSG, FI_EP_DGRAM};
	for (int provider = 0; provider < 2; provider++)
		for (int type = 0; type < 3; type++) {
			struct fi_info *hints = fi_allocinfo(), *info = NULL;
			hints->fabric_attr->prov_name = strdup(providers[provider]);
			hints->ep_attr->type = types[type];
			hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_PROV_KEY | FI_MR_COLLECTIVE;
			OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
			fi_freeinfo(hints);
			/* A NIC is described, or the pointer is null. */
			for (struct fi_info *at = info; at; at = at->next)
				if (at->nic) {
					fid(&at->nic->fid, FI_CLASS_NIC);
					CHECK(at->nic->device_attr && at->nic->bus_attr && at->nic->link_attr);
				}
			objects(info);
			fi_freeinfo(info);
		}
	request();
	struct fid *logging;
	OK(fi_open(FI_VERSION(1, 13), "logging", NULL, 0, 0, &logging, NULL));
	fid(logging, 26);
	OK(fi_close(logging));
	CHECK(seen > 400);
	return 0;
}
