/* A program's own functions in place of the library's log: fi_import_log. */
#include "check.h"

#include <rdma/fi_ext.h>

static struct pair pair;
static int asked, wanted = 1, logged, filtered, ready_answer = 1;
static char provider_name[64], function_name[64], text[512];
static enum fi_log_level level_seen;

/* A call that is refused; the library logs the reason. */
static void refused(void)
{
	void *ops;
	ANSWERS(fi_open_ops(&pair.ep[0]->fid, "nothing of this name", 0, &ops, NULL), -FI_ENOSYS);
}

static int my_enabled(const struct fi_provider *provider, enum fi_log_level level, enum fi_log_subsys subsys,
		      uint64_t flags)
{
	asked++;
	filtered = !!(flags & FI_LOG_PROV_FILTERED);
	return wanted;
}

static int my_ready(const struct fi_provider *provider, enum fi_log_level level, enum fi_log_subsys subsys,
		    uint64_t flags, uint64_t *showtime)
{
	(*showtime)++;
	return ready_answer;
}

static void my_log(const struct fi_provider *provider, enum fi_log_level level, enum fi_log_subsys subsys,
		   const char *function, int line, const char *message)
{
	logged++;
	snprintf(provider_name, sizeof provider_name, "%s", provider->name);
	snprintf(function_name, sizeof function_name, "%s", function);
	snprintf(text, sizeof text, "%s", message);
	level_seen = level;
	/* Messages that the log function itself causes do not reach it: that would recurse without end. */
	if (logged < 100)
		refused();
}

static struct fi_ops_log functions = {.enabled = my_enabled, .ready = my_ready, .log = my_log};
static struct fid_logging mine = {.ops = &functions};

static void taken(void)
{
	struct fi_provider provider = {.name = "mine"};
	struct fid *again;
	refused();
	ANSWERS(logged, 0);
	OK(fi_import_log(FI_VERSION(1, 17), 0, &mine));
	logged = asked = 0; /* opening the log may have said something */
	refused();
	ANSWERS(logged, 1);
	CHECK(asked >= 1 && filtered);
	CHECK(strstr(text, "nothing of this name") && text[strlen(text) - 1] == '\n');
	CHECK(!strcmp(provider_name, "core") && level_seen == FI_LOG_INFO);
	uint64_t value;
	ANSWERS(fi_get_val(&pair.ep[0]->fid, 0x4711, &value), -FI_ENOSYS);
	CHECK(logged == 2 && strstr(text, "fi_get_val of name 0x4711"));
	logged = 1;
	wanted = 0;
	refused();
	ANSWERS(logged, 1);
	CHECK(!fi_log_enabled(&provider, FI_LOG_WARN, FI_LOG_CORE));

	wanted = 1;
	CHECK(fi_log_enabled(&provider, FI_LOG_DEBUG, FI_LOG_MR) && !filtered);
	FI_WARN(&provider, FI_LOG_MR, "turned %d times\n", 7);
	ANSWERS(logged, 2);
	CHECK(!strcmp(provider_name, "mine") && !strcmp(text, "turned 7 times\n") && level_seen == FI_LOG_WARN);
	CHECK(!strcmp(function_name, __func__));
	uint64_t showtime = 5;
	ready_answer = 0;
	CHECK(!fi_log_ready(&provider, FI_LOG_WARN, FI_LOG_CORE, &showtime) && showtime == 6);
	ready_answer = 1;
	CHECK(fi_log_ready(&provider, FI_LOG_WARN, FI_LOG_CORE, &showtime) && showtime == 7);

	ANSWERS(fi_open(FI_VERSION(1, 17), "logging", NULL, 0, 0, &again, NULL), -FI_EALREADY);
	OK(fi_close(&mine.fid));
	logged = 0;
	refused();
	ANSWERS(logged, 0);
	CHECK(!fi_log_enabled(&provider, FI_LOG_WARN, FI_LOG_CORE));
	CHECK(fi_close(&mine.fid) < 0);
}

/* Null members fall back to the library's own functions. */
static void parts(void)
{
	struct fi_provider provider = {.name = "mine"};
	functions.enabled = NULL;
	functions.ready = NULL;
	OK(fi_import_log(FI_VERSION(1, 17), 0, &mine));
	logged = 0;
	refused(); /* FI_LOG_LEVEL asks for no log */
	ANSWERS(logged, 0);
	uint64_t showtime = 5;
	CHECK(!fi_log_enabled(&provider, FI_LOG_WARN, FI_LOG_CORE));
	CHECK(!fi_log_ready(&provider, FI_LOG_WARN, FI_LOG_CORE, &showtime) && showtime == 5);
	fi_log(&provider, FI_LOG_WARN, FI_LOG_CORE, __func__, __LINE__, "not asked first");
	ANSWERS(logged, 1);
	OK(fi_close(&mine.fid));
	functions.enabled = my_enabled;
}

static void refusals(void)
{
	struct fid *log, *other;
	ANSWERS(fi_open(FI_VERSION(1, 12), "logging", NULL, 0, 0, &log, NULL), -FI_EINVAL);
	ANSWERS(fi_open(FI_VERSION(1, 17), "logging", &log, 8, 0, &log, NULL), -FI_EINVAL);
	ANSWERS(fi_open(FI_VERSION(1, 17), "logging", NULL, 0, 1, &log, NULL), -FI_EBADFLAGS);
	ANSWERS(fi_open(FI_VERSION(1, 17), "logging", NULL, 0, 0, NULL, NULL), -FI_EINVAL);
	ANSWERS(fi_open(FI_VERSION(1, 17), "mr_cache", NULL, 0, 0, &other, NULL), -FI_ENOSYS);
	OK(fi_open(FI_VERSION(1, 17), "logging", NULL, 0, 0, &log, &pair));
	CHECK(log->fclass == FI_CLASS_LOG && log->context == &pair);
	ANSWERS(fi_import_fid(log, NULL, 0), -FI_EINVAL);
	ANSWERS(fi_import_fid(log, &pair.domain->fid, 0), -FI_EINVAL);
	mine.fid.fclass = FI_CLASS_LOG;
	functions.size = sizeof functions - 1;
	ANSWERS(fi_import_fid(log, &mine.fid, 0), -FI_EINVAL);
	functions.size = sizeof functions;
	ANSWERS(fi_import_fid(log, &mine.fid, 1), -FI_EBADFLAGS);

	/* The last import counts, and closing the one before it changes nothing. */
	struct fid_logging second = {.fid.fclass = FI_CLASS_LOG, .ops = &functions};
	OK(fi_import_fid(log, &mine.fid, 0));
	OK(fi_import_fid(log, &second.fid, 0));
	OK(fi_close(log));
	CHECK(fi_import_fid(log, &mine.fid, 0) < 0);
	OK(fi_close(&mine.fid));
	logged = 0;
	refused();
	ANSWERS(logged, 1);
	OK(fi_close(&second.fid));
	refused();
	ANSWERS(logged, 1);
}

int main(void)
{
	setenv("FI_LOG_LEVEL", "off", 1);
	setenv("FI_LOG_PROV", "mine", 1);
	pair_open(&pair, FI_MSG);
	taken();
	parts();
	refusals();
	pair_close(&pair);
	return 0;
}
