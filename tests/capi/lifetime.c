/* Loading and unloading, two libraries in one process, fork, many threads, and wrong handles. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

/* The path of the library that this program runs on. */
static const char *here(void)
{
	static Dl_info info;
	CHECK(dladdr((void *)fi_strerror, &info) && info.dli_fname);
	return info.dli_fname;
}

/* A message through a pair, opened and closed. */
static void use(void)
{
	struct pair pair;
	struct fi_cq_tagged_entry entry;
	char in[8];
	pair_open(&pair, FI_MSG);
	POST(&pair, fi_recv(pair.ep[1], in, sizeof in, NULL, FI_ADDR_UNSPEC, in));
	POST(&pair, fi_send(pair.ep[0], "hello", 6, NULL, pair.addr[1], NULL));
	ANSWERS(completion(&pair, 1, &entry), 1);
	CHECK(entry.op_context == in && !strcmp(in, "hello"));
	pair_close(&pair);
}

/* Loads the library again and again, once into another linker namespace: two copies that do not know of each other. */
static void loading(void)
{
	for (int round = 0; round < 20; round++) {
		void *library = dlopen(here(), RTLD_NOW | RTLD_LOCAL);
		CHECK(library);
		uint32_t (*version)(void) = (uint32_t(*)(void))dlsym(library, "fi_version");
		CHECK(version && version() == fi_version());
		OK(dlclose(library));
	}
	void *copy = dlmopen(LM_ID_NEWLM, here(), RTLD_NOW | RTLD_LOCAL);
	CHECK(copy);
	int (*getinfo)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *, struct fi_info **) =
		dlsym(copy, "fi_getinfo");
	void (*freeinfo)(struct fi_info *) = dlsym(copy, "fi_freeinfo");
	struct fi_info *info = NULL;
	CHECK(getinfo && freeinfo && (void *)getinfo != (void *)fi_getinfo);
	OK(getinfo(FI_VERSION(1, 17), NULL, NULL, 0, NULL, &info));
	CHECK(info);
	freeinfo(info);
	use();
	OK(dlclose(copy));
	use();
}

/* Closes the library while its threads run: objects opened from it still work, and its threads end with it. */
static void closing_under_threads(void)
{
	void *copy = dlmopen(LM_ID_NEWLM, here(), RTLD_NOW | RTLD_LOCAL);
	CHECK(copy);
	int (*getinfo)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *, struct fi_info **) =
		dlsym(copy, "fi_getinfo");
	void (*freeinfo)(struct fi_info *) = dlsym(copy, "fi_freeinfo");
	struct fi_info *(*dupinfo)(const struct fi_info *) = dlsym(copy, "fi_dupinfo");
	int (*fabric_of)(struct fi_fabric_attr *, struct fid_fabric **, void *) = dlsym(copy, "fi_fabric");
	CHECK(getinfo && freeinfo && dupinfo && fabric_of);
	for (int at = 0; at < 2; at++) {
		struct fi_info *hints = dupinfo(NULL), *info = NULL;
		struct fid_fabric *fabric;
		struct fid_domain *domain;
		struct fid_ep *ep;
		struct fid_cq *cq;
		struct fid_av *av;
		hints->fabric_attr->prov_name = at ? "udp" : "shm";
		hints->domain_attr->control_progress = hints->domain_attr->data_progress = FI_PROGRESS_AUTO;
		hints->ep_attr->type = FI_EP_RDM;
		OK(getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
		hints->fabric_attr->prov_name = NULL;
		freeinfo(hints);
		OK(fabric_of(info->fabric_attr, &fabric, NULL));
		OK(fi_domain(fabric, info, &domain, NULL));
		OK(fi_endpoint(domain, info, &ep, NULL));
		OK(fi_cq_open(domain, NULL, &cq, NULL));
		OK(fi_av_open(domain, NULL, &av, NULL));
		OK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
		OK(fi_ep_bind(ep, &av->fid, 0));
		OK(fi_enable(ep));
		freeinfo(info);
		if (at)
			OK(dlclose(copy));
		struct fi_cq_tagged_entry entry;
		ANSWERS(fi_cq_read(cq, &entry, 1), -FI_EAGAIN);
		if (at)
			break; /* left open, as by a program that forgets to close it */
		OK(fi_close(&ep->fid));
		OK(fi_close(&cq->fid));
		OK(fi_close(&av->fid));
		OK(fi_close(&domain->fid));
		OK(fi_close(&fabric->fid));
	}
	use();
}

/* The system's library beside ours, loaded by its path: the bare name would find the one that is already loaded. */
static void both(void)
{
	static const char *places[] = {"/usr/lib/x86_64-linux-gnu/libfabric.so.1", "/usr/lib/aarch64-linux-gnu/libfabric.so.1"};
	for (size_t at = 0; at < 4; at++) {
		const char *place = places[at / 2];
		if (access(place, R_OK) || !strcmp(place, here()))
			continue;
		void *theirs = at % 2 ? dlmopen(LM_ID_NEWLM, place, RTLD_NOW | RTLD_LOCAL)
				      : dlopen(place, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
		if (!theirs)
			continue; /* its dependencies are not installed */
		uint32_t (*version)(void) = (uint32_t(*)(void))dlsym(theirs, "fi_version");
		int (*getinfo)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *, struct fi_info **) =
			dlsym(theirs, "fi_getinfo");
		void (*freeinfo)(struct fi_info *) = dlsym(theirs, "fi_freeinfo");
		CHECK(version && getinfo && freeinfo && version() != fi_version());
		struct fi_info *info = NULL;
		OK(getinfo(FI_VERSION(1, 17), NULL, NULL, 0, NULL, &info));
		use();
		freeinfo(info);
		use();
	}
}

static void *thread(void *arg)
{
	for (int round = 0; round < 5; round++)
		use();
	return arg;
}

/* Every other thread calls fi_getinfo in a loop, and loads the library once more meanwhile. */
static void *asking(void *arg)
{
	for (int round = 0; round < 20; round++) {
		struct fi_info *info = NULL, *copy;
		OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, NULL, &info));
		copy = fi_dupinfo(info);
		CHECK(copy && strlen(fi_tostr(copy, FI_TYPE_INFO)) > 100);
		fi_freeinfo(copy);
		fi_freeinfo(info);
		void *library = dlopen(here(), RTLD_NOW | RTLD_LOCAL);
		CHECK(library);
		OK(dlclose(library));
	}
	return arg;
}

static void threads(void)
{
	pthread_t all[8];
	for (int at = 0; at < 8; at++)
		OK(pthread_create(&all[at], NULL, at % 2 ? asking : thread, NULL));
	for (int at = 0; at < 8; at++)
		OK(pthread_join(all[at], NULL));
}

/* A child uses objects that it opens itself. Inherited objects return errors, and the parent is not affected. */
static void forking(void)
{
	struct pair pair;
	struct fi_cq_tagged_entry entry;
	char in[8];
	pair_open(&pair, FI_MSG);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		CHECK(fi_send(pair.ep[0], "child", 6, NULL, pair.addr[1], NULL) < 0);
		CHECK(fi_cq_read(pair.cq[0], &entry, 1) < 0);
		fi_close(&pair.ep[0]->fid);
		use();
		loading();
		_exit(0);
	}
	int status = 1;
	ANSWERS(waitpid(child, &status, 0), child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	POST(&pair, fi_recv(pair.ep[1], in, sizeof in, NULL, FI_ADDR_UNSPEC, in));
	POST(&pair, fi_send(pair.ep[0], "parent", 7, NULL, pair.addr[1], NULL));
	ANSWERS(completion(&pair, 1, &entry), 1);
	CHECK(!strcmp(in, "parent"));
	pair_close(&pair);
}

/* Closed handles, handles of another class, and null. */
static void wrong_handles(void)
{
	struct pair pair;
	struct fi_cq_tagged_entry entry;
	struct fi_info *info;
	uint64_t address;
	char name[8];
	size_t len = sizeof name;
	pair_open(&pair, FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC);
	struct fid_ep *ep = pair.ep[0];
	struct fid_cq *cq = pair.cq[0];
	struct fid_av *av = pair.av;
	struct fi_ops_msg *msg = ep->msg;
	struct fi_ops_cq *reads = cq->ops;

	/* Calls through the table of an object, with null and with a handle of another class. */
	ANSWERS(msg->send(NULL, "x", 1, NULL, 0, NULL), -FI_EINVAL);
	ANSWERS(msg->send((struct fid_ep *)cq, "x", 1, NULL, 0, NULL), -FI_EINVAL);
	ANSWERS(msg->send(ep, NULL, 8, NULL, pair.addr[1], NULL), -FI_EINVAL);
	ANSWERS(msg->sendmsg(ep, NULL, 0), -FI_EINVAL);
	ANSWERS(msg->sendv(ep, NULL, NULL, 3, pair.addr[1], NULL), -FI_EINVAL);
	ANSWERS(msg->sendv(ep, (struct iovec *)&entry, NULL, (size_t)-1, pair.addr[1], NULL), -FI_EINVAL);
	ANSWERS(ep->tagged->sendmsg(ep, NULL, 0), -FI_EINVAL);
	ANSWERS(ep->rma->writemsg(ep, NULL, 0), -FI_EINVAL);
	ANSWERS(ep->atomic->writemsg(ep, NULL, 0), -FI_EINVAL);
	CHECK(fi_atomic(ep, "x", 1, NULL, pair.addr[1], 0, 0, 999, FI_SUM, NULL) < 0);
	ANSWERS(reads->read(NULL, &entry, 1), -FI_EINVAL);
	ANSWERS(reads->read(cq, NULL, 1), -FI_EINVAL);
	ANSWERS(reads->readerr(cq, NULL, 0), -FI_EINVAL);
	ANSWERS(fi_ep_bind(ep, NULL, 0), -FI_EINVAL);
	CHECK(fi_ep_bind(ep, &pair.domain->fid, 0) < 0);
	ANSWERS(fi_getname(&ep->fid, name, NULL), -FI_EINVAL);
	ANSWERS(fi_getname(&ep->fid, name, &len), -FI_ETOOSMALL);
	ANSWERS(fi_av_insert(av, NULL, 1, &address, 0, NULL), -FI_EINVAL);
	ANSWERS(fi_endpoint(pair.domain, NULL, &ep, NULL), -FI_EINVAL);
	ANSWERS(fi_endpoint(pair.domain, pair.info, NULL, NULL), -FI_EINVAL);
	ANSWERS(fi_cq_open(pair.domain, NULL, NULL, NULL), -FI_EINVAL);
	ANSWERS(fi_control(&ep->fid, 4711, NULL), -FI_ENOSYS);
	ANSWERS(fi_getopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, NULL, NULL) < 0, 1);
	ANSWERS(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, NULL, NULL), -FI_EINVAL);
	ANSWERS(fi_fabric(NULL, &pair.fabric, NULL), -FI_EINVAL);
	ANSWERS(fi_fabric(pair.info->fabric_attr, NULL, NULL), -FI_EINVAL);

	/* Undefined flags. */
	struct fi_msg message = {.addr = pair.addr[1]};
	CHECK(fi_sendmsg(ep, &message, 1ULL << 63) < 0);
	CHECK(fi_recvmsg(ep, &message, 1ULL << 63) < 0);

	/* Undefined enum values. */
	info = fi_dupinfo(pair.info);
	info->ep_attr->type = 4711;
	CHECK(fi_endpoint(pair.domain, info, &ep, NULL) < 0);
	fi_freeinfo(info);
	struct fi_cq_attr cq_attr = {.format = 77};
	CHECK(fi_cq_open(pair.domain, &cq_attr, &cq, NULL) < 0);
	struct fi_av_attr av_attr = {.type = 77};
	CHECK(fi_av_open(pair.domain, &av_attr, &av, NULL) < 0);

	/* After the close. */
	ep = pair.ep[0];
	cq = pair.cq[0];
	av = pair.av;
	pair_close(&pair);
	CHECK(msg->send(ep, "x", 1, NULL, 0, NULL) < 0);
	CHECK(fi_send(ep, "x", 1, NULL, 0, NULL) < 0);
	CHECK(fi_enable(ep) < 0);
	CHECK(reads->read(cq, &entry, 1) < 0);
	CHECK(fi_cq_sread(cq, &entry, 1, NULL, 10) < 0);
	CHECK(fi_av_insert(av, "fi_shm://x", 1, &address, 0, NULL) < 0);
	CHECK(fi_close(&ep->fid) < 0 && fi_close(&cq->fid) < 0 && fi_close(&av->fid) < 0);
}

int main(void)
{
	use();
	wrong_handles();
	loading();
	closing_under_threads();
	both();
	threads();
	forking();
	return 0;
}
