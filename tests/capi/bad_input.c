/* Each pointer of each call as null, undefined flags and enum values, absurd sizes and counts: each call returns an error,
 * without undefined behaviour. Then every call on closed objects. */
#include "check.h"

#include <limits.h>

#include <rdma/fi_collective.h>
#include <rdma/fi_ext.h>
#include <rdma/fi_trigger.h>

/* A flag that no call accepts. */
#define NO_FLAG (1ULL << 63)
/* A count or size that is too large for anything, and one that overflows in a multiplication. */
#define HUGE_SIZE ((size_t)-1)
#define OVERFLOWING (((size_t)1 << 61) + 1)

static int asked;

#define BAD(call)                                                                          \
	do {                                                                               \
		long long answer_ = (long long)(call);                                     \
		asked++;                                                                   \
		if (answer_ >= 0) {                                                        \
			fprintf(stderr, "%s:%d: %s answered %lld\n", __FILE__, __LINE__, #call, answer_); \
			exit(1);                                                           \
		}                                                                          \
	} while (0)

static struct pair pair;
static char memory[64];
static struct iovec iov = {memory, sizeof memory};

static void entries(void)
{
	struct fi_info *info = NULL, *hints = fi_allocinfo();
	struct fid_fabric *fabric;
	struct fid *fid;
	char text[8];
	BAD(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, NULL, NULL));
	BAD(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, NO_FLAG, NULL, &info));
	BAD(fi_getinfo(FI_VERSION(1, 17), "nonsense.invalid", "no service", 0, NULL, &info));
	BAD(fi_getinfo(FI_VERSION(1, 17), "\xff\xfe\x01", "\x7f\xff", 0, NULL, &info));
	BAD(fi_getinfo(FI_VERSION(1, 17), NULL, "99999999999999999999", FI_SOURCE, NULL, &info));
	ANSWERS(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, FI_SOURCE, NULL, &info), -FI_ENODATA);
	BAD(fi_getinfo(FI_VERSION(255, 255), NULL, NULL, 0, NULL, &info));
	CHECK(!info);
	/* Hints: one bad field at a time. */
	static char garbage[] = "\xff\xfe\x80; ^ , ;; \x01";
	static char longer[70000];
	memset(longer, 'x', sizeof longer - 1);
	char **names[] = {&hints->fabric_attr->prov_name, &hints->fabric_attr->name, &hints->domain_attr->name};
	for (size_t at = 0; at < 3; at++) {
		*names[at] = garbage;
		BAD(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
		*names[at] = longer;
		BAD(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
		*names[at] = NULL;
	}
	uint32_t *numbers[] = {&hints->addr_format, (uint32_t *)&hints->ep_attr->type,
		(uint32_t *)&hints->domain_attr->threading, (uint32_t *)&hints->domain_attr->control_progress,
		(uint32_t *)&hints->domain_attr->data_progress, (uint32_t *)&hints->domain_attr->resource_mgmt,
		(uint32_t *)&hints->domain_attr->av_type, &hints->ep_attr->protocol};
	for (size_t at = 0; at < sizeof numbers / sizeof *numbers; at++) {
		*numbers[at] = 0x7fffffff;
		BAD(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
		*numbers[at] = 0xffffffff;
		BAD(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
		*numbers[at] = 0;
	}
	size_t *sizes[] = {&hints->tx_attr->inject_size, &hints->tx_attr->size, &hints->tx_attr->iov_limit,
		&hints->tx_attr->rma_iov_limit, &hints->rx_attr->size, &hints->rx_attr->iov_limit,
		&hints->ep_attr->max_msg_size, &hints->ep_attr->tx_ctx_cnt, &hints->domain_attr->mr_key_size,
		&hints->domain_attr->cq_data_size, &hints->domain_attr->max_ep_tx_ctx,
		&hints->domain_attr->max_ep_rx_ctx, &hints->domain_attr->max_ep_stx_ctx,
		&hints->domain_attr->max_ep_srx_ctx, &hints->domain_attr->cntr_cnt, &hints->domain_attr->mr_iov_limit,
		&hints->domain_attr->max_err_data, &hints->domain_attr->mr_cnt};
	for (size_t at = 0; at < sizeof sizes / sizeof *sizes; at++) {
		*sizes[at] = HUGE_SIZE - 1;
		BAD(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
		*sizes[at] = 0;
	}
	uint64_t *bits[] = {&hints->caps, &hints->tx_attr->caps, &hints->rx_attr->caps, &hints->tx_attr->op_flags,
		&hints->rx_attr->op_flags, &hints->tx_attr->msg_order, &hints->rx_attr->msg_order, &hints->domain_attr->caps};
	for (size_t at = 0; at < sizeof bits / sizeof *bits; at++) {
		*bits[at] = NO_FLAG;
		BAD(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
		*bits[at] = 0;
	}
	/* Lengths without a pointer, and lengths beyond any object. */
	hints->src_addr = memory;
	hints->src_addrlen = HUGE_SIZE;
	BAD(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
	CHECK(!fi_dupinfo(hints));
	hints->src_addrlen = OVERFLOWING;
	CHECK(!fi_dupinfo(hints));
	hints->dest_addr = hints->src_addr;
	hints->dest_addrlen = HUGE_SIZE;
	hints->src_addr = NULL;
	hints->src_addrlen = 0;
	BAD(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
	CHECK(!fi_dupinfo(hints));
	hints->dest_addr = NULL;
	hints->dest_addrlen = 0;
	hints->domain_attr->auth_key = (uint8_t *)memory;
	hints->domain_attr->auth_key_size = HUGE_SIZE / 2;
	BAD(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
	CHECK(!fi_dupinfo(hints));
	hints->domain_attr->auth_key = NULL;
	hints->domain_attr->auth_key_size = 0;
	/* Missing parts. */
	struct fi_info empty = {0};
	BAD(fi_fabric(NULL, &fabric, NULL));
	BAD(fi_fabric(hints->fabric_attr, NULL, NULL));
	BAD(fi_fabric(hints->fabric_attr, &fabric, NULL));
	BAD(pair.fabric->ops->domain(pair.fabric, &empty, &pair.domain, NULL));
	struct fi_info *copy = fi_dupinfo(&empty);
	CHECK(copy && !copy->tx_attr);
	fi_freeinfo(copy);
	fi_freeinfo(NULL);
	fi_freeinfo(hints);
	BAD(fi_open(FI_VERSION(1, 17), NULL, NULL, 0, 0, &fid, NULL));
	BAD(fi_open(FI_VERSION(1, 17), "nonsense", NULL, 0, 0, &fid, NULL));
	BAD(fi_open(FI_VERSION(1, 17), "logging", NULL, 0, 0, NULL, NULL));
	BAD(fi_open(FI_VERSION(1, 17), "logging", NULL, 0, NO_FLAG, &fid, NULL));
	BAD(fi_open(FI_VERSION(1, 17), "logging", memory, HUGE_SIZE, 0, &fid, NULL));
	CHECK(!fi_tostr_r(NULL, 8, memory, FI_TYPE_CAPS) && !fi_tostr_r(text, 0, memory, FI_TYPE_CAPS));
	CHECK(fi_tostr(NULL, FI_TYPE_CAPS) && fi_tostr(memory, (enum fi_type)INT_MAX));
	CHECK(fi_strerror(INT_MIN) && fi_strerror(INT_MAX));
	int count;
	struct fi_param *params;
	BAD(fi_getparams(NULL, &count));
	BAD(fi_getparams(&params, NULL));
	fi_freeparams(NULL);
}

static void opening(void)
{
	struct fid_fabric *fabric = pair.fabric;
	struct fid_domain *domain = pair.domain, *other;
	struct fi_ops_fabric *of = fabric->ops;
	struct fi_ops_domain *od = domain->ops;
	struct fid_ep *ep;
	struct fid_pep *pep;
	struct fid_eq *eq;
	struct fid_cq *cq;
	struct fid_cntr *cntr;
	struct fid_av *av;
	struct fid_wait *wait;
	struct fid_poll *poll;
	struct fid_stx *stx;

	BAD(of->domain(NULL, pair.info, &other, NULL));
	BAD(of->domain(fabric, NULL, &other, NULL));
	BAD(of->domain(fabric, pair.info, NULL, NULL));
	BAD(of->passive_ep(NULL, pair.info, &pep, NULL));
	BAD(of->passive_ep(fabric, NULL, &pep, NULL));
	BAD(of->passive_ep(fabric, pair.info, NULL, NULL));
	BAD(of->eq_open(NULL, NULL, &eq, NULL));
	BAD(of->eq_open(fabric, NULL, NULL, NULL));
	struct fi_eq_attr eq_attr = {.wait_obj = 77};
	BAD(of->eq_open(fabric, &eq_attr, &eq, NULL));
	eq_attr = (struct fi_eq_attr){.flags = NO_FLAG};
	BAD(of->eq_open(fabric, &eq_attr, &eq, NULL));
	eq_attr = (struct fi_eq_attr){.size = HUGE_SIZE};
	BAD(of->eq_open(fabric, &eq_attr, &eq, NULL));
	eq_attr = (struct fi_eq_attr){.wait_obj = FI_WAIT_SET};
	BAD(of->eq_open(fabric, &eq_attr, &eq, NULL));
	BAD(of->wait_open(NULL, NULL, &wait));
	BAD(of->wait_open(fabric, NULL, &wait));
	struct fi_wait_attr wait_attr = {.wait_obj = FI_WAIT_FD};
	BAD(of->wait_open(fabric, &wait_attr, NULL));
	wait_attr.flags = NO_FLAG;
	BAD(of->wait_open(fabric, &wait_attr, &wait));
	wait_attr = (struct fi_wait_attr){.wait_obj = 99};
	BAD(of->wait_open(fabric, &wait_attr, &wait));
	struct fid *fids[2] = {&pair.cq[0]->fid, NULL};
	BAD(of->trywait(NULL, fids, 1));
	BAD(of->trywait(fabric, NULL, 1));
	BAD(of->trywait(fabric, fids, -1));
	BAD(of->trywait(fabric, fids, 2));
	fids[1] = &domain->fid;
	BAD(of->trywait(fabric, fids, 2));

	BAD(od->av_open(NULL, NULL, &av, NULL));
	BAD(od->av_open(domain, NULL, NULL, NULL));
	struct fi_av_attr av_attr = {.type = 77};
	BAD(od->av_open(domain, &av_attr, &av, NULL));
	av_attr = (struct fi_av_attr){.flags = NO_FLAG};
	BAD(od->av_open(domain, &av_attr, &av, NULL));
	av_attr = (struct fi_av_attr){.rx_ctx_bits = 65};
	BAD(od->av_open(domain, &av_attr, &av, NULL));
	av_attr = (struct fi_av_attr){.rx_ctx_bits = -1};
	BAD(od->av_open(domain, &av_attr, &av, NULL));
	/* The count is a hint: it allocates nothing in advance. */
	av_attr = (struct fi_av_attr){.type = FI_AV_TABLE, .count = HUGE_SIZE};
	if (!od->av_open(domain, &av_attr, &av, NULL))
		OK(fi_close(&av->fid));
	BAD(od->cq_open(NULL, NULL, &cq, NULL));
	BAD(od->cq_open(domain, NULL, NULL, NULL));
	struct fi_cq_attr cq_attr = {.format = 77};
	BAD(od->cq_open(domain, &cq_attr, &cq, NULL));
	cq_attr = (struct fi_cq_attr){.wait_obj = 77};
	BAD(od->cq_open(domain, &cq_attr, &cq, NULL));
	cq_attr = (struct fi_cq_attr){.wait_obj = FI_WAIT_UNSPEC, .wait_cond = 77};
	BAD(od->cq_open(domain, &cq_attr, &cq, NULL));
	cq_attr = (struct fi_cq_attr){.flags = NO_FLAG};
	BAD(od->cq_open(domain, &cq_attr, &cq, NULL));
	cq_attr = (struct fi_cq_attr){.wait_obj = FI_WAIT_SET};
	BAD(od->cq_open(domain, &cq_attr, &cq, NULL));
	cq_attr = (struct fi_cq_attr){.size = HUGE_SIZE};
	BAD(od->cq_open(domain, &cq_attr, &cq, NULL));
	cq_attr = (struct fi_cq_attr){.size = OVERFLOWING};
	BAD(od->cq_open(domain, &cq_attr, &cq, NULL));
	BAD(od->cntr_open(NULL, NULL, &cntr, NULL));
	BAD(od->cntr_open(domain, NULL, NULL, NULL));
	struct fi_cntr_attr cntr_attr = {.events = 77};
	BAD(od->cntr_open(domain, &cntr_attr, &cntr, NULL));
	cntr_attr = (struct fi_cntr_attr){.wait_obj = 77};
	BAD(od->cntr_open(domain, &cntr_attr, &cntr, NULL));
	cntr_attr = (struct fi_cntr_attr){.flags = NO_FLAG};
	BAD(od->cntr_open(domain, &cntr_attr, &cntr, NULL));
	cntr_attr = (struct fi_cntr_attr){.wait_obj = FI_WAIT_SET};
	BAD(od->cntr_open(domain, &cntr_attr, &cntr, NULL));
	BAD(od->poll_open(NULL, NULL, &poll));
	BAD(od->poll_open(domain, NULL, NULL));
	struct fi_poll_attr poll_attr = {.flags = NO_FLAG};
	BAD(od->poll_open(domain, &poll_attr, &poll));
	BAD(od->endpoint(NULL, pair.info, &ep, NULL));
	BAD(od->endpoint(domain, NULL, &ep, NULL));
	BAD(od->endpoint(domain, pair.info, NULL, NULL));
	BAD(od->scalable_ep(NULL, pair.info, &ep, NULL));
	BAD(od->scalable_ep(domain, NULL, &ep, NULL));
	BAD(od->scalable_ep(domain, pair.info, NULL, NULL));
	BAD(od->stx_ctx(NULL, NULL, &stx, NULL));
	BAD(od->stx_ctx(domain, NULL, NULL, NULL));
	BAD(od->srx_ctx(NULL, NULL, &ep, NULL));
	BAD(od->srx_ctx(domain, NULL, NULL, NULL));
	/* Infos for endpoints, each with one absurd field. */
	struct fi_info *info = fi_dupinfo(pair.info);
	struct fi_info kept = *info;
	size_t *sizes[] = {&info->tx_attr->size, &info->rx_attr->size, &info->tx_attr->iov_limit, &info->rx_attr->iov_limit,
		&info->tx_attr->inject_size, &info->tx_attr->rma_iov_limit, &info->ep_attr->max_msg_size,
		&info->ep_attr->tx_ctx_cnt, &info->ep_attr->rx_ctx_cnt};
	for (size_t at = 0; at < sizeof sizes / sizeof *sizes; at++) {
		size_t old = *sizes[at];
		*sizes[at] = HUGE_SIZE - 1;
		BAD(od->endpoint(domain, info, &ep, NULL));
		*sizes[at] = OVERFLOWING;
		if (sizes[at] != &info->ep_attr->max_msg_size)
			BAD(od->endpoint(domain, info, &ep, NULL));
		*sizes[at] = old;
	}
	info->ep_attr->type = 77;
	BAD(od->endpoint(domain, info, &ep, NULL));
	BAD(od->scalable_ep(domain, info, &ep, NULL));
	info->ep_attr->type = FI_EP_RDM;
	info->addr_format = 4711;
	BAD(od->endpoint(domain, info, &ep, NULL));
	*info = kept;
	info->handle = &domain->fid;
	BAD(od->endpoint(domain, info, &ep, NULL));
	info->handle = NULL;
	uint64_t caps = info->caps;
	info->caps |= NO_FLAG;
	BAD(od->endpoint(domain, info, &ep, NULL));
	info->caps = caps;
	uint64_t op_flags = info->tx_attr->op_flags;
	info->tx_attr->op_flags = NO_FLAG;
	BAD(od->endpoint(domain, info, &ep, NULL));
	info->tx_attr->op_flags = op_flags;
	info->fabric_attr->prov_name[0] = 'X';
	BAD(of->domain(fabric, info, &other, NULL));
	fi_freeinfo(info);

	/* Queries. */
	struct fi_atomic_attr atomic_attr;
	struct fi_collective_attr collective_attr = {.op = FI_SUM, .datatype = FI_INT32};
	BAD(od->query_atomic(NULL, FI_INT32, FI_SUM, &atomic_attr, 0));
	BAD(od->query_atomic(domain, FI_INT32, FI_SUM, NULL, 0));
	BAD(od->query_atomic(domain, 77, FI_SUM, &atomic_attr, 0));
	BAD(od->query_atomic(domain, FI_INT32, 77, &atomic_attr, 0));
	BAD(od->query_atomic(domain, FI_INT32, FI_SUM, &atomic_attr, NO_FLAG));
	BAD(od->query_collective(NULL, FI_BARRIER, &collective_attr, 0));
	BAD(od->query_collective(domain, FI_ALLREDUCE, NULL, 0));
	BAD(od->query_collective(domain, 77, &collective_attr, 0));
	BAD(od->query_collective(domain, FI_ALLREDUCE, &collective_attr, NO_FLAG));
	collective_attr.op = 77;
	BAD(od->query_collective(domain, FI_ALLREDUCE, &collective_attr, 0));
}

static void registering(void)
{
	struct fid *domain = &pair.domain->fid;
	struct fi_ops_mr *ops = pair.domain->mr;
	struct fid_mr *mr;
	uint64_t access = FI_SEND | FI_RECV;
	BAD(ops->reg(NULL, memory, 8, access, 0, 1, 0, &mr, NULL));
	BAD(ops->reg(domain, memory, HUGE_SIZE, access, 0, 1, 0, &mr, NULL));
	BAD(ops->reg(domain, memory, 8, NO_FLAG, 0, 1, 0, &mr, NULL));
	BAD(ops->reg(domain, memory, 8, access, 0, 1, NO_FLAG, &mr, NULL));
	BAD(ops->reg(domain, memory, 8, access, 0, 1, 0, NULL, NULL));
	BAD(ops->reg(domain, memory, 8, access, 16, 1, 0, &mr, NULL));
	BAD(ops->regv(NULL, &iov, 1, access, 0, 1, 0, &mr, NULL));
	BAD(ops->regv(domain, NULL, 1, access, 0, 1, 0, &mr, NULL));
	BAD(ops->regv(domain, &iov, 0, access, 0, 1, 0, &mr, NULL));
	BAD(ops->regv(domain, &iov, HUGE_SIZE, access, 0, 1, 0, &mr, NULL));
	BAD(ops->regv(domain, &iov, OVERFLOWING, access, 0, 1, 0, &mr, NULL));
	BAD(ops->regv(domain, &iov, 1, access, 0, 1, 0, NULL, NULL));
	struct fi_mr_attr attr = {.mr_iov = &iov, .iov_count = 1, .access = access};
	BAD(ops->regattr(NULL, &attr, 0, &mr));
	BAD(ops->regattr(domain, NULL, 0, &mr));
	BAD(ops->regattr(domain, &attr, 0, NULL));
	BAD(ops->regattr(domain, &attr, NO_FLAG, &mr));
	/* FI_MR_DMABUF is refused, and the pointer of its description is not read. */
	BAD(ops->regattr(domain, &attr, 1ULL << 40, &mr));
	attr.mr_iov = (struct iovec *)1;
	BAD(ops->regattr(domain, &attr, 1ULL << 40, &mr));
	attr.mr_iov = &iov;
	attr.iface = 77;
	BAD(ops->regattr(domain, &attr, 0, &mr));
	attr.iface = FI_HMEM_CUDA;
	BAD(ops->regattr(domain, &attr, 0, &mr));
	attr.iface = FI_HMEM_SYSTEM;
	attr.auth_key = (uint8_t *)memory;
	attr.auth_key_size = HUGE_SIZE;
	BAD(ops->regattr(domain, &attr, 0, &mr));
	attr.auth_key_size = OVERFLOWING;
	BAD(ops->regattr(domain, &attr, 0, &mr));
	struct iovec wrapping = {(void *)(uintptr_t)-8, 64};
	attr = (struct fi_mr_attr){.mr_iov = &wrapping, .iov_count = 1, .access = access};
	BAD(ops->regattr(domain, &attr, 0, &mr));

	OK(fi_mr_reg(pair.domain, memory, sizeof memory, FI_REMOTE_READ, 0, 1, 0, &mr, NULL));
	struct fi_ops *of = mr->fid.ops;
	uint64_t base, key;
	uint8_t raw[64];
	size_t size = sizeof raw;
	BAD(of->bind(NULL, &pair.ep[0]->fid, 0));
	BAD(of->bind(&mr->fid, NULL, 0));
	BAD(of->bind(&mr->fid, &pair.av->fid, 0));
	BAD(of->control(NULL, FI_ENABLE, NULL));
	BAD(of->control(&mr->fid, 4711, NULL));
	BAD(of->control(&mr->fid, FI_GET_RAW_MR, NULL));
	BAD(of->control(&mr->fid, FI_REFRESH, NULL));
	BAD(fi_mr_raw_attr(mr, &base, raw, NULL, 0));
	BAD(fi_mr_raw_attr(mr, &base, raw, &size, NO_FLAG));
	BAD(fi_mr_map_raw(pair.domain, base, NULL, 8, &key, 0));
	BAD(fi_mr_map_raw(pair.domain, base, raw, 8, NULL, 0));
	BAD(fi_mr_map_raw(pair.domain, base, raw, HUGE_SIZE, &key, 0));
	BAD(fi_mr_map_raw(pair.domain, base, raw, 8, &key, NO_FLAG));
	BAD(fi_mr_refresh(mr, NULL, 1, 0));
	BAD(fi_mr_refresh(mr, &iov, HUGE_SIZE, 0));
	BAD(fi_mr_refresh(mr, &iov, 1, NO_FLAG));
	BAD(of->ops_open(&mr->fid, NULL, 0, NULL, NULL));
	OK(fi_close(&mr->fid));
	BAD(fi_close(&mr->fid));
	BAD(fi_mr_enable(mr));
	CHECK(fi_mr_key(mr) == FI_KEY_NOTAVAIL && !fi_mr_desc(mr));
}

static void vectors(void)
{
	struct fi_ops_av *ops = pair.av->ops;
	struct fid_av *av = pair.av;
	fi_addr_t numbers[2];
	char name[256], text[256];
	size_t len = sizeof name;
	OK(fi_av_lookup(av, pair.addr[0], name, &len));
	BAD(ops->insert(NULL, name, 1, numbers, 0, NULL));
	BAD(ops->insert(av, NULL, 1, numbers, 0, NULL));
	BAD(ops->insert(av, name, HUGE_SIZE, numbers, 0, NULL));
	BAD(ops->insert(av, name, 1, numbers, NO_FLAG, NULL));
	BAD(ops->insertsvc(NULL, "node", "1", numbers, 0, NULL));
	BAD(ops->insertsvc(av, NULL, "1", numbers, 0, NULL));
	BAD(ops->insertsvc(av, "node", "1", numbers, NO_FLAG, NULL));
	BAD(ops->insertsym(NULL, "node", 1, "1", 1, numbers, 0, NULL));
	BAD(ops->insertsym(av, NULL, 1, "1", 1, numbers, 0, NULL));
	BAD(ops->insertsym(av, "node", HUGE_SIZE, "1", 2, numbers, 0, NULL));
	BAD(ops->insertsym(av, "node", OVERFLOWING, "1", 8, numbers, 0, NULL));
	BAD(ops->insertsym(av, "node", 1, "1", 1, numbers, NO_FLAG, NULL));
	BAD(ops->remove(NULL, pair.addr, 1, 0));
	BAD(ops->remove(av, NULL, 1, 0));
	BAD(ops->remove(av, NULL, HUGE_SIZE, 0));
	BAD(ops->remove(av, pair.addr, 1, NO_FLAG));
	numbers[0] = FI_ADDR_NOTAVAIL;
	BAD(ops->remove(av, numbers, 1, 0));
	BAD(ops->lookup(NULL, 0, name, &len));
	BAD(ops->lookup(av, 4711, name, &len));
	BAD(ops->lookup(av, FI_ADDR_UNSPEC, name, &len));
	BAD(ops->lookup(av, pair.addr[0], name, NULL));
	len = 0;
	OK(ops->lookup(av, pair.addr[0], NULL, &len));
	CHECK(len > 8);
	CHECK(!ops->straddr(NULL, name, text, &len) && !ops->straddr(av, NULL, text, &len));
	CHECK(!ops->straddr(av, name, text, NULL));
	BAD(av->fid.ops->bind(&av->fid, NULL, 0));
	BAD(av->fid.ops->bind(&av->fid, &pair.cq[0]->fid, 0));
	BAD(av->fid.ops->bind(NULL, &pair.cq[0]->fid, 0));

	struct fid_av_set *set;
	struct fi_av_set_attr attr = {.start_addr = FI_ADDR_NOTAVAIL, .end_addr = FI_ADDR_NOTAVAIL};
	BAD(ops->av_set(NULL, &attr, &set, NULL));
	BAD(ops->av_set(av, &attr, NULL, NULL));
	attr.flags = NO_FLAG;
	BAD(ops->av_set(av, &attr, &set, NULL));
	/* A range covers only addresses that the vector holds. */
	attr = (struct fi_av_set_attr){.start_addr = 0, .end_addr = HUGE_SIZE - 2, .stride = 1};
	OK(ops->av_set(av, &attr, &set, NULL));
	OK(fi_close(&set->fid));
	attr = (struct fi_av_set_attr){.start_addr = 1, .end_addr = 0, .stride = 1};
	BAD(ops->av_set(av, &attr, &set, NULL));
	attr = (struct fi_av_set_attr){.start_addr = FI_ADDR_NOTAVAIL, .end_addr = FI_ADDR_NOTAVAIL};
	OK(fi_av_set(av, &attr, &set, NULL));
	struct fi_ops_av_set *os = set->ops;
	BAD(os->set_union(NULL, set));
	BAD(os->set_union(set, NULL));
	BAD(os->intersect(set, NULL));
	BAD(os->diff(set, NULL));
	BAD(os->insert(NULL, pair.addr[0]));
	BAD(os->insert(set, 4711));
	BAD(os->remove(set, 4711));
	BAD(os->addr(set, NULL));
	OK(fi_close(&set->fid));
	BAD(fi_av_set_insert(set, pair.addr[0]));
	BAD(os->insert(set, pair.addr[0]));
	BAD(fi_close(&set->fid));
}

static void queues(void)
{
	struct fid_cq *cq = pair.cq[0];
	struct fi_ops_cq *ops = cq->ops;
	struct fi_cq_tagged_entry entry;
	struct fi_cq_err_entry error;
	fi_addr_t source;
	char text[4];
	BAD(ops->read(NULL, &entry, 1));
	BAD(ops->read(cq, NULL, 1));
	BAD(ops->readfrom(NULL, &entry, 1, &source));
	BAD(ops->readfrom(cq, NULL, 1, &source));
	BAD(ops->readfrom(cq, &entry, 1, NULL)); /* the queue is empty */
	BAD(ops->readerr(NULL, &error, 0));
	BAD(ops->readerr(cq, NULL, 0));
	BAD(ops->readerr(cq, &error, NO_FLAG));
	BAD(ops->sread(NULL, &entry, 1, NULL, 0));
	BAD(ops->sread(cq, NULL, 1, NULL, 0));
	BAD(ops->sreadfrom(NULL, &entry, 1, &source, NULL, 0));
	BAD(ops->sreadfrom(cq, NULL, 1, &source, NULL, 0));
	BAD(ops->signal(NULL));
	CHECK(ops->strerror(NULL, 5, NULL, NULL, 0) && ops->strerror(cq, INT_MIN, NULL, text, 1) && !text[0]);
	BAD(cq->fid.ops->control(&cq->fid, FI_GETWAIT, NULL));
	BAD(cq->fid.ops->control(&cq->fid, 4711, NULL));
	BAD(cq->fid.ops->control(NULL, FI_GETWAIT, NULL));
	BAD(cq->fid.ops->bind(&cq->fid, &pair.ep[0]->fid, 0));

	struct fid_cntr *cntr;
	struct fid_poll *poll;
	void *contexts[2];
	OK(fi_cntr_open(pair.domain, NULL, &cntr, NULL));
	struct fi_ops_cntr *oc = cntr->ops;
	CHECK(oc->read(NULL) == 0 && oc->readerr(NULL) == 0);
	BAD(oc->add(NULL, 1));
	BAD(oc->set(NULL, 1));
	BAD(oc->wait(NULL, 1, 0));
	BAD(oc->adderr(NULL, 1));
	BAD(oc->seterr(NULL, 1));
	BAD(oc->wait(cntr, UINT64_MAX, 0));
	OK(fi_poll_open(pair.domain, NULL, &poll));
	struct fi_ops_poll *op = poll->ops;
	BAD(op->poll(NULL, contexts, 2));
	BAD(op->poll(poll, NULL, 2));
	BAD(op->poll(poll, contexts, -1));
	BAD(op->poll_add(NULL, &cq->fid, 0));
	BAD(op->poll_add(poll, NULL, 0));
	BAD(op->poll_add(poll, &pair.av->fid, 0));
	BAD(op->poll_add(poll, &cq->fid, NO_FLAG));
	BAD(op->poll_del(poll, NULL, 0));
	BAD(op->poll_del(poll, &cq->fid, NO_FLAG));
	BAD(op->poll_del(poll, &cq->fid, 0));
	OK(fi_close(&poll->fid));
	BAD(op->poll(poll, contexts, 2));
	BAD(fi_close(&poll->fid));
	OK(fi_close(&cntr->fid));
	BAD(oc->add(cntr, 1));
	BAD(fi_close(&cntr->fid));
	CHECK(fi_cntr_read(cntr) == 0);

	struct fid_eq *eq;
	struct fi_eq_attr attr = {.flags = FI_WRITE, .wait_obj = FI_WAIT_FD};
	uint32_t event;
	struct fi_eq_err_entry eq_error = {0};
	OK(fi_eq_open(pair.fabric, &attr, &eq, NULL));
	struct fi_ops_eq *oe = eq->ops;
	BAD(oe->read(NULL, &event, memory, sizeof memory, 0));
	BAD(oe->read(eq, NULL, memory, sizeof memory, 0));
	BAD(oe->read(eq, &event, NULL, sizeof memory, 0));
	ANSWERS(oe->read(eq, &event, memory, sizeof memory, NO_FLAG), -FI_EBADFLAGS);
	BAD(oe->readerr(NULL, &eq_error, 0));
	BAD(oe->readerr(eq, NULL, 0));
	ANSWERS(oe->readerr(eq, &eq_error, NO_FLAG), -FI_EBADFLAGS);
	BAD(oe->write(NULL, FI_NOTIFY, memory, 8, 0));
	BAD(oe->write(eq, FI_NOTIFY, NULL, 8, 0));
	BAD(oe->write(eq, FI_NOTIFY, memory, HUGE_SIZE, 0));
	BAD(oe->write(eq, FI_NOTIFY, memory, 8, NO_FLAG));
	BAD(oe->sread(NULL, &event, memory, sizeof memory, 0, 0));
	BAD(oe->sread(eq, NULL, memory, sizeof memory, 0, 0));
	ANSWERS(oe->sread(eq, &event, memory, sizeof memory, 0, NO_FLAG), -FI_EBADFLAGS);
	CHECK(oe->strerror(NULL, 5, NULL, NULL, 0) && oe->strerror(eq, INT_MIN, NULL, text, sizeof text));
	BAD(eq->fid.ops->control(&eq->fid, FI_GETWAIT, NULL));
	OK(fi_close(&eq->fid));
	BAD(oe->read(eq, &event, memory, sizeof memory, 0));
	BAD(fi_close(&eq->fid));
}

static void endpoints(void)
{
	struct fid_ep *ep = pair.ep[0], *other;
	struct fid *fid = &ep->fid;
	struct fid_mc *mc;
	size_t size = sizeof memory;
	uint64_t flags = NO_FLAG;
	BAD(fid->ops->bind(NULL, &pair.cq[0]->fid, FI_SEND));
	BAD(fid->ops->bind(fid, NULL, 0));
	BAD(fid->ops->bind(fid, &pair.cq[0]->fid, NO_FLAG));
	BAD(fid->ops->control(NULL, FI_ENABLE, NULL));
	BAD(fid->ops->control(fid, FI_GETOPSFLAG, NULL));
	BAD(fid->ops->control(fid, FI_GETOPSFLAG, &flags));
	BAD(fid->ops->control(fid, FI_SETOPSFLAG, NULL));
	BAD(fid->ops->control(fid, FI_SETOPSFLAG, &flags));
	flags = FI_TRANSMIT | NO_FLAG;
	BAD(fid->ops->control(fid, FI_SETOPSFLAG, &flags));
	flags = FI_RECV | NO_FLAG;
	BAD(fid->ops->control(fid, FI_SETOPSFLAG, &flags));
	BAD(fid->ops->control(fid, FI_ALIAS, NULL));
	struct fi_alias alias = {NULL, FI_TRANSMIT};
	BAD(fid->ops->control(fid, FI_ALIAS, &alias));
	BAD(fi_ep_alias(ep, &other, FI_TRANSMIT | FI_RECV));
	BAD(fi_ep_alias(ep, &other, FI_TRANSMIT | NO_FLAG));
	BAD(fi_ep_alias(ep, &other, FI_RECV | NO_FLAG));
	BAD(fid->ops->ops_open(NULL, "fi_profile_ops", 0, (void **)&other, NULL));
	BAD(fid->ops->ops_open(fid, NULL, 0, (void **)&other, NULL));
	BAD(fid->ops->ops_open(fid, "fi_profile_ops", 0, NULL, NULL));
	BAD(fid->ops->ops_open(fid, "fi_profile_ops", NO_FLAG, (void **)&other, NULL));
	BAD(fid->ops->ops_set(fid, "x", 0, NULL, NULL));
	BAD(fid->ops->tostr(fid, memory, sizeof memory));

	struct fi_ops_ep *oe = ep->ops;
	BAD(oe->cancel(NULL, memory));
	BAD(oe->getopt(NULL, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, memory, &size));
	BAD(oe->getopt(fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, memory, NULL));
	BAD(oe->getopt(fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, NULL, &size));
	BAD(oe->getopt(fid, 77, FI_OPT_CM_DATA_SIZE, memory, &size));
	BAD(oe->getopt(fid, FI_OPT_ENDPOINT, INT_MIN, memory, &size));
	BAD(oe->setopt(NULL, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, memory, sizeof(size_t)));
	BAD(oe->setopt(fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, NULL, sizeof(size_t)));
	BAD(oe->setopt(fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, memory, HUGE_SIZE));
	BAD(oe->setopt(fid, FI_OPT_ENDPOINT, INT_MAX, memory, sizeof(size_t)));
	BAD(oe->tx_ctx(NULL, 0, NULL, &other, NULL));
	BAD(oe->tx_ctx(ep, 0, NULL, &other, NULL));
	BAD(oe->rx_ctx(ep, 0, NULL, NULL, NULL));
	BAD(oe->rx_ctx(ep, INT_MIN, NULL, &other, NULL));
	BAD(oe->rx_size_left(NULL));
	BAD(oe->tx_size_left(NULL));

	struct fi_ops_cm *oc = ep->cm;
	size_t none = 0;
	BAD(oc->setname(NULL, memory, 8));
	BAD(oc->setname(fid, NULL, 8));
	BAD(oc->setname(fid, memory, HUGE_SIZE));
	BAD(oc->getname(NULL, memory, &size));
	BAD(oc->getname(fid, memory, NULL));
	BAD(oc->getname(fid, NULL, &none));
	BAD(oc->getpeer(NULL, memory, &size));
	BAD(oc->getpeer(ep, memory, NULL));
	BAD(oc->connect(NULL, memory, NULL, 0));
	BAD(oc->connect(ep, NULL, NULL, 0));
	BAD(oc->listen(NULL));
	BAD(oc->accept(NULL, NULL, 0));
	BAD(oc->accept(ep, NULL, 8));
	BAD(oc->reject(NULL, NULL, NULL, 0));
	BAD(oc->shutdown(NULL, 0));
	BAD(oc->shutdown(ep, NO_FLAG));
	BAD(oc->join(NULL, memory, 0, &mc, NULL));
	BAD(oc->join(ep, memory, 0, NULL, NULL));
	BAD(oc->join(ep, NULL, FI_COLLECTIVE, &mc, NULL));
	BAD(oc->join(ep, memory, FI_COLLECTIVE | NO_FLAG, &mc, NULL));
	struct fi_collective_addr address = {NULL, FI_ADDR_NOTAVAIL};
	BAD(oc->join(ep, &address, FI_COLLECTIVE, &mc, NULL));
}

static void messages(void)
{
	struct fid_ep *ep = pair.ep[0];
	struct fi_ops_msg *m = ep->msg;
	struct fi_ops_tagged *t = ep->tagged;
	fi_addr_t to = pair.addr[1];
	struct iovec null = {NULL, 8}, wrapping[2] = {{memory, HUGE_SIZE}, {memory, HUGE_SIZE}};
	BAD(m->recv(NULL, memory, 8, NULL, 0, NULL));
	BAD(m->recvv(ep, NULL, NULL, 1, 0, NULL));
	BAD(m->recvv(ep, &iov, NULL, HUGE_SIZE, 0, NULL));
	BAD(m->recvv(ep, &iov, NULL, OVERFLOWING, 0, NULL));
	BAD(m->recvmsg(ep, NULL, 0));
	BAD(m->recvmsg(NULL, NULL, 0));
	BAD(m->send(ep, NULL, 8, NULL, to, NULL));
	BAD(m->send(ep, memory, HUGE_SIZE, NULL, to, NULL));
	BAD(m->send(ep, memory, 8, NULL, 4711, NULL));
	BAD(m->send(ep, memory, 8, NULL, FI_ADDR_UNSPEC, NULL));
	BAD(m->sendv(ep, NULL, NULL, 1, to, NULL));
	BAD(m->sendv(ep, &null, NULL, 1, to, NULL));
	BAD(m->sendv(ep, wrapping, NULL, 2, to, NULL));
	BAD(m->sendv(ep, &iov, NULL, HUGE_SIZE, to, NULL));
	BAD(m->sendmsg(ep, NULL, 0));
	struct fi_msg msg = {.msg_iov = &iov, .iov_count = 1, .addr = to};
	BAD(m->sendmsg(ep, &msg, NO_FLAG));
	BAD(m->recvmsg(ep, &msg, NO_FLAG));
	BAD(m->sendmsg(ep, &msg, FI_TRIGGER));
	msg.iov_count = HUGE_SIZE;
	BAD(m->sendmsg(ep, &msg, 0));
	BAD(m->recvmsg(ep, &msg, 0));
	msg = (struct fi_msg){.iov_count = 1, .addr = to};
	BAD(m->sendmsg(ep, &msg, 0));
	BAD(m->recvmsg(ep, &msg, 0));
	BAD(m->inject(ep, NULL, 8, to));
	BAD(m->inject(ep, memory, HUGE_SIZE, to));
	BAD(m->inject(NULL, memory, 8, to));
	BAD(m->senddata(ep, NULL, 8, NULL, 1, to, NULL));
	BAD(m->injectdata(ep, NULL, 8, 1, to));
	BAD(m->injectdata(ep, memory, HUGE_SIZE, 1, to));

	BAD(t->recv(NULL, memory, 8, NULL, 0, 1, 0, NULL));
	BAD(t->recvv(ep, NULL, NULL, 1, 0, 1, 0, NULL));
	BAD(t->recvv(ep, &iov, NULL, HUGE_SIZE, 0, 1, 0, NULL));
	BAD(t->recvmsg(ep, NULL, 0));
	BAD(t->send(ep, NULL, 8, NULL, to, 1, NULL));
	BAD(t->send(ep, memory, HUGE_SIZE, NULL, to, 1, NULL));
	BAD(t->sendv(ep, NULL, NULL, 1, to, 1, NULL));
	BAD(t->sendv(ep, &null, NULL, 1, to, 1, NULL));
	BAD(t->sendmsg(ep, NULL, 0));
	struct fi_msg_tagged tagged = {.msg_iov = &iov, .iov_count = 1, .addr = to};
	BAD(t->sendmsg(ep, &tagged, NO_FLAG));
	BAD(t->recvmsg(ep, &tagged, NO_FLAG));
	BAD(t->recvmsg(ep, &tagged, FI_TRIGGER));
	BAD(t->recvmsg(ep, &tagged, FI_DISCARD));
	tagged.iov_count = HUGE_SIZE;
	BAD(t->sendmsg(ep, &tagged, 0));
	BAD(t->recvmsg(ep, &tagged, 0));
	BAD(t->inject(ep, NULL, 8, to, 1));
	BAD(t->inject(ep, memory, HUGE_SIZE, to, 1));
	BAD(t->senddata(ep, NULL, 8, NULL, 1, to, 1, NULL));
	BAD(t->injectdata(ep, NULL, 8, 1, to, 1));

	struct fi_ops_rma *r = ep->rma;
	BAD(r->read(NULL, memory, 8, NULL, to, 0, 1, NULL));
	BAD(r->read(ep, NULL, 8, NULL, to, 0, 1, NULL));
	BAD(r->read(ep, memory, HUGE_SIZE, NULL, to, 0, 1, NULL));
	BAD(r->readv(ep, NULL, NULL, 1, to, 0, 1, NULL));
	BAD(r->readv(ep, &iov, NULL, HUGE_SIZE, to, 0, 1, NULL));
	BAD(r->readmsg(ep, NULL, 0));
	BAD(r->write(ep, NULL, 8, NULL, to, 0, 1, NULL));
	BAD(r->write(ep, memory, HUGE_SIZE, NULL, to, 0, 1, NULL));
	BAD(r->write(ep, memory, 8, NULL, 4711, 0, 1, NULL));
	BAD(r->writev(ep, NULL, NULL, 1, to, 0, 1, NULL));
	BAD(r->writev(ep, wrapping, NULL, 2, to, 0, 1, NULL));
	BAD(r->writemsg(ep, NULL, 0));
	struct fi_rma_iov far = {0, 64, 1};
	struct fi_msg_rma rma = {.msg_iov = &iov, .iov_count = 1, .addr = to, .rma_iov = &far, .rma_iov_count = 1};
	BAD(r->writemsg(ep, &rma, NO_FLAG));
	BAD(r->readmsg(ep, &rma, NO_FLAG));
	BAD(r->readmsg(ep, &rma, FI_TRIGGER));
	rma.rma_iov = NULL;
	BAD(r->writemsg(ep, &rma, 0));
	rma.rma_iov = &far;
	rma.rma_iov_count = HUGE_SIZE;
	BAD(r->writemsg(ep, &rma, 0));
	rma.rma_iov_count = 1;
	far.len = HUGE_SIZE;
	BAD(r->writemsg(ep, &rma, 0));
	rma.rma_iov_count = 0;
	BAD(r->writemsg(ep, &rma, 0));
	BAD(r->inject(ep, NULL, 8, to, 0, 1));
	BAD(r->inject(ep, memory, HUGE_SIZE, to, 0, 1));
	BAD(r->writedata(ep, NULL, 8, NULL, 1, to, 0, 1, NULL));
	BAD(r->injectdata(ep, NULL, 8, 1, to, 0, 1));
}

static void atomics(void)
{
	struct fid_ep *ep = pair.ep[0];
	struct fi_ops_atomic *a = ep->atomic;
	fi_addr_t to = pair.addr[1];
	struct fi_ioc ioc = {memory, 1}, none = {NULL, 1}, many = {memory, HUGE_SIZE};
	size_t count;
	BAD(a->write(NULL, memory, 1, NULL, to, 0, 1, FI_INT32, FI_SUM, NULL));
	BAD(a->write(ep, NULL, 1, NULL, to, 0, 1, FI_INT32, FI_SUM, NULL));
	BAD(a->write(ep, memory, HUGE_SIZE, NULL, to, 0, 1, FI_INT32, FI_SUM, NULL));
	BAD(a->write(ep, memory, OVERFLOWING, NULL, to, 0, 1, FI_INT64, FI_SUM, NULL));
	BAD(a->write(ep, memory, 0, NULL, to, 0, 1, FI_INT32, FI_SUM, NULL));
	BAD(a->write(ep, memory, 1, NULL, to, 0, 1, 77, FI_SUM, NULL));
	BAD(a->write(ep, memory, 1, NULL, to, 0, 1, FI_INT32, 77, NULL));
	BAD(a->writev(ep, NULL, NULL, 1, to, 0, 1, FI_INT32, FI_SUM, NULL));
	BAD(a->writev(ep, &none, NULL, 1, to, 0, 1, FI_INT32, FI_SUM, NULL));
	BAD(a->writev(ep, &many, NULL, 1, to, 0, 1, FI_INT32, FI_SUM, NULL));
	BAD(a->writev(ep, &ioc, NULL, HUGE_SIZE, to, 0, 1, FI_INT32, FI_SUM, NULL));
	BAD(a->writemsg(ep, NULL, 0));
	BAD(a->inject(ep, NULL, 1, to, 0, 1, FI_INT32, FI_SUM));
	BAD(a->inject(ep, memory, HUGE_SIZE, to, 0, 1, FI_INT32, FI_SUM));
	BAD(a->readwrite(ep, NULL, 1, NULL, memory, NULL, to, 0, 1, FI_INT32, FI_SUM, NULL));
	BAD(a->readwrite(ep, memory, 1, NULL, NULL, NULL, to, 0, 1, FI_INT32, FI_SUM, NULL));
	BAD(a->readwritev(ep, &ioc, NULL, 1, NULL, NULL, 1, to, 0, 1, FI_INT32, FI_SUM, NULL));
	BAD(a->readwritev(ep, &ioc, NULL, 1, &none, NULL, 1, to, 0, 1, FI_INT32, FI_SUM, NULL));
	BAD(a->readwritev(ep, NULL, NULL, 1, &ioc, NULL, 1, to, 0, 1, FI_INT32, FI_SUM, NULL));
	BAD(a->readwritemsg(ep, NULL, &ioc, NULL, 1, 0));
	BAD(a->compwrite(ep, memory, 1, NULL, NULL, NULL, memory, NULL, to, 0, 1, FI_INT32, FI_CSWAP, NULL));
	BAD(a->compwrite(ep, memory, 1, NULL, memory, NULL, NULL, NULL, to, 0, 1, FI_INT32, FI_CSWAP, NULL));
	BAD(a->compwrite(ep, NULL, 1, NULL, memory, NULL, memory, NULL, to, 0, 1, FI_INT32, FI_CSWAP, NULL));
	BAD(a->compwritev(ep, &ioc, NULL, 1, NULL, NULL, 1, &ioc, NULL, 1, to, 0, 1, FI_INT32, FI_CSWAP, NULL));
	BAD(a->compwritev(ep, &ioc, NULL, 1, &ioc, NULL, 1, NULL, NULL, 1, to, 0, 1, FI_INT32, FI_CSWAP, NULL));
	BAD(a->compwritemsg(ep, NULL, &ioc, NULL, 1, &ioc, NULL, 1, 0));
	struct fi_rma_ioc far = {0, 1, 1};
	struct fi_msg_atomic msg = {.msg_iov = &ioc, .iov_count = 1, .addr = to, .rma_iov = &far, .rma_iov_count = 1,
		.datatype = FI_INT32, .op = FI_SUM};
	BAD(a->writemsg(ep, &msg, NO_FLAG));
	BAD(a->writemsg(ep, &msg, FI_TRIGGER));
	BAD(a->readwritemsg(ep, &msg, NULL, NULL, 1, 0));
	BAD(a->readwritemsg(ep, &msg, &ioc, NULL, HUGE_SIZE, 0));
	msg.rma_iov = NULL;
	BAD(a->writemsg(ep, &msg, 0));
	msg.rma_iov = &far;
	msg.rma_iov_count = HUGE_SIZE;
	BAD(a->writemsg(ep, &msg, 0));
	msg.rma_iov_count = 1;
	far.count = HUGE_SIZE;
	BAD(a->writemsg(ep, &msg, 0));
	BAD(a->writevalid(NULL, FI_INT32, FI_SUM, &count));
	BAD(a->writevalid(ep, FI_INT32, FI_SUM, NULL));
	BAD(a->writevalid(ep, 77, FI_SUM, &count));
	BAD(a->readwritevalid(ep, FI_INT32, 77, &count));
	BAD(a->compwritevalid(ep, FI_INT32, FI_SUM, &count));

	struct fi_ops_collective *c = ep->collective;
	BAD(c->barrier(NULL, 0, NULL));
	BAD(c->barrier(ep, 4711, NULL));
	BAD(c->broadcast(ep, NULL, 1, NULL, 4711, 0, FI_INT32, 0, NULL));
	BAD(c->allreduce(ep, NULL, 1, NULL, NULL, NULL, 4711, FI_INT32, FI_SUM, 0, NULL));
	BAD(c->msg(ep, NULL, NULL, NULL, 0, 0));

	/* Deferred work. */
	struct fid *domain = &pair.domain->fid;
	struct fid_cntr *cntr;
	OK(fi_cntr_open(pair.domain, NULL, &cntr, NULL));
	struct fi_deferred_work work = {0};
	BAD(fi_control(domain, FI_QUEUE_WORK, NULL));
	BAD(fi_control(domain, FI_QUEUE_WORK, &work));
	work.triggering_cntr = cntr;
	BAD(fi_control(domain, FI_QUEUE_WORK, &work));
	work.op_type = 77;
	work.op.msg = (struct fi_op_msg *)memory;
	BAD(fi_control(domain, FI_QUEUE_WORK, &work));
	struct fi_op_msg send = {.ep = NULL};
	work.op_type = FI_OP_SEND;
	work.op.msg = &send;
	BAD(fi_control(domain, FI_QUEUE_WORK, &work));
	struct fi_op_cntr add = {.cntr = NULL};
	work.op_type = FI_OP_CNTR_ADD;
	work.op.cntr = &add;
	BAD(fi_control(domain, FI_QUEUE_WORK, &work));
	BAD(fi_control(domain, FI_CANCEL_WORK, NULL));
	BAD(fi_control(domain, FI_CANCEL_WORK, &work));
	OK(fi_close(&cntr->fid));
	BAD(fi_domain_bind(pair.domain, NULL, 0));
	BAD(fi_domain_bind(pair.domain, &pair.cq[0]->fid, 0));
	BAD(fi_control(domain, FI_MAP_RAW_MR, NULL));
	BAD(fi_control(domain, 4711, NULL));
	BAD(fi_control(domain, INT_MIN, NULL));
}

/* Every call on closed objects, through their tables from before the close and from after it. */
static void closed(void)
{
	struct fid_ep *ep = pair.ep[0];
	struct fid_cq *cq = pair.cq[0];
	struct fid_av *av = pair.av;
	struct fid_domain *domain = pair.domain;
	struct fid_fabric *fabric = pair.fabric;
	struct fi_info *info = fi_dupinfo(pair.info);
	struct fi_ops_msg *msg = ep->msg;
	struct fi_ops_tagged *tagged = ep->tagged;
	struct fi_ops_rma *rma = ep->rma;
	struct fi_ops_atomic *atomic = ep->atomic;
	struct fi_ops_cm *cm = ep->cm;
	struct fi_ops_ep *ops = ep->ops;
	struct fi_ops_domain *od = domain->ops;
	struct fi_ops_fabric *of = fabric->ops;
	struct fi_ops_av *oa = av->ops;
	struct fi_ops *fid_ops = ep->fid.ops;
	struct fid_ep *other_ep;
	struct fid_domain *other;
	struct fid_eq *eq;
	struct fid_mr *mr;
	fi_addr_t to = pair.addr[1];
	size_t size = sizeof memory;
	pair_close(&pair);
	for (int stale = 0; stale < 2; stale++) {
		BAD(msg->send(ep, memory, 8, NULL, to, NULL));
		BAD(msg->recv(ep, memory, 8, NULL, to, NULL));
		BAD(msg->inject(ep, memory, 8, to));
		BAD(tagged->send(ep, memory, 8, NULL, to, 1, NULL));
		BAD(tagged->recv(ep, memory, 8, NULL, to, 1, 0, NULL));
		BAD(rma->read(ep, memory, 8, NULL, to, 0, 1, NULL));
		BAD(rma->write(ep, memory, 8, NULL, to, 0, 1, NULL));
		BAD(atomic->write(ep, memory, 1, NULL, to, 0, 1, FI_INT32, FI_SUM, NULL));
		BAD(cm->getname(&ep->fid, memory, &size));
		BAD(ops->cancel(&ep->fid, memory));
		BAD(ops->getopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, memory, &size));
		BAD(od->endpoint(domain, info, &other_ep, NULL));
		BAD(od->cq_open(domain, NULL, &cq, NULL));
		BAD(of->domain(fabric, info, &other, NULL));
		BAD(of->eq_open(fabric, NULL, &eq, NULL));
		BAD(oa->remove(av, &to, 1, 0));
		BAD(fid_ops->close(&ep->fid));
		BAD(fid_ops->control(&ep->fid, FI_ENABLE, NULL));
		BAD(fid_ops->bind(&ep->fid, &av->fid, 0));
		BAD(fi_close(&domain->fid));
		BAD(fi_close(&fabric->fid));
		BAD(fi_mr_reg(domain, memory, 8, FI_SEND, 0, 1, 0, &mr, NULL));
		msg = ep->msg;
		tagged = ep->tagged;
		rma = ep->rma;
		atomic = ep->atomic;
		cm = ep->cm;
		ops = ep->ops;
		od = domain->ops;
		of = fabric->ops;
		oa = av->ops;
		fid_ops = ep->fid.ops;
	}
	fi_freeinfo(info);
}

int main(void)
{
	pair_open(&pair, FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC);
	entries();
	opening();
	registering();
	vectors();
	queues();
	endpoints();
	messages();
	atomics();
	/* None of these calls posted anything, and the pair still works. */
	struct fi_cq_tagged_entry entry;
	char in[8];
	POST(&pair, fi_recv(pair.ep[1], in, sizeof in, NULL, FI_ADDR_UNSPEC, in));
	POST(&pair, fi_send(pair.ep[0], "hello", 6, NULL, pair.addr[1], NULL));
	ANSWERS(completion(&pair, 1, &entry), 1);
	CHECK(entry.op_context == in && !strcmp(in, "hello"));
	closed();
	CHECK(asked > 350);
	return 0;
}
