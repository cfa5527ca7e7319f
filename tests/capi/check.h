/* Shared by the C programs: checks that report failures, and a pair of endpoints in one process. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

/* Headers of 2.x deprecate these names. The programs use them on purpose, as older programs do. */
#ifdef FI_MR_BASIC
#undef FI_MR_UNSPEC
#undef FI_MR_BASIC
#undef FI_MR_SCALABLE
#undef FI_LOCAL_MR
#undef FI_REG_MR
#define FI_MR_UNSPEC 0
#define FI_MR_BASIC (1 << 0)
#define FI_MR_SCALABLE (1 << 1)
#define FI_LOCAL_MR (1ULL << 55)
#define FI_REG_MR (1ULL << 59)
#endif

#define CHECK(condition)                                                                  \
	do {                                                                              \
		if (!(condition)) {                                                       \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);   \
			exit(1);                                                          \
		}                                                                         \
	} while (0)

/* Checks a result, and prints the actual one if it differs. */
#define ANSWERS(call, wanted)                                                                            \
	do {                                                                                             \
		long long answer_ = (long long)(call);                                                   \
		if (answer_ != (long long)(wanted)) {                                                    \
			fprintf(stderr, "%s:%d: %s answered %lld (%s), wanted %lld\n", __FILE__,         \
				__LINE__, #call, answer_, fi_strerror((int)-answer_),                    \
				(long long)(wanted));                                                    \
			exit(1);                                                                         \
		}                                                                                        \
	} while (0)

#define OK(call) ANSWERS(call, 0)

static inline double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* The objects of one process: a domain, queues, an address vector, and two endpoints that know each other. */
struct pair {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_cq *cq[2];
	struct fid_av *av;
	struct fid_ep *ep[2];
	fi_addr_t addr[2]; /* of each endpoint */
};

static inline struct fi_info *pair_info(uint64_t caps)
{
	struct fi_info *hints = fi_allocinfo(), *info = NULL;
	CHECK(hints);
	hints->caps = caps;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->domain_attr->threading = FI_THREAD_SAFE;
	hints->fabric_attr->prov_name = strdup("shm");
	OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
	fi_freeinfo(hints);
	CHECK(info);
	return info;
}

static inline void pair_open_flags(struct pair *pair, uint64_t caps, enum fi_wait_obj wait, uint64_t bind_flags)
{
	struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED, .wait_obj = wait};
	struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
	pair->info = pair_info(caps);
	OK(fi_fabric(pair->info->fabric_attr, &pair->fabric, NULL));
	OK(fi_domain(pair->fabric, pair->info, &pair->domain, NULL));
	OK(fi_av_open(pair->domain, &av_attr, &pair->av, NULL));
	for (int at = 0; at < 2; at++) {
		char name[256];
		size_t len = sizeof name;
		OK(fi_cq_open(pair->domain, &cq_attr, &pair->cq[at], NULL));
		OK(fi_endpoint(pair->domain, pair->info, &pair->ep[at], NULL));
		OK(fi_ep_bind(pair->ep[at], &pair->av->fid, 0));
		OK(fi_ep_bind(pair->ep[at], &pair->cq[at]->fid, FI_TRANSMIT | FI_RECV | bind_flags));
		OK(fi_enable(pair->ep[at]));
		OK(fi_getname(&pair->ep[at]->fid, name, &len));
		ANSWERS(fi_av_insert(pair->av, name, 1, &pair->addr[at], 0, NULL), 1);
	}
}

static inline void pair_open(struct pair *pair, uint64_t caps) { pair_open_flags(pair, caps, FI_WAIT_NONE, 0); }

static inline void pair_close_but_fabric(struct pair *pair)
{
	for (int at = 0; at < 2; at++)
		OK(fi_close(&pair->ep[at]->fid));
	for (int at = 0; at < 2; at++)
		OK(fi_close(&pair->cq[at]->fid));
	OK(fi_close(&pair->av->fid));
	OK(fi_close(&pair->domain->fid));
}

static inline void pair_close(struct pair *pair)
{
	pair_close_but_fabric(pair);
	OK(fi_close(&pair->fabric->fid));
	fi_freeinfo(pair->info);
}

/* The address that a peer passes for `memory`, the first byte of a registration. */
static inline uint64_t far_address(const struct pair *pair, const void *memory)
{
	return pair->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)memory : 0;
}

/* Reads one completion of an endpoint while it drives the other too. Returns the result of fi_cq_read. */
static inline ssize_t completion(struct pair *pair, int at, struct fi_cq_tagged_entry *entry)
{
	double end = now() + 20;
	while (now() < end) {
		ssize_t answer = fi_cq_read(pair->cq[at], entry, 1);
		if (answer != -FI_EAGAIN)
			return answer;
		answer = fi_cq_read(pair->cq[!at], NULL, 0);
		CHECK(answer == 0 || answer == -FI_EAGAIN || answer == -FI_EAVAIL);
	}
	return -FI_ETIMEDOUT;
}

/* Repeats a transfer while it returns -FI_EAGAIN. */
#define POST(pair, call)                                                                  \
	do {                                                                              \
		ssize_t posted_;                                                          \
		double end_ = now() + 20;                                                 \
		while ((posted_ = (call)) == -FI_EAGAIN && now() < end_) {                \
			fi_cq_read((pair)->cq[0], NULL, 0);                               \
			fi_cq_read((pair)->cq[1], NULL, 0);                               \
		}                                                                         \
		ANSWERS(posted_, 0);                                                      \
	} while (0)

#endif
