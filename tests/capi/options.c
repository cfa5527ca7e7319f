/* Endpoint options through fi_getopt and fi_setopt: every option of fi_endpoint.h 1.0 to 2.7, some of fi_ext.h, and
 * some that do not exist, on every provider and kind of object, before and after fi_enable, with every length. */
#include "check.h"
#include <stdbool.h>

/* By number, because headers of 1.x lack the later names. */
enum { MIN_MULTI_RECV, CM_DATA_SIZE, BUFFERED_MIN, BUFFERED_LIMIT, SEND_BUF_SIZE, RECV_BUF_SIZE, TX_SIZE, RX_SIZE,
       HMEM_P2P, XPU_TRIGGER, CUDA_API_PERMITTED, SHARED_MEMORY_PERMITTED, MAX_MSG_SIZE, MAX_TAGGED_SIZE, MAX_RMA_SIZE,
       MAX_ATOMIC_SIZE, INJECT_MSG_SIZE, INJECT_TAGGED_SIZE, INJECT_RMA_SIZE, INJECT_ATOMIC_SIZE, FIREWALL_ADDR,
       LAST = FIREWALL_ADDR };
enum { P2P_ENABLED, P2P_REQUIRED, P2P_PREFERRED, P2P_DISABLED };

enum kind { NONE, FIXED, SIZE, BOOL, INT }; /* not supported, read-only, and the types of those that can be set */

static enum kind of_endpoint(int option)
{
	switch (option) {
	case CM_DATA_SIZE: case TX_SIZE: case RX_SIZE: return FIXED;
	case MIN_MULTI_RECV: case MAX_MSG_SIZE: case MAX_TAGGED_SIZE: case MAX_RMA_SIZE: case MAX_ATOMIC_SIZE:
	case INJECT_MSG_SIZE: case INJECT_TAGGED_SIZE: case INJECT_RMA_SIZE: case INJECT_ATOMIC_SIZE: return SIZE;
	case SHARED_MEMORY_PERMITTED: return BOOL;
	case HMEM_P2P: return INT;
	default: return NONE;
	}
}

static enum kind of_receives(int option) { return option == MIN_MULTI_RECV ? SIZE : NONE; }
static enum kind of_nothing(int option) { (void)option; return NONE; }

/* Every option of `ep`, whose kinds `kind_of` tells. */
static void every_option(struct fid_ep *ep, enum kind (*kind_of)(int))
{
	struct fid *fid = &ep->fid;
	for (int option = 0; option <= LAST + 3; option++) {
		char value[128] = {0}, other[128] = {0};
		enum kind kind = kind_of(option);
		size_t len = sizeof value, right = kind == BOOL ? sizeof(bool) : kind == INT ? sizeof(int) : sizeof(size_t);
		if (kind == NONE) {
			ANSWERS(fi_getopt(fid, FI_OPT_ENDPOINT, option, value, &len), -FI_ENOPROTOOPT);
			for (len = 0; len <= 64; len++)
				ANSWERS(fi_setopt(fid, FI_OPT_ENDPOINT, option, value, len), -FI_ENOPROTOOPT);
			continue;
		}
		OK(fi_getopt(fid, FI_OPT_ENDPOINT, option, value, &len));
		CHECK(len == right);
		ANSWERS(fi_getopt(fid, FI_OPT_ENDPOINT + 1, option, value, &len), -FI_ENOPROTOOPT);
		for (size_t room = 0; room < right; room++) {
			len = room;
			ANSWERS(fi_getopt(fid, FI_OPT_ENDPOINT, option, other, &len), -FI_ETOOSMALL);
			CHECK(len == right);
		}
		int wrong = kind == FIXED ? -FI_ENOPROTOOPT : -FI_EINVAL;
		for (len = 0; len <= 64; len++)
			if (len != right)
				ANSWERS(fi_setopt(fid, FI_OPT_ENDPOINT, option, value, len), wrong);
		ANSWERS(fi_setopt(fid, FI_OPT_ENDPOINT, option, NULL, right), wrong);
		ANSWERS(fi_setopt(fid, FI_OPT_ENDPOINT + 1, option, value, right), -FI_ENOPROTOOPT);
		/* What it has may be set again. */
		ANSWERS(fi_setopt(fid, FI_OPT_ENDPOINT, option, value, right), kind == FIXED ? -FI_ENOPROTOOPT : 0);
		if (kind == SIZE && option != MIN_MULTI_RECV) {
			size_t size = SIZE_MAX, found = 0;
			ANSWERS(fi_setopt(fid, FI_OPT_ENDPOINT, option, &size, sizeof size), -FI_EINVAL);
			size = 8;
			OK(fi_setopt(fid, FI_OPT_ENDPOINT, option, &size, sizeof size));
			len = sizeof found;
			OK(fi_getopt(fid, FI_OPT_ENDPOINT, option, &found, &len));
			CHECK(found == 8);
			OK(fi_setopt(fid, FI_OPT_ENDPOINT, option, value, right));
		}
		if (kind == INT) {
			const int wanted[] = {-FI_EOPNOTSUPP, -FI_EOPNOTSUPP, -FI_EOPNOTSUPP, 0, -FI_EINVAL, -FI_EINVAL};
			for (int way = P2P_ENABLED; way < P2P_DISABLED + 3; way++) {
				int mode = way == P2P_DISABLED + 2 ? -1 : way;
				ANSWERS(fi_setopt(fid, FI_OPT_ENDPOINT, option, &mode, sizeof mode), wanted[way]);
			}
		}
	}
	static const int unknown[] = {-1, 1000, INT32_MAX, INT32_MIN, -0x0efb0000};
	for (size_t at = 0; at < sizeof unknown / sizeof *unknown; at++) {
		size_t value = 0, len = sizeof value;
		ANSWERS(fi_getopt(fid, FI_OPT_ENDPOINT, unknown[at], &value, &len), -FI_ENOPROTOOPT);
		ANSWERS(fi_setopt(fid, FI_OPT_ENDPOINT, unknown[at], &value, len), -FI_ENOPROTOOPT);
	}
}

static struct fi_info *info_of(const char *provider, enum fi_ep_type type)
{
	struct fi_info *hints = fi_allocinfo(), *info;
	hints->caps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC;
	if (type == FI_EP_DGRAM)
		hints->caps = FI_MSG;
	hints->ep_attr->type = type;
	hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->fabric_attr->prov_name = strdup(provider);
	OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
	fi_freeinfo(hints);
	return info;
}

static void every_object(const char *provider, enum fi_ep_type type)
{
	struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED};
	struct fi_eq_attr eq_attr = {0};
	struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_cq *cq;
	struct fid_eq *eq;
	struct fid_av *av;
	struct fid_ep *ep, *srx, *sep, *tx, *rx;
	struct fid_stx *stx;
	struct fid_pep *pep;
	struct fi_info *info = info_of(provider, type);
	size_t value = 0, len = sizeof value;
	bool yes = true, no = false;
	OK(fi_fabric(info->fabric_attr, &fabric, NULL));
	OK(fi_domain(fabric, info, &domain, NULL));
	OK(fi_cq_open(domain, &cq_attr, &cq, NULL));
	OK(fi_eq_open(fabric, &eq_attr, &eq, NULL));
	OK(fi_av_open(domain, &av_attr, &av, NULL));
	OK(fi_endpoint(domain, info, &ep, NULL));
	every_option(ep, of_endpoint);
	int denied = !strcmp(provider, "shm") ? -FI_EOPNOTSUPP : 0;
	ANSWERS(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, SHARED_MEMORY_PERMITTED, &no, sizeof no), denied);
	OK(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, SHARED_MEMORY_PERMITTED, &yes, sizeof yes));
	if (type == FI_EP_MSG)
		OK(fi_ep_bind(ep, &eq->fid, 0));
	else
		OK(fi_ep_bind(ep, &av->fid, 0));
	OK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	OK(fi_enable(ep));
	every_option(ep, of_endpoint);
	ANSWERS(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, SHARED_MEMORY_PERMITTED, &no, sizeof no), -FI_EINVAL);
	if (type == FI_EP_MSG) {
		OK(fi_passive_ep(fabric, info, &pep, NULL));
		for (int option = 0; option <= LAST; option++) {
			len = sizeof value;
			ANSWERS(fi_getopt(&pep->fid, FI_OPT_ENDPOINT, option, &value, &len),
				option == CM_DATA_SIZE ? 0 : -FI_ENOPROTOOPT);
			ANSWERS(fi_setopt(&pep->fid, FI_OPT_ENDPOINT, option, &value, sizeof value), -FI_ENOSYS);
		}
		OK(fi_close(&pep->fid));
	}
	OK(fi_srx_context(domain, info->rx_attr, &srx, NULL));
	every_option(srx, of_receives);
	OK(fi_close(&srx->fid));
	OK(fi_stx_context(domain, info->tx_attr, &stx, NULL));
	ANSWERS(stx->ops->getopt(&stx->fid, FI_OPT_ENDPOINT, CM_DATA_SIZE, &value, &len), -FI_ENOSYS);
	ANSWERS(stx->ops->setopt(&stx->fid, FI_OPT_ENDPOINT, CM_DATA_SIZE, &value, len), -FI_ENOSYS);
	OK(fi_close(&stx->fid));
	if (type == FI_EP_RDM) {
		OK(fi_scalable_ep(domain, info, &sep, NULL));
		OK(fi_tx_context(sep, 0, NULL, &tx, NULL));
		OK(fi_rx_context(sep, 0, NULL, &rx, NULL));
		every_option(tx, of_nothing);
		every_option(rx, of_receives);
		OK(fi_close(&tx->fid));
		OK(fi_close(&rx->fid));
		OK(fi_close(&sep->fid));
	}
	OK(fi_close(&ep->fid));
	OK(fi_close(&av->fid));
	OK(fi_close(&eq->fid));
	OK(fi_close(&cq->fid));
	OK(fi_close(&domain->fid));
	OK(fi_close(&fabric->fid));
	fi_freeinfo(info);
}

int main(void)
{
	every_object("shm", FI_EP_RDM);
	every_object("udp", FI_EP_RDM);
	every_object("udp", FI_EP_DGRAM);
	every_object("udp", FI_EP_MSG);
	every_object("shm", FI_EP_MSG);
	return 0;
}
