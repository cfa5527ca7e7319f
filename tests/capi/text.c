/* fi_tostr: ours names each value as C libfabric does, and may name values for which C has no name. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>

#include <rdma/providers/fi_log.h>

#include "check.h"

static char *(*theirs)(const void *, enum fi_type);
static int compared;

static void same(const void *data, int type, unsigned long long value)
{
	const char *text = theirs(data, (enum fi_type)type);
	if (!text || !*text || !strncmp(text, "Unknown", 7))
		return;
	const char *ours = fi_tostr(data, (enum fi_type)type);
	if (!ours || strcmp(text, ours)) {
		fprintf(stderr, "type %d, value %#llx: C says %s and we say %s\n", type, value, text, ours ? ours : "nothing");
		exit(1);
	}
	compared++;
}

/* The system's own library, by its path and into a linker namespace of its own: the bare name would find ours. */
static void open_theirs(void)
{
	static const char *places[] = {"/usr/lib/x86_64-linux-gnu/libfabric.so.1", "/usr/lib/aarch64-linux-gnu/libfabric.so.1"};
	Dl_info here;
	CHECK(dladdr((void *)fi_strerror, &here) && here.dli_fname);
	for (int at = 0; at < 2 && !theirs; at++)
		if (!access(places[at], R_OK) && strcmp(places[at], here.dli_fname)) {
			void *library = dlmopen(LM_ID_NEWLM, places[at], RTLD_NOW | RTLD_LOCAL);
			theirs = library ? (char *(*)(const void *, enum fi_type))dlsym(library, "fi_tostr") : NULL;
		}
}

/* The FI_TYPE_ numbers, which headers have had since 1.0. */
enum { CAPS = 2, OP_FLAGS = 3, MSG_ORDER = 13, MODE = 14, CQ_EVENT_FLAGS = 20, MR_MODE = 21 };

static void against_theirs(void)
{
	static const int flags[] = {CAPS, OP_FLAGS, MSG_ORDER, MODE, CQ_EVENT_FLAGS};
	static const int enums[] = {1, 4, 10, 11, 12, 15, 16, 17, 19, 22, 24, 25, 26, 27, 28, 34, 35};
	for (size_t type = 0; type < sizeof flags / sizeof *flags; type++)
		for (int bit = 0; bit < 64; bit++) {
			uint64_t value = 1ULL << bit;
			/* C's capabilities include FI_REMOTE_CQ_DATA, which is not one. 2.0 removed some bits of 1.x,
			 * and gave one of them another meaning. */
			int other = flags[type] == CAPS ? value == FI_REMOTE_CQ_DATA || bit == 48
							: flags[type] == MODE && bit > 50 && bit < 55 && bit != 52;
			if (!other)
				same(&value, flags[type], value);
		}
	for (size_t type = 0; type < sizeof enums / sizeof *enums; type++)
		for (uint32_t value = 0; value < 64; value++)
			if (enums[type] != FI_TYPE_EP_TYPE || value < 4) /* 2.0 removed stream sockets */
				same(&value, enums[type], value);
	for (int bit = 0; bit < 32; bit++) {
		uint32_t value = 1U << bit;
		same(&value, MR_MODE, value);
	}
	struct fi_info *info = pair_info(FI_MSG);
	same(info->fabric_attr, FI_TYPE_FABRIC_ATTR, 0);
	fi_freeinfo(info);
	CHECK(compared > 150);
}

/* The text has the fields of the requested interface version, and no newer ones. */
static void versions(void)
{
	static const struct {
		uint32_t version;
		int keys, counters;
	} all[] = {{FI_VERSION(1, 17), 0, 0}, {FI_VERSION(1, 20), 1, 0}, {FI_VERSION(2, 5), 1, 1}};
	for (size_t at = 0; at < 3; at++) {
		struct fi_info *hints = fi_allocinfo(), *info;
		hints->fabric_attr->prov_name = strdup("shm");
		OK(fi_getinfo(all[at].version, NULL, NULL, 0, hints, &info));
		const char *text = fi_tostr(info, FI_TYPE_INFO);
		ANSWERS(strstr(text, "max_ep_auth_key: ") != NULL, all[at].keys);
		ANSWERS(strstr(text, "max_cntr_value: ") != NULL, all[at].counters);
		CHECK(!strstr(text, "max_cntr_value: 0\n"));
		CHECK(strstr(text, "    fi_fabric_attr:\n") && strstr(text, "prov_name: shm\n"));
		text = fi_tostr(info->domain_attr, FI_TYPE_DOMAIN_ATTR);
		CHECK(strstr(text, "mr_cnt: ") && !strstr(text, "max_cntr_value"));
		fi_freeinfo(info);
		fi_freeinfo(hints);
	}
}

static void words(void)
{
	uint32_t level = FI_LOG_INFO, subsystem = FI_LOG_MR, unknown = 4711;
	CHECK(!strcmp(fi_tostr(&level, (enum fi_type)27), "info"));
	CHECK(!strcmp(fi_tostr(&subsystem, (enum fi_type)28), "mr"));
	CHECK(!strcmp(fi_tostr(&unknown, FI_TYPE_EP_TYPE), "Unknown"));
	CHECK(!strcmp(fi_tostr(&unknown, (enum fi_type)27), "Unknown"));
	CHECK(fi_tostr(&unknown, (enum fi_type)4711) && fi_tostr(NULL, FI_TYPE_INFO));
	struct fi_mr_attr mr = {.iov_count = 3, .access = FI_READ, .offset = 16, .context = (void *)0x40};
	CHECK(!strcmp(fi_tostr(&mr, (enum fi_type)31),
		      "fi_mr_attr:\n    mr_iov: (nil)\n    iov_count: 3\n    access: [ FI_READ ]\n    offset: 0x10\n"
		      "    requested_key: 0x0\n    context: 0x40\n    auth_key_size: 0\n    iface: FI_HMEM_SYSTEM\n"));
	struct fi_av_attr av = {.type = FI_AV_TABLE, .name = "shared", .flags = FI_READ};
	const char *text = fi_tostr(&av, (enum fi_type)29);
	CHECK(strstr(text, "name: shared\n") && strstr(text, "flags: [ FI_READ ]\n"));
	struct fi_cq_err_entry error = {.err = FI_ETRUNC, .prov_errno = 7, .olen = 9};
	text = fi_tostr(&error, (enum fi_type)33);
	CHECK(strstr(text, "prov_errno: 7\n") && strstr(text, "olen: 9\n") && strstr(text, "err_data: (nil)\n"));
	struct fi_cntr_attr cntr = {.flags = 0x10};
	CHECK(strstr(fi_tostr(&cntr, (enum fi_type)32), "flags: 0x10\n"));
	struct fi_cq_attr cq = {.size = 5};
	CHECK(strstr(fi_tostr(&cq, (enum fi_type)30), "size: 5\n"));
}

int main(void)
{
	words();
	versions();
	open_theirs();
	if (theirs)
		against_theirs();
	return 0;
}
