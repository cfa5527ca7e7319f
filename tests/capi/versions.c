/* Every exported symbol with its versions; and for each version, structures that end at the end of a page: the library
 * neither reads nor writes beyond them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"

/* The exports of C libfabric 2.6, and of its main branch, which adds 1.10. */
static const struct {
	const char *name, *versions[9];
} symbols[] = {
	{"fi_getinfo", {"1.0", "1.1", "1.2", "1.3", "1.7", "1.8", "1.9", "1.10"}},
	{"fi_freeinfo", {"1.0", "1.1", "1.2", "1.3", "1.7", "1.8", "1.9", "1.10"}},
	{"fi_dupinfo", {"1.0", "1.1", "1.2", "1.3", "1.7", "1.8", "1.9", "1.10"}},
	{"fi_fabric", {"1.0", "1.1"}},
	{"fi_fabric2", {"1.8"}},
	{"fi_version", {"1.0"}},
	{"fi_strerror", {"1.0"}},
	{"fi_tostr", {"1.0"}},
	{"fi_tostr_r", {"1.4"}},
	{"fi_log", {"1.0"}},
	{"fi_log_enabled", {"1.0"}},
	{"fi_log_ready", {"1.6"}},
	{"fi_param_define", {"1.0"}},
	{"fi_param_get", {"1.0"}},
	{"fi_getparams", {"1.0"}},
	{"fi_freeparams", {"1.0"}},
	{"fi_open", {"1.5"}},
};

static void *library;

static void *symbol(const char *name, const char *version)
{
	char node[32];
	snprintf(node, sizeof node, "FABRIC_%s", version);
	void *found = dlvsym(library, name, node);
	if (!found) {
		fprintf(stderr, "%s@%s is missing\n", name, node);
		exit(1);
	}
	return found;
}

/* Memory that ends with its page. The next page is not accessible. */
static void *at_the_end(size_t size)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(pages != MAP_FAILED);
	OK(mprotect(pages + page, page, PROT_NONE));
	return pages + page - size;
}

/* The sizes of each version's structures, from fabric(7), "ABI changes", and the headers of their releases. */
struct abi {
	const char *node;
	uint32_t version;
	size_t info, tx, rx, ep, domain;
	int older_headers; /* than the library that it was linked against: fi_dupinfo cannot know that */
};

/* A program of this version: the structures that it passes and receives. */
static void program(const struct abi *abi)
{
	int (*getinfo)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *, struct fi_info **) =
		symbol("fi_getinfo", abi->node);
	void (*freeinfo)(struct fi_info *) = symbol("fi_freeinfo", abi->node);
	struct fi_info *(*dupinfo)(const struct fi_info *) = symbol("fi_dupinfo", abi->node);
	int (*fabric)(struct fi_fabric_attr *, struct fid_fabric **, void *) =
		symbol("fi_fabric", strcmp(abi->node, "1.0") ? "1.1" : "1.0");

	struct fi_info *hints = at_the_end(abi->info);
	hints->tx_attr = at_the_end(abi->tx);
	hints->rx_attr = at_the_end(abi->rx);
	hints->ep_attr = at_the_end(abi->ep);
	hints->domain_attr = at_the_end(abi->domain);
	hints->fabric_attr = at_the_end(32); /* 28 bytes before 1.5, and four of padding */
	hints->fabric_attr->prov_name = (char *)"shm";
	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = FI_MSG | FI_TAGGED;
	hints->mode = FI_CONTEXT | FI_LOCAL_MR;

	struct fi_info *info = NULL, *copy, *again = NULL;
	OK(getinfo(abi->version, NULL, NULL, 0, hints, &info));
	CHECK(info && !strcmp(info->fabric_attr->prov_name, "shm") && info->ep_attr->type == FI_EP_RDM);
	CHECK(info->tx_attr->size > 0 && info->domain_attr->cq_cnt > 0);
	if (!abi->older_headers) {
		copy = dupinfo(hints);
		CHECK(copy && copy->caps == hints->caps && !strcmp(copy->fabric_attr->prov_name, "shm"));
		freeinfo(copy);
	}
	copy = dupinfo(info);
	CHECK(copy && copy->tx_attr->size == info->tx_attr->size);
	OK(getinfo(abi->version, NULL, NULL, 0, copy, &again));
	freeinfo(copy);
	freeinfo(again);
	copy = dupinfo(NULL);
	CHECK(copy && copy->ep_attr && copy->fabric_attr);
	freeinfo(copy);

	/* Objects are opened from the same structures. */
	struct fi_fabric_attr *attr = at_the_end(32);
	memcpy(attr, info->fabric_attr, 32);
	struct fid_fabric *opened = NULL;
	OK(fabric(attr, &opened, NULL));
	memcpy(hints->tx_attr, info->tx_attr, abi->tx);
	memcpy(hints->rx_attr, info->rx_attr, abi->rx);
	memcpy(hints->ep_attr, info->ep_attr, abi->ep);
	memcpy(hints->domain_attr, info->domain_attr, abi->domain);
	memcpy(hints->fabric_attr, info->fabric_attr, 32);
	hints->caps = info->caps;
	hints->mode = info->mode;
	hints->addr_format = info->addr_format;
	struct fid_domain *domain = NULL;
	struct fid_ep *ep = NULL;
	OK(fi_domain(opened, hints, &domain, NULL));
	OK(fi_endpoint(domain, hints, &ep, NULL));
	OK(fi_close(&ep->fid));

	/* Attributes of contexts are read and returned. */
	size_t granted = info->ep_attr->tx_ctx_cnt;
	hints->ep_attr->tx_ctx_cnt = hints->ep_attr->rx_ctx_cnt = 1;
	if (!fi_scalable_ep(domain, hints, &ep, NULL)) {
		struct fid_ep *context = NULL;
		struct fi_tx_attr *tx = at_the_end(abi->tx);
		struct fi_rx_attr *rx = at_the_end(abi->rx);
		OK(fi_tx_context(ep, 0, tx, &context, NULL));
		CHECK(tx->size > 0);
		OK(fi_close(&context->fid));
		OK(fi_rx_context(ep, 0, rx, &context, NULL));
		CHECK(rx->size > 0);
		OK(fi_close(&context->fid));
		OK(fi_close(&ep->fid));
	}
	hints->ep_attr->tx_ctx_cnt = granted;
	struct fid_ep *srx = NULL;
	OK(fi_srx_context(domain, hints->rx_attr, &srx, NULL));
	OK(fi_close(&srx->fid));
	struct fid_stx *stx = NULL;
	OK(fi_stx_context(domain, hints->tx_attr, &stx, NULL));
	OK(fi_close(&stx->fid));
	CHECK(strlen(fi_tostr(hints, FI_TYPE_INFO)) > 100 || abi->domain < 188);

	/* A registration whose structure has the size of this version. */
	static char memory[4096];
	struct iovec iov = {memory, sizeof memory};
	size_t mr_size = abi->version < FI_VERSION(1, 5) ? 48 : abi->version < FI_VERSION(1, 10) ? 64
			 : abi->version < FI_VERSION(1, 20) ? 80 : 112;
	struct fi_mr_attr *mr_attr = at_the_end(mr_size);
	mr_attr->mr_iov = &iov;
	mr_attr->iov_count = 1;
	mr_attr->access = FI_SEND | FI_RECV;
	struct fid_mr *mr = NULL;
	OK(fi_mr_regattr(domain, mr_attr, 0, &mr));
	OK(fi_close(&mr->fid));

	/* An error entry of this version's size, with arbitrary contents before the call where the version allows them. */
	struct fid_cq *cq = NULL;
	struct fid_av *av = NULL;
	struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED};
	struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
	hints->ep_attr->tx_ctx_cnt = hints->ep_attr->rx_ctx_cnt = 0;
	OK(fi_endpoint(domain, hints, &ep, NULL));
	OK(fi_cq_open(domain, &cq_attr, &cq, NULL));
	OK(fi_av_open(domain, &av_attr, &av, NULL));
	OK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	OK(fi_ep_bind(ep, &av->fid, 0));
	OK(fi_enable(ep));
	struct fi_context context;
	OK(fi_recv(ep, memory, sizeof memory, NULL, FI_ADDR_UNSPEC, &context));
	OK((int)fi_cancel(&ep->fid, &context));
	struct fi_cq_tagged_entry entry;
	ANSWERS(fi_cq_read(cq, &entry, 1), -FI_EAVAIL);
	size_t error_size = abi->version < FI_VERSION(1, 5) ? 72 : abi->version < FI_VERSION(1, 20) ? 80 : 88;
	struct fi_cq_err_entry *error = at_the_end(error_size);
	memset(error, error_size > 72 ? 0 : 0xff, error_size);
	ANSWERS(cq->ops->readerr(cq, error, 0), 1);
	CHECK(error->err == FI_ECANCELED && error->op_context == &context);
	OK(fi_close(&ep->fid));
	OK(fi_close(&cq->fid));
	OK(fi_close(&av->fid));

	OK(fi_close(&domain->fid));
	OK(fi_close(&opened->fid));
	freeinfo(info);
}

/* FI_MR_BASIC and FI_MR_SCALABLE, and FI_MR_UNSPEC before 1.5, which accepts either: opens objects, and writes a peer's
 * memory by the key and the address that the mode requires. */
static void registration(const char *provider, uint32_t version, int mode)
{
	struct fi_info *hints = fi_allocinfo(), *info = NULL;
	hints->fabric_attr->prov_name = strdup(provider);
	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = FI_RMA;
	hints->domain_attr->mr_mode = mode;
	hints->domain_attr->threading = FI_THREAD_SAFE;
	OK(fi_getinfo(version, NULL, NULL, 0, hints, &info));
	int granted = info->domain_attr->mr_mode;
	CHECK(granted == mode || (mode == FI_MR_UNSPEC && (granted == FI_MR_BASIC || granted == FI_MR_SCALABLE)));
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_ep *ep;
	struct fid_cq *cq;
	struct fid_av *av;
	struct fid_mr *mr;
	struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_CONTEXT};
	struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
	OK(fi_fabric(info->fabric_attr, &fabric, NULL));
	OK(fi_domain(fabric, info, &domain, NULL));
	OK(fi_endpoint(domain, info, &ep, NULL));
	OK(fi_cq_open(domain, &cq_attr, &cq, NULL));
	OK(fi_av_open(domain, &av_attr, &av, NULL));
	OK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	OK(fi_ep_bind(ep, &av->fid, 0));
	OK(fi_enable(ep));
	char name[256], memory[64] = "";
	size_t len = sizeof name;
	fi_addr_t self;
	OK(fi_getname(&ep->fid, name, &len));
	ANSWERS(fi_av_insert(av, name, 1, &self, 0, NULL), 1);
	OK(fi_mr_reg(domain, memory, sizeof memory, FI_REMOTE_WRITE, 0, 4711, 0, &mr, NULL));
	CHECK(granted == FI_MR_BASIC || fi_mr_key(mr) == 4711);
	uint64_t address = granted == FI_MR_BASIC ? (uintptr_t)(memory + 8) : 8;
	OK((int)fi_write(ep, "hello", 6, NULL, self, address, fi_mr_key(mr), NULL));
	struct fi_cq_entry entry;
	ssize_t answer;
	double end = now() + 20;
	while ((answer = fi_cq_read(cq, &entry, 1)) == -FI_EAGAIN && now() < end)
		;
	ANSWERS(answer, 1);
	CHECK(!strcmp(memory + 8, "hello"));
	OK(fi_close(&mr->fid));
	OK(fi_close(&ep->fid));
	OK(fi_close(&cq->fid));
	OK(fi_close(&av->fid));
	OK(fi_close(&domain->fid));
	OK(fi_close(&fabric->fid));
	fi_freeinfo(info);
	/* Neither can be combined with other bits. */
	hints->domain_attr->mr_mode = FI_MR_BASIC | FI_MR_LOCAL;
	ANSWERS(fi_getinfo(version, NULL, NULL, 0, hints, &info), -FI_ENODATA);
	fi_freeinfo(hints);
}

int main(void)
{
	Dl_info here;
	CHECK(dladdr((void *)fi_strerror, &here) && here.dli_fname);
	library = dlopen(here.dli_fname, RTLD_NOW | RTLD_LOCAL);
	CHECK(library);
	for (size_t at = 0; at < sizeof symbols / sizeof *symbols; at++)
		for (const char *const *version = symbols[at].versions; *version; version++)
			symbol(symbols[at].name, *version);
	CHECK(!dlsym(library, "ofi_capi_getinfo"));

	static const struct abi all[] = {
		{"1.0", FI_VERSION(1, 0), 112, 72, 64, 80, 104, 0},
		{"1.0", FI_VERSION(1, 4), 112, 72, 64, 80, 104, 0},
		{"1.1", FI_VERSION(1, 5), 112, 72, 64, 96, 184, 0},
		{"1.1", FI_VERSION(1, 6), 112, 72, 64, 96, 184, 0},
		{"1.2", FI_VERSION(1, 7), 120, 72, 64, 96, 184, 0},
		{"1.2", FI_VERSION(1, 9), 120, 72, 64, 96, 184, 0},
		{"1.3", FI_VERSION(1, 10), 120, 80, 64, 96, 188, 0},
		{"1.3", FI_VERSION(1, 11), 120, 80, 64, 96, 188, 0},
		{"1.3", FI_VERSION(1, 17), 120, 80, 64, 96, 188, 0},
		{"1.7", FI_VERSION(1, 20), 120, 80, 64, 96, 200, 0},
		{"1.7", FI_VERSION(1, 22), 120, 80, 64, 96, 200, 0},
		{"1.8", FI_VERSION(2, 0), 120, 80, 64, 96, 204, 0},
		{"1.8", FI_VERSION(2, 4), 120, 80, 64, 96, 204, 0},
		{"1.9", FI_VERSION(2, 5), 120, 80, 64, 96, 224, 0},
		{"1.9", FI_VERSION(2, 6), 120, 80, 64, 96, 224, 0},
		{"1.10", FI_VERSION(2, 6), 120, 80, 64, 104, 232, 0},
		/* Linked against the newest, compiled with older headers. */
		{"1.9", FI_VERSION(1, 17), 120, 80, 64, 96, 188, 1},
		{"1.9", FI_VERSION(1, 20), 120, 80, 64, 96, 200, 1},
	};
	for (size_t at = 0; at < sizeof all / sizeof *all; at++)
		program(&all[at]);
	for (int at = 0; at < 2; at++) {
		const char *provider = at ? "udp" : "shm";
		registration(provider, FI_VERSION(1, 4), FI_MR_UNSPEC);
		registration(provider, FI_VERSION(1, 4), FI_MR_BASIC);
		registration(provider, FI_VERSION(1, 4), FI_MR_SCALABLE);
		registration(provider, FI_VERSION(1, 17), FI_MR_BASIC);
		registration(provider, FI_VERSION(1, 17), FI_MR_SCALABLE);
	}
	return 0;
}
