/* Device memory (FI_HMEM) as NIXL and aws-ofi-nccl ask for it: registered with its interface, sent, received, written and
 * read over each provider that copies it. The driver is libcuda.so.1, an emulator's or a real one. */
#include <dlfcn.h>
#include <netinet/in.h>
#include <stdbool.h>

#include "../check.h"

#define LEN ((1 << 20) + 77)
/* By number, because headers of 1.17 lack the name. */
#define CUDA_API_PERMITTED 10

/* The driver's functions, by the names of cuda.h. */
static struct {
	int (*cuInit)(unsigned);
	int (*cuDeviceGet)(int *, int);
	int (*cuDevicePrimaryCtxRetain)(void **, int);
	int (*cuCtxPushCurrent_v2)(void *);
	int (*cuMemAlloc_v2)(uint64_t *, size_t);
	int (*cuMemFree_v2)(uint64_t);
	int (*cuStreamCreate)(void **, unsigned);
	int (*cuMemcpyAsync)(uint64_t, uint64_t, size_t, void *);
	int (*cuStreamSynchronize)(void *);
} cuda;
static void *stream;

static void load(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW), *context;
	int device;
	CHECK(library);
#define FIND(name) CHECK((cuda.name = dlsym(library, #name)))
	FIND(cuInit);
	FIND(cuDeviceGet);
	FIND(cuDevicePrimaryCtxRetain);
	FIND(cuCtxPushCurrent_v2);
	FIND(cuMemAlloc_v2);
	FIND(cuMemFree_v2);
	FIND(cuStreamCreate);
	FIND(cuMemcpyAsync);
	FIND(cuStreamSynchronize);
#undef FIND
	OK(cuda.cuInit(0));
	OK(cuda.cuDeviceGet(&device, 0));
	OK(cuda.cuDevicePrimaryCtxRetain(&context, device));
	OK(cuda.cuCtxPushCurrent_v2(context));
	OK(cuda.cuStreamCreate(&stream, 0));
}

static void copy(uint64_t to, uint64_t from, size_t len)
{
	OK(cuda.cuMemcpyAsync(to, from, len, stream));
	OK(cuda.cuStreamSynchronize(stream));
}

/* Memory of the device, with a registration. */
struct memory {
	uint64_t at;
	struct fid_mr *mr;
};

static unsigned char expected[LEN], found[LEN];

static void fill(const struct memory *memory, int seed)
{
	for (size_t at = 0; at < LEN; at++)
		expected[at] = (unsigned char)(at * 7 + at / 251 + (size_t)seed);
	copy(memory->at, (uintptr_t)expected, LEN);
}

static void check(const struct memory *memory, size_t len)
{
	copy((uintptr_t)found, memory->at, LEN);
	CHECK(!memcmp(found, expected, len));
	memset(found, 0, sizeof found);
	copy(memory->at, (uintptr_t)found, LEN);
}

static struct fi_info *hints_for(const char *provider, uint64_t caps)
{
	static struct sockaddr_in loopback;
	struct fi_info *hints = fi_allocinfo();
	CHECK(hints);
	hints->caps = FI_MSG | FI_TAGGED | FI_RMA | caps;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->mr_mode =
		FI_MR_LOCAL | FI_MR_HMEM | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->domain_attr->threading = FI_THREAD_SAFE;
	hints->fabric_attr->prov_name = strdup(provider);
	if (strcmp(provider, "shm") && strcmp(provider, "efa")) {
		loopback.sin_family = AF_INET;
		loopback.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		hints->addr_format = FI_SOCKADDR_IN;
		hints->src_addrlen = sizeof loopback;
		CHECK((hints->src_addr = malloc(sizeof loopback)));
		memcpy(hints->src_addr, &loopback, sizeof loopback);
	}
	return hints;
}

static void open_pair(struct pair *pair, const char *provider, uint64_t caps)
{
	struct fi_info *hints = hints_for(provider, caps);
	struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED};
	struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
	OK(fi_getinfo(FI_VERSION(1, 18), NULL, NULL, 0, hints, &pair->info));
	fi_freeinfo(hints);
	CHECK((pair->info->caps & FI_HMEM) == (caps & FI_HMEM));
	CHECK(!(pair->info->domain_attr->mr_mode & FI_MR_HMEM) == !(caps & FI_HMEM));
	OK(fi_fabric(pair->info->fabric_attr, &pair->fabric, NULL));
	OK(fi_domain(pair->fabric, pair->info, &pair->domain, NULL));
	OK(fi_av_open(pair->domain, &av_attr, &pair->av, NULL));
	for (int at = 0; at < 2; at++) {
		char name[256];
		size_t len = sizeof name;
		OK(fi_cq_open(pair->domain, &cq_attr, &pair->cq[at], NULL));
		OK(fi_endpoint(pair->domain, pair->info, &pair->ep[at], NULL));
		OK(fi_ep_bind(pair->ep[at], &pair->av->fid, 0));
		OK(fi_ep_bind(pair->ep[at], &pair->cq[at]->fid, FI_TRANSMIT | FI_RECV));
		OK(fi_enable(pair->ep[at]));
		OK(fi_getname(&pair->ep[at]->fid, name, &len));
		ANSWERS(fi_av_insert(pair->av, name, 1, &pair->addr[at], 0, NULL), 1);
	}
}

/* Registers memory as a device's. */
static int reg(struct pair *pair, const void *buf, size_t len, enum fi_hmem_iface iface, uint64_t flags,
	       struct fid_mr **mr)
{
	struct iovec iov = {(void *)buf, len};
	/* A key of its own, for providers that leave the choice to the program. */
	static uint64_t last_key;
	struct fi_mr_attr attr = {.mr_iov = &iov, .iov_count = 1, .requested_key = ++last_key};
	attr.access = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
	attr.iface = iface;
	attr.device.cuda = 0;
	return fi_mr_regattr(pair->domain, &attr, flags, mr);
}

static struct memory allocate(struct pair *pair, uint64_t flags)
{
	struct memory memory = {0};
	OK(cuda.cuMemAlloc_v2(&memory.at, LEN));
	OK(reg(pair, (void *)memory.at, LEN, FI_HMEM_CUDA, flags, &memory.mr));
	CHECK(fi_mr_desc(memory.mr) && fi_mr_key(memory.mr) != FI_KEY_NOTAVAIL);
	return memory;
}

static void done(struct pair *pair, int at, void *context)
{
	struct fi_cq_tagged_entry entry;
	ANSWERS(completion(pair, at, &entry), 1);
	CHECK(entry.op_context == context);
}

static void transfers(struct pair *pair)
{
	static const size_t lengths[] = {8, 4000, 70000, LEN};
	struct memory from = allocate(pair, 0), to = allocate(pair, FI_HMEM_DEVICE_ONLY);
	void *source = (void *)from.at, *target = (void *)to.at;
	void *sent = fi_mr_desc(from.mr), *received = fi_mr_desc(to.mr);
	uint64_t key = fi_mr_key(to.mr);
	uint64_t addr = pair->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? to.at : 0;
	int context[2];
	for (size_t at = 0; at < sizeof lengths / sizeof *lengths; at++) {
		size_t len = lengths[at];
		fill(&from, (int)at);
		POST(pair, fi_recv(pair->ep[1], target, len, received, FI_ADDR_UNSPEC, &context[1]));
		POST(pair, fi_send(pair->ep[0], source, len, sent, pair->addr[1], &context[0]));
		done(pair, 1, &context[1]);
		done(pair, 0, &context[0]);
		check(&to, len);
		POST(pair, fi_trecv(pair->ep[1], target, len, received, FI_ADDR_UNSPEC, 5, 0, &context[1]));
		POST(pair, fi_tsend(pair->ep[0], source, len, sent, pair->addr[1], 5, &context[0]));
		done(pair, 1, &context[1]);
		done(pair, 0, &context[0]);
		check(&to, len);
		POST(pair, fi_write(pair->ep[0], source, len, sent, pair->addr[1], addr, key, &context[0]));
		done(pair, 0, &context[0]);
		copy((uintptr_t)found, to.at, len);
		CHECK(!memcmp(found, expected, len));
		memset(found, 0, sizeof found);
		copy(from.at, (uintptr_t)found, LEN);
		POST(pair, fi_read(pair->ep[0], source, len, sent, pair->addr[1], addr, key, &context[0]));
		done(pair, 0, &context[0]);
		check(&from, len);
	}
	OK(fi_close(&to.mr->fid));
	OK(fi_close(&from.mr->fid));
	OK(cuda.cuMemFree_v2(to.at));
	OK(cuda.cuMemFree_v2(from.at));
}

static void refusals(struct pair *pair)
{
	static char host[4096];
	struct fid_mr *mr;
	int p2p = -1;
	size_t len = sizeof p2p;
	bool may = false;
	ANSWERS(reg(pair, host, sizeof host, FI_HMEM_CUDA, 0, &mr), -FI_EINVAL);
	ANSWERS(reg(pair, host, sizeof host, FI_HMEM_ROCR, 0, &mr), -FI_ENOSYS);
	ANSWERS(reg(pair, host, sizeof host, (enum fi_hmem_iface)77, 0, &mr), -FI_EINVAL);
	OK(reg(pair, host, sizeof host, FI_HMEM_SYSTEM, 0, &mr));
	OK(fi_close(&mr->fid));
	OK(fi_getopt(&pair->ep[0]->fid, FI_OPT_ENDPOINT, FI_OPT_FI_HMEM_P2P, &p2p, &len));
	CHECK(p2p == FI_HMEM_P2P_ENABLED);
	p2p = FI_HMEM_P2P_REQUIRED;
	ANSWERS(fi_setopt(&pair->ep[0]->fid, FI_OPT_ENDPOINT, FI_OPT_FI_HMEM_P2P, &p2p, sizeof p2p),
		-FI_EOPNOTSUPP);
	p2p = FI_HMEM_P2P_DISABLED;
	OK(fi_setopt(&pair->ep[0]->fid, FI_OPT_ENDPOINT, FI_OPT_FI_HMEM_P2P, &p2p, sizeof p2p));
	ANSWERS(fi_setopt(&pair->ep[0]->fid, FI_OPT_ENDPOINT, CUDA_API_PERMITTED, &may, sizeof may),
		-FI_EOPNOTSUPP);
	may = true;
	OK(fi_setopt(&pair->ep[0]->fid, FI_OPT_ENDPOINT, CUDA_API_PERMITTED, &may, sizeof may));
}

/* The arguments are names of providers. */
int main(int argc, char **providers)
{
	CHECK(argc > 1);
	load();
	for (int at = 1; at < argc; at++) {
		struct pair pair;
		uint64_t memory;
		struct fid_mr *mr;
		open_pair(&pair, providers[at], FI_HMEM);
		transfers(&pair);
		refusals(&pair);
		pair_close(&pair);
		/* Without the capability no interface is known. */
		open_pair(&pair, providers[at], 0);
		OK(cuda.cuMemAlloc_v2(&memory, 4096));
		ANSWERS(reg(&pair, (void *)memory, 4096, FI_HMEM_CUDA, 0, &mr), -FI_ENOSYS);
		OK(cuda.cuMemFree_v2(memory));
		pair_close(&pair);
		/* The program must register local buffers, and say so. */
		struct fi_info *hints = hints_for(providers[at], FI_HMEM), *info = NULL;
		hints->domain_attr->mr_mode &= ~FI_MR_HMEM;
		ANSWERS(fi_getinfo(FI_VERSION(1, 18), NULL, NULL, 0, hints, &info), -FI_ENODATA);
		fi_freeinfo(hints);
	}
	return 0;
}
