/*
 * C's names and versions for the functions of ofi-capi. This file is C for two reasons: a name has several versions,
 * which the assembler's .symver defines, and fi_log and fi_param_define take variable arguments, which Rust cannot
 * define. It only forwards. It needs no header of libfabric, because it passes structures on as pointers.
 *
 * Structures grow only at their end. The number `abi` tells which version's structures the caller has.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* The beginning of C's struct fi_provider; only the name is read. */
struct provider {
	uint32_t version, fi_version;
	void *context[4];
	const char *name;
};

int ofi_capi_getinfo(uint32_t abi, uint32_t version, const char *node, const char *service, uint64_t flags,
		     const void *hints, void **info);
void ofi_capi_freeinfo(uint32_t abi, void *info);
void *ofi_capi_dupinfo(uint32_t abi, const void *info);
int ofi_capi_fabric(uint32_t abi, const void *attr, void **fabric, void *context);
int ofi_capi_fabric2(const void *info, void **fabric, uint64_t flags, void *context);
uint32_t ofi_capi_version(void);
const char *ofi_capi_strerror(int number);
const char *ofi_capi_tostr(const void *data, int kind);
const char *ofi_capi_tostr_r(char *buf, size_t len, const void *data, int kind);
int ofi_capi_open(uint32_t version, const char *name, void *attr, size_t attr_len, uint64_t flags, void **fid,
		  void *context);
int ofi_capi_log_enabled(const char *provider, int level, int subsystem);
int ofi_capi_log_ready(const char *provider, int level, int subsystem, uint64_t *showtime);
void ofi_capi_log(const char *provider, int level, int subsystem, const char *function, int line, const char *text);
int ofi_capi_param_define(const char *provider, const char *name, uint32_t kind, const char *help);
int ofi_capi_param_get(const char *provider, const char *name, void *value);
int ofi_capi_getparams(void **params, int *count);
void ofi_capi_freeparams(void *params);

#define VERSION(function, name, node) __asm__(".symver " #function "," #name node)

#define INFO_FUNCTIONS(abi, at)                                                                                   \
	int getinfo_1_##abi(uint32_t version, const char *node, const char *service, uint64_t flags,              \
			    const void *hints, void **info)                                                       \
	{                                                                                                         \
		return ofi_capi_getinfo(abi, version, node, service, flags, hints, info);                         \
	}                                                                                                         \
	VERSION(getinfo_1_##abi, fi_getinfo, at "FABRIC_1." #abi);                                                \
	void freeinfo_1_##abi(void *info) { ofi_capi_freeinfo(abi, info); }                                       \
	VERSION(freeinfo_1_##abi, fi_freeinfo, at "FABRIC_1." #abi);                                              \
	void *dupinfo_1_##abi(const void *info) { return ofi_capi_dupinfo(abi, info); }                           \
	VERSION(dupinfo_1_##abi, fi_dupinfo, at "FABRIC_1." #abi)

INFO_FUNCTIONS(0, "@");
INFO_FUNCTIONS(1, "@");
INFO_FUNCTIONS(2, "@");
INFO_FUNCTIONS(3, "@");
INFO_FUNCTIONS(7, "@");
INFO_FUNCTIONS(8, "@");
INFO_FUNCTIONS(9, "@@");
INFO_FUNCTIONS(10, "@");

int fabric_1_0(const void *attr, void **fabric, void *context) { return ofi_capi_fabric(0, attr, fabric, context); }
VERSION(fabric_1_0, fi_fabric, "@FABRIC_1.0");
int fabric_1_1(const void *attr, void **fabric, void *context) { return ofi_capi_fabric(1, attr, fabric, context); }
VERSION(fabric_1_1, fi_fabric, "@@FABRIC_1.1");

int fi_fabric2(const void *info, void **fabric, uint64_t flags, void *context)
{
	return ofi_capi_fabric2(info, fabric, flags, context);
}

uint32_t fi_version(void) { return ofi_capi_version(); }
const char *fi_strerror(int number) { return ofi_capi_strerror(number); }
const char *fi_tostr(const void *data, int kind) { return ofi_capi_tostr(data, kind); }
const char *fi_tostr_r(char *buf, size_t len, const void *data, int kind)
{
	return ofi_capi_tostr_r(buf, len, data, kind);
}

int fi_open(uint32_t version, const char *name, void *attr, size_t attr_len, uint64_t flags, void **fid,
	    void *context)
{
	return ofi_capi_open(version, name, attr, attr_len, flags, fid, context);
}

static const char *name_of(const struct provider *provider) { return provider ? provider->name : NULL; }

int fi_log_enabled(const struct provider *provider, int level, int subsystem)
{
	return ofi_capi_log_enabled(name_of(provider), level, subsystem);
}

int fi_log_ready(const struct provider *provider, int level, int subsystem, uint64_t *showtime)
{
	return ofi_capi_log_ready(name_of(provider), level, subsystem, showtime);
}

void fi_log(const struct provider *provider, int level, int subsystem, const char *function, int line,
	    const char *format, ...)
{
	char text[1024];
	va_list arguments;
	va_start(arguments, format);
	int written = vsnprintf(text, sizeof text, format, arguments);
	va_end(arguments);
	if (written >= 0)
		ofi_capi_log(name_of(provider), level, subsystem, function, line, text);
}

int fi_param_define(const struct provider *provider, const char *name, uint32_t kind, const char *format, ...)
{
	char help[4096];
	va_list arguments;
	va_start(arguments, format);
	int written = format ? vsnprintf(help, sizeof help, format, arguments) : -1;
	va_end(arguments);
	return ofi_capi_param_define(name_of(provider), name, kind, written >= 0 ? help : NULL);
}

int fi_param_get(struct provider *provider, const char *name, void *value)
{
	return ofi_capi_param_get(name_of(provider), name, value);
}

int fi_getparams(void **params, int *count) { return ofi_capi_getparams(params, count); }
void fi_freeparams(void *params) { ofi_capi_freeparams(params); }
