/* Address vectors beyond a plain table: shared by name, with the program's ids, and with insertion events. */
#include "check.h"

static struct pair pair;

static void shared(void)
{
	struct fid_av *first, *second;
	struct fi_av_attr attr = { .type = FI_AV_TABLE, .name = "of-vectors-c" };
	char name[128];
	size_t len = sizeof name;
	fi_addr_t addr = 99;

	pair_open(&pair, FI_MSG);
	attr.flags = FI_READ;
	ANSWERS(fi_av_open(pair.domain, &attr, &first, NULL), -FI_ENOENT);
	attr.flags = 0;
	OK(fi_av_open(pair.domain, &attr, &first, NULL));
	CHECK(attr.map_addr);
	OK(fi_getname(&pair.ep[0]->fid, name, &len));
	ANSWERS(fi_av_insert(first, name, 1, &addr, 0, NULL), 1);
	CHECK(addr == 0 && ((fi_addr_t *)attr.map_addr)[0] == 0);
	attr.flags = FI_READ;
	attr.map_addr = NULL;
	OK(fi_av_open(pair.domain, &attr, &second, NULL));
	CHECK(attr.map_addr && ((fi_addr_t *)attr.map_addr)[0] == 0);
	char found[128];
	size_t found_len = sizeof found;
	OK(fi_av_lookup(second, 0, found, &found_len));
	CHECK(found_len == len && !memcmp(found, name, len));
	ANSWERS(fi_av_insert(second, name, 1, &addr, 0, NULL), -FI_EACCES);
	OK(fi_close(&first->fid));
	OK(fi_close(&second->fid));
	pair_close(&pair);
}

#if FI_MAJOR_VERSION > 1 || FI_MINOR_VERSION >= 20
static void keys(void)
{
	struct fi_info *hints = pair_info(FI_MSG | FI_RMA | FI_DIRECTED_RECV), *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain, *plain;
	struct fid_av *av;
	struct fid_mr *mr;
	struct fi_av_attr attr = {.type = FI_AV_TABLE};
	char name[] = "fi_shm://somebody", found[8];
	size_t size = sizeof found;
	fi_addr_t key = 0, addr, none = 1;

	hints->domain_attr->auth_key_size = FI_AV_AUTH_KEY;
	OK(fi_getinfo(FI_VERSION(1, 20), NULL, NULL, 0, hints, &info));
	CHECK(info->domain_attr->auth_key_size == FI_AV_AUTH_KEY && info->domain_attr->max_ep_auth_key == 1);
	OK(fi_fabric(info->fabric_attr, &fabric, NULL));
	OK(fi_domain(fabric, info, &domain, NULL));
	OK(fi_av_open(domain, &attr, &av, NULL));
	OK(fi_av_insert_auth_key(av, "job 7", 5, &key, 0));
	addr = key;
	ANSWERS(fi_av_insert(av, name, 1, &addr, FI_AUTH_KEY, NULL), 1);
	CHECK(addr == 0 && key != 0);
	ANSWERS(fi_av_insert(av, name, 1, &none, FI_AUTH_KEY, NULL), -FI_EINVAL);
	ANSWERS(fi_av_insert(av, name, 1, NULL, FI_AUTH_KEY, NULL), -FI_EINVAL);
	OK(fi_av_lookup_auth_key(av, addr, found, &size));
	CHECK(size == 5 && !memcmp(found, "job 7", 5));
	static char memory[64];
	struct iovec iov = {memory, sizeof memory};
	struct fi_mr_auth_key named = {.av = av, .src_addr = FI_ADDR_UNSPEC};
	struct fi_mr_attr region = {.mr_iov = &iov, .iov_count = 1, .access = FI_REMOTE_READ,
		.auth_key = (uint8_t *)&named, .auth_key_size = sizeof named};
	OK(fi_mr_regattr(domain, &region, 0, &mr));
	OK(fi_close(&mr->fid));
	named.src_addr = key;
	OK(fi_mr_regattr(domain, &region, FI_AUTH_KEY, &mr));
	OK(fi_close(&mr->fid));
	ANSWERS(fi_mr_regattr(domain, &region, 0, &mr), -FI_EINVAL);
	/* For one peer only; this needs a domain that identifies the source of an access. */
	named.src_addr = addr;
	OK(fi_mr_regattr(domain, &region, 0, &mr));
	OK(fi_close(&mr->fid));
	info->caps &= ~FI_DIRECTED_RECV;
	OK(fi_domain(fabric, info, &plain, NULL));
	ANSWERS(fi_mr_regattr(plain, &region, 0, &mr), -FI_EINVAL);
	OK(fi_close(&plain->fid));
	ANSWERS(fi_mr_reg(domain, memory, 64, FI_REMOTE_READ, 0, 0, 0, &mr, NULL), -FI_EINVAL);
	ANSWERS(fi_av_remove(av, &key, 1, FI_AUTH_KEY), -FI_EBUSY);
	OK(fi_av_remove(av, &addr, 1, 0));
	OK(fi_av_remove(av, &key, 1, FI_AUTH_KEY));
	OK(fi_close(&av->fid));
	OK(fi_close(&domain->fid));
	OK(fi_close(&fabric->fid));
	fi_freeinfo(info);
	fi_freeinfo(hints);
}
#endif

static void ids(void)
{
	struct fid_av *av;
	struct fi_av_attr attr = { .type = FI_AV_TABLE, .flags = FI_AV_USER_ID };
	char name[128];
	size_t len = sizeof name;
	fi_addr_t addr = 4711;

	pair_open(&pair, FI_MSG);
	OK(fi_getname(&pair.ep[0]->fid, name, &len));
	/* fi_av_insert reads the id from where it returns the fi_addr_t. */
	ANSWERS(fi_av_insert(pair.av, name, 1, &addr, FI_AV_USER_ID, NULL), 1);
	CHECK(addr == pair.addr[0]);
	ANSWERS(fi_av_insert(pair.av, name, 1, NULL, FI_AV_USER_ID, NULL), -FI_EINVAL);
#if FI_MAJOR_VERSION > 1
	ANSWERS(fi_av_set_user_id(pair.av, addr, 1, 0), -FI_EINVAL);
#endif
	OK(fi_av_open(pair.domain, &attr, &av, NULL));
	ANSWERS(fi_av_insert(av, name, 1, &addr, 0, NULL), 1);
#if FI_MAJOR_VERSION > 1
	OK(fi_av_set_user_id(av, addr, 12, 0));
#endif
	ANSWERS(fi_av_insert(av, name, 1, &addr, FI_AV_USER_ID, NULL), -FI_EINVAL);
	OK(fi_close(&av->fid));
	pair_close(&pair);
}

static void reported(void)
{
	struct fid_av *av;
	struct fid_eq *eq;
	struct fi_av_attr attr = { .type = FI_AV_TABLE, .flags = FI_EVENT };
	struct fi_eq_attr eq_attr = { .wait_obj = FI_WAIT_NONE };
	struct fi_eq_entry entry;
	struct fi_eq_err_entry error = { 0 };
	uint32_t event;
	char names[256], *second = names;
	size_t len = sizeof names;
	fi_addr_t addr[2] = { 7, 7 };

	pair_open(&pair, FI_MSG);
	OK(fi_getname(&pair.ep[0]->fid, names, &len));
	second += len;
	strcpy(second, "fi_nowhere://x");
	OK(fi_av_open(pair.domain, &attr, &av, NULL));
	ANSWERS(fi_av_insert(av, names, 2, addr, 0, &pair), -FI_ENOEQ);
	OK(fi_eq_open(pair.fabric, &eq_attr, &eq, NULL));
	OK(fi_av_bind(av, &eq->fid, 0));
	ANSWERS(fi_close(&eq->fid), -FI_EBUSY);
	ANSWERS(fi_av_insert(av, names, 2, addr, 0, &pair), 0);
	CHECK(addr[0] == 0 && addr[1] == FI_ADDR_NOTAVAIL);
	ANSWERS(fi_eq_read(eq, &event, &entry, sizeof entry, 0), -FI_EAVAIL);
	ANSWERS(fi_eq_readerr(eq, &error, 0), sizeof error);
	CHECK(error.fid == &av->fid && error.context == &pair && error.data == 1 && error.err == FI_EINVAL);
	ANSWERS(fi_eq_read(eq, &event, &entry, sizeof entry, 0), sizeof entry);
	CHECK(event == FI_AV_COMPLETE && entry.fid == &av->fid && entry.context == &pair && entry.data == 1);
	OK(fi_close(&av->fid));
	OK(fi_close(&eq->fid));
	pair_close(&pair);
}

int main(void)
{
	shared();
#if FI_MAJOR_VERSION > 1 || FI_MINOR_VERSION >= 20
	keys();
#endif
	ids();
	reported();
	return 0;
}
