/*
 * One of our providers as a plug-in, `lib<NAME>-fi.so`, that a stock libfabric loads from FI_PROVIDER_PATH. PROVIDER is
 * its name in this library. NAME is its name in libfabric, which must not be a name of libfabric's own provider, and
 * must not begin with "ofi_".
 */
#include <stdint.h>

int ofi_capi_plugin_getinfo(const char *provider, const char *alias, uint32_t version, const char *node,
			    const char *service, uint64_t flags, const void *hints, void **info);
int ofi_capi_plugin_fabric(const char *provider, const void *attr, void **fabric, void *context);
uint32_t ofi_capi_version(void);

/* struct fi_provider of rdma/providers/fi_prov.h. */
struct provider {
	uint32_t version, fi_version;
	void *context[4];
	const char *name;
	int (*getinfo)(uint32_t version, const char *node, const char *service, uint64_t flags, const void *hints,
		       void **info);
	int (*fabric)(const void *attr, void **fabric, void *context);
	void (*cleanup)(void);
};

static int getinfo(uint32_t version, const char *node, const char *service, uint64_t flags, const void *hints,
		   void **info)
{
	return ofi_capi_plugin_getinfo(PROVIDER, NAME, version, node, service, flags, hints, info);
}

static int fabric(const void *attr, void **place, void *context)
{
	return ofi_capi_plugin_fabric(PROVIDER, attr, place, context);
}

/* Open objects stay open when libfabric ends: the plug-in is never unloaded. */
static void cleanup(void) {}

__attribute__((visibility("default"))) struct provider *fi_prov_ini(void)
{
	static struct provider provider = {.name = NAME, .getinfo = getinfo, .fabric = fabric, .cleanup = cleanup};
	provider.version = 1;
	provider.fi_version = ofi_capi_version();
	return &provider;
}
