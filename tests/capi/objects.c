/* The life of objects: infos, order of closing, stale handles, null pointers, addresses, parameters, names. */
#include "check.h"

#include <sys/mman.h>

#include <rdma/fi_ext.h>

#include <rdma/fi_ext.h>
#include <rdma/providers/fi_prov.h>

static struct pair pair;

static void infos(void)
{
	struct fi_info *info = pair_info(FI_MSG | FI_TAGGED), *copy;
	CHECK(!strcmp(info->fabric_attr->prov_name, "shm"));
	CHECK(info->ep_attr->protocol == FI_PROTO_SHM && info->addr_format == FI_ADDR_STR);
	CHECK(info->fabric_attr->api_version == FI_VERSION(1, 17));
	copy = fi_dupinfo(info);
	CHECK(copy && !copy->next && copy->caps == info->caps);
	CHECK(copy->domain_attr->name != info->domain_attr->name);
	CHECK(!strcmp(copy->domain_attr->name, info->domain_attr->name));
	/* A program may put its own strings and addresses into an info. */
	free(copy->fabric_attr->prov_name);
	copy->fabric_attr->prov_name = strdup("a name of the program's");
	copy->src_addr = strdup("fi_shm://me");
	copy->src_addrlen = strlen(copy->src_addr) + 1;
	struct fi_info *again = fi_dupinfo(copy);
	CHECK(!strcmp(again->src_addr, "fi_shm://me") && again->src_addr != copy->src_addr);
	fi_freeinfo(again);
	fi_freeinfo(copy);
	fi_freeinfo(info);
	fi_freeinfo(NULL);

	struct fi_info *hints = fi_allocinfo(), *none = (void *)1;
	hints->fabric_attr->prov_name = strdup("nobody");
	ANSWERS(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &none), -FI_ENODATA);
	CHECK(!none);
	hints->addr_format = 4711;
	ANSWERS(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &none), -FI_ENODATA);
	fi_freeinfo(hints);
	ANSWERS(fi_getinfo(FI_VERSION(99, 0), NULL, NULL, 0, NULL, &none), -FI_ENOSYS);
	CHECK(FI_MAJOR(fi_version()) >= 2);
}

static void keys(void)
{
	struct fi_info *hints = pair_info(FI_MSG | FI_RMA), *info, *copy;
	hints->domain_attr->auth_key = (uint8_t *)strdup("job 7");
	hints->domain_attr->auth_key_size = 5;
	hints->ep_attr->auth_key = (uint8_t *)strdup("a key of its own");
	hints->ep_attr->auth_key_size = 16;
	OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
	CHECK(info->domain_attr->auth_key_size == 5 && !memcmp(info->domain_attr->auth_key, "job 7", 5));
	copy = fi_dupinfo(info);
	CHECK(copy->ep_attr->auth_key_size == 16 && copy->ep_attr->auth_key != info->ep_attr->auth_key);
	CHECK(!memcmp(copy->ep_attr->auth_key, "a key of its own", 16));
	fi_freeinfo(copy);

	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_ep *ep;
	struct fid_mr *mr;
	OK(fi_fabric(info->fabric_attr, &fabric, NULL));
	OK(fi_domain(fabric, info, &domain, NULL));
	OK(fi_endpoint(domain, info, &ep, NULL));
	static char memory[64];
	struct iovec iov = {memory, sizeof memory};
	struct fi_mr_attr attr = {.mr_iov = &iov, .iov_count = 1, .access = FI_REMOTE_READ,
		.auth_key = info->ep_attr->auth_key, .auth_key_size = 16};
	OK(fi_mr_regattr(domain, &attr, 0, &mr));
	OK(fi_close(&mr->fid));
	attr.auth_key_size = 4096;
	static uint8_t longer[4096];
	attr.auth_key = longer;
	ANSWERS(fi_mr_regattr(domain, &attr, 0, &mr), -FI_EINVAL);
	OK(fi_close(&ep->fid));
	info->ep_attr->auth_key_size = 3; /* not longer than the key */
	OK(fi_endpoint(domain, info, &ep, NULL));
	OK(fi_close(&ep->fid));
	OK(fi_close(&domain->fid));
	OK(fi_close(&fabric->fid));
	fi_freeinfo(info);
	hints->ep_attr->auth_key_size = 4096;
	free(hints->ep_attr->auth_key);
	hints->ep_attr->auth_key = calloc(1, 4096);
	ANSWERS(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info), -FI_ENODATA);
	fi_freeinfo(hints);
}

static void what_is_open(void)
{
	struct fi_info *info = pair_info(FI_MSG), *again;
	CHECK(!info->fabric_attr->fabric && !info->domain_attr->domain);
	fi_freeinfo(info);
	pair_open(&pair, FI_MSG);
	info = pair_info(FI_MSG);
	CHECK(info->fabric_attr->fabric == pair.fabric && info->domain_attr->domain == pair.domain);
	OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, info, &again));
	CHECK(again->domain_attr->domain == pair.domain && !again->next);
	fi_freeinfo(again);
	fi_freeinfo(info);
	pair_close(&pair);
	info = pair_info(FI_MSG);
	CHECK(!info->fabric_attr->fabric && !info->domain_attr->domain);
	fi_freeinfo(info);
}

static void order_of_closing(void)
{
	struct fid_ep *stale;
	pair_open(&pair, FI_MSG | FI_RMA);
	ANSWERS(fi_close(&pair.fabric->fid), -FI_EBUSY);
	ANSWERS(fi_close(&pair.domain->fid), -FI_EBUSY);
	ANSWERS(fi_close(&pair.cq[0]->fid), -FI_EBUSY);
	ANSWERS(fi_close(&pair.av->fid), -FI_EBUSY);
	stale = pair.ep[0];
	pair_close(&pair);
	/* Closed objects return errors where the library can detect them. */
	CHECK(fi_close(&stale->fid) < 0);
	CHECK(fi_send(stale, "x", 1, NULL, 0, NULL) < 0);
}

static void what_is_not_supported(void)
{
	pair_open(&pair, FI_MSG);
	struct fid_ep *other = NULL;
	struct fid *fid;
	void *ops;
	char c;
	size_t size = 8;
	uint64_t value;
	ANSWERS(fi_open_ops(&pair.domain->fid, "nothing", 0, &ops, NULL), -FI_ENOSYS);
	ANSWERS(fi_control(&pair.domain->fid, 4711, NULL), -FI_ENOSYS);
	/* No object has named values, and none can be exported. */
	struct fid *all[] = {&pair.fabric->fid, &pair.domain->fid, &pair.ep[0]->fid, &pair.cq[0]->fid, &pair.av->fid};
	for (size_t at = 0; at < sizeof all / sizeof *all; at++) {
		ANSWERS(fi_get_val(all[at], 1, &value), -FI_ENOSYS);
		ANSWERS(fi_set_val(all[at], INT32_MIN, &value), -FI_ENOSYS);
		ANSWERS(fi_export_fid(all[at], 0, &fid, NULL), -FI_ENOSYS);
	}
	ANSWERS(fi_control(&pair.ep[0]->fid, FI_GET_VAL, NULL), -FI_EINVAL);
	CHECK(fi_getopt(&pair.ep[0]->fid, FI_OPT_ENDPOINT, 4711, &value, &size) == -FI_ENOPROTOOPT);
	ANSWERS(fi_ep_bind(pair.ep[0], NULL, 0), -FI_EINVAL);
	ANSWERS(fi_send(pair.ep[0], NULL, 1, NULL, pair.addr[1], NULL), -FI_EINVAL);
	ANSWERS(fi_sendv(pair.ep[0], NULL, NULL, 1, pair.addr[1], NULL), -FI_EINVAL);
	ANSWERS(fi_sendmsg(pair.ep[0], NULL, 0), -FI_EINVAL);
	ANSWERS(fi_send(pair.ep[0], &c, 1, NULL, 4711, NULL), -FI_EINVAL);
	ANSWERS(fi_cq_read(pair.cq[0], NULL, 1), -FI_EINVAL);
	ANSWERS(fi_cq_sread(pair.cq[0], &c, 0, NULL, 0), -FI_EINVAL);
	ANSWERS(fi_getname(&pair.ep[0]->fid, NULL, NULL), -FI_EINVAL);
	size = 3;
	ANSWERS(fi_getname(&pair.ep[0]->fid, &value, &size), -FI_ETOOSMALL);
	CHECK(size > 3);
	OK(fi_ep_alias(pair.ep[0], &other, FI_TRANSMIT | FI_COMPLETION));
	ANSWERS(fi_close(&pair.ep[0]->fid), -FI_EBUSY);
	fid = &other->fid;
	OK(fi_close(fid));
	pair_close(&pair);
}

static void addresses(void)
{
	pair_open(&pair, FI_MSG);
	char name[256], text[256];
	size_t len = sizeof name, text_len = sizeof text;
	fi_addr_t found[2];
	const char *several[] = {name, name};
	OK(fi_av_lookup(pair.av, pair.addr[0], name, &len));
	CHECK(!strncmp(name, "fi_shm://", 9) && len == strlen(name) + 1);
	CHECK(fi_av_straddr(pair.av, name, text, &text_len) == text && !strcmp(text, name));
	/* As the man page says: an array of strings. */
	ANSWERS(fi_av_insert(pair.av, several, 2, found, 0, NULL), 2);
	CHECK(found[0] == pair.addr[0] && found[1] == pair.addr[0]);
	int errors[2] = {7, 7};
	const char *bad[] = {"nonsense without scheme", name};
	ANSWERS(fi_av_insert(pair.av, bad, 2, found, FI_SYNC_ERR, errors), 1);
	CHECK(found[0] == FI_ADDR_NOTAVAIL && errors[0] == FI_EINVAL && errors[1] == 0);
	/* A string that is too short for an address is refused. The library reads neither the page after it, nor the
	 * address that its bytes and zeroes would form. */
	char *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(pages != MAP_FAILED && !mprotect(pages + 4096, 4096, PROT_NONE));
	for (int at = 1; at <= 16; at++) {
		memset(pages, 0, 4096);
		memcpy(pages + 4096 - at, "fi_shm", at > 6 ? 6 : at - 1);
		ANSWERS(fi_av_insert(pair.av, pages + 4096 - at, 1, found, 0, NULL), -FI_EINVAL);
	}
	memcpy(pages + 4096 - sizeof several[0], several, sizeof several[0]);
	ANSWERS(fi_av_insert(pair.av, pages + 4096 - sizeof several[0], 1, found, 0, NULL), 1);
	CHECK(!munmap(pages, 8192));
	fi_addr_t wrong = 4711;
	ANSWERS(fi_av_remove(pair.av, &wrong, 1, 0), -FI_EINVAL);
	pair_close(&pair);
}

static void parameters(void)
{
	struct fi_provider provider = {.name = "mine"};
	struct fi_param *params = NULL;
	int count = 0, value = 0, seen = 0;
	OK(fi_param_define(&provider, "knob", FI_PARAM_INT, "Turns %s.", "left"));
	ANSWERS(fi_param_get(&provider, "knob", &value), -FI_ENODATA);
	setenv("FI_MINE_KNOB", "12", 1);
	OK(fi_param_get(&provider, "knob", &value));
	CHECK(value == 12);
	ANSWERS(fi_param_get(&provider, "other", &value), -FI_ENOENT);
	OK(fi_getparams(&params, &count));
	for (int at = 0; at < count; at++)
		if (!strcmp(params[at].name, "FI_MINE_KNOB"))
			seen = !strcmp(params[at].help_string, "Turns left.") && !strcmp(params[at].value, "12");
	CHECK(seen);
	fi_freeparams(params);
	fi_log(&provider, FI_LOG_INFO, FI_LOG_CORE, __func__, __LINE__, "nobody reads %d\n", 1);
	if (!getenv("FI_LOG_LEVEL")) { /* warnings are logged by default */
		CHECK(fi_log_enabled(&provider, FI_LOG_WARN, FI_LOG_CORE));
		CHECK(!fi_log_enabled(&provider, FI_LOG_TRACE, FI_LOG_CORE));
	}
}

static void names(void)
{
	uint64_t caps = FI_MSG | FI_RMA;
	enum fi_ep_type type = FI_EP_RDM;
	char buf[8];
	CHECK(!strcmp(fi_tostr(&caps, FI_TYPE_CAPS), "FI_MSG, FI_RMA"));
	CHECK(!strcmp(fi_tostr_r(buf, sizeof buf, &type, FI_TYPE_EP_TYPE), "FI_EP_R"));
	CHECK(strlen(fi_strerror(FI_ETRUNC)) > 0 && strcmp(fi_strerror(FI_ETRUNC), fi_strerror(FI_EAGAIN)));
	/* The newest classes, which older headers do not have. */
	struct fid object = {.fclass = 30};
	CHECK(!strcmp(fi_tostr(&object, FI_TYPE_FID), "FI_CLASS_PROFILE"));
	object.fclass = 31;
	CHECK(!strcmp(fi_tostr(&object, FI_TYPE_FID), "FI_CLASS_XPU_CTX"));
	struct fi_info *info = pair_info(FI_MSG);
	CHECK(strstr(fi_tostr(info, FI_TYPE_INFO), "provider") || strstr(fi_tostr(info, FI_TYPE_INFO), "prov_name: shm"));
	CHECK(strstr(fi_tostr(info->domain_attr, FI_TYPE_DOMAIN_ATTR), "threading: FI_THREAD_SAFE"));
	fi_freeinfo(info);
}

int main(void)
{
	infos();
	keys();
	what_is_open();
	order_of_closing();
	what_is_not_supported();
	addresses();
	parameters();
	names();
	return 0;
}
