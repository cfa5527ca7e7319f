/* The C interface between the shim and Rust (crates/nixl-plugin/src). Every int is a nixl_status_t. Byte strings are
 * borrowed for the duration of a call; each handle is released once, by the call beside its type. */
#pragma once
#include <cstddef>
#include <cstdint>

extern "C" {
struct ofi_bytes {
    const void *at;
    size_t len;
};
using ofi_sink = void (*)(void *to, ofi_bytes first, ofi_bytes second);

struct ofi_engine;  // ofi_nixl_close
struct ofi_region;  // ofi_nixl_deregister
struct ofi_target;  // ofi_nixl_unload
struct ofi_request; // ofi_nixl_release

struct ofi_descriptor {
    const ofi_region *region;
    uint64_t local;
    const ofi_target *target;
    uint64_t remote;
    uint64_t local_len;
    uint64_t remote_len;
};

void ofi_nixl_refuse(ofi_bytes why);           // logs why the plug-in does not serve its host
int ofi_nixl_options(ofi_sink sink, void *to); // name, default
int ofi_nixl_open(ofi_bytes name, const ofi_bytes *options, size_t pairs, bool progress, ofi_engine **out);
void ofi_nixl_close(ofi_engine *engine);
int ofi_nixl_conn_info(const ofi_engine *engine, ofi_sink sink, void *to); // nothing, bytes
int ofi_nixl_load_peer(const ofi_engine *engine, ofi_bytes peer, ofi_bytes info);
int ofi_nixl_connect(const ofi_engine *engine, ofi_bytes peer);
int ofi_nixl_disconnect(const ofi_engine *engine, ofi_bytes peer);
int ofi_nixl_notifications(const ofi_engine *engine, ofi_sink sink, void *to); // peer, message
int ofi_nixl_notify(const ofi_engine *engine, ofi_bytes peer, ofi_bytes message);

int ofi_nixl_register(const ofi_engine *engine, void *addr, size_t len, ofi_region **out);
bool ofi_nixl_may_have_devices(); // whether a driver is installed; does not initialise it
bool ofi_nixl_has_devices();
int ofi_nixl_register_device(const ofi_engine *engine, uint64_t ordinal, uint64_t addr, size_t len, ofi_region **out);
int ofi_nixl_deregister(const ofi_engine *engine, ofi_region *region);
int ofi_nixl_region_info(const ofi_engine *engine, const ofi_region *region, ofi_sink sink, void *to); // nothing, bytes
int ofi_nixl_load_own(const ofi_engine *engine, const ofi_region *region, ofi_target **out);
int ofi_nixl_load_region(const ofi_engine *engine, ofi_bytes peer, ofi_bytes info, uint64_t addr, uint64_t len,
                         ofi_target **out);
int ofi_nixl_unload(ofi_engine *engine, ofi_target *target);

int ofi_nixl_prepare(const ofi_engine *engine, bool is_write, ofi_bytes peer, const ofi_descriptor *descriptors, size_t count,
                     ofi_request **out);
int ofi_nixl_post(const ofi_request *request, bool has_message, ofi_bytes message);
int ofi_nixl_check(const ofi_request *request);
int ofi_nixl_release(ofi_request *request);
int ofi_nixl_estimate(const ofi_request *request, double *seconds);
}
