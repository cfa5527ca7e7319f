/* The interface between NVIDIA's NIXL and its backends: API version 1, as NIXL has it from 1.0 to 1.5. Declared from
 * its facts (names, layouts, the order of the virtual table), so that the plug-in builds without NIXL's sources. The
 * assertions below are the layout of x86-64 and AArch64 with libstdc++. host.h refuses hosts of another layout.
 *
 * Names that begin with nixl are NIXL's: they are part of the interface, because the types' descriptions (RTTI) have
 * them. Members that only keep a place, and functions that only keep a slot, have names of their own. */
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

/* What `nixl_plugin_init` states in its first word. The host logs a number that differs, and does not load. */
constexpr int NIXL_API = 1;

enum nixl_status_t : int {
    NIXL_SUCCESS = 0,
    NIXL_ERR_INVALID_PARAM = -2,
    NIXL_ERR_BACKEND = -3,
    NIXL_ERR_MISMATCH = -5,
    NIXL_ERR_NOT_SUPPORTED = -9,
};
enum nixl_mem_t : unsigned { DRAM_SEG, VRAM_SEG };
enum nixl_xfer_op_t : unsigned { NIXL_READ, NIXL_WRITE };
enum class nixl_cost_t : int { ANALYTICAL_BACKEND = 0 };

using nixl_mem_list_t = std::vector<nixl_mem_t>;
using nixl_b_params_t = std::unordered_map<std::string, std::string>;
using notif_list_t = std::vector<std::pair<std::string, std::string>>;
struct nixlAgentOptionalArgs;

/* What the host passes when it creates a backend. */
struct nixlBackendInitParams {
    std::string localAgent;
    std::string type;
    nixl_b_params_t *customParams;
    bool enableProgTh;
    uint64_t pthrDelay;
    int syncMode;
    bool enableTelemetry_;
};

struct nixlBackendOptionalArgs {
    std::string notifMsg;
    bool hasNotif;
    std::string customParam;
};

/* A range of memory: an address, or an offset in a file, and the number of its device. */
struct nixlBasicDesc {
    uintptr_t addr;
    size_t len;
    uint64_t devId;
};

struct nixlBlobDesc : nixlBasicDesc {
    std::string metaInfo;
};

class nixlBackendMD {
    bool is_private;

public:
    explicit nixlBackendMD(bool is_private) : is_private(is_private) {}
    virtual ~nixlBackendMD() = default;
    // The host reads the member, no one here does.
    bool isPrivate() const {
        return is_private;
    }
};

struct nixlMetaDesc : nixlBasicDesc {
    nixlBackendMD *metadataP;
};

struct nixlRemoteMetaDesc;

/* A list of ranges. The host makes it; here it is read, so its virtual table is a pointer that is not followed. */
template <class T> struct nixlDescList {
    const void *table;
    nixl_mem_t kind;
    std::vector<T> all;
};
using nixl_meta_dlist_t = nixlDescList<nixlMetaDesc>;

class nixlBackendReqH {
public:
    virtual ~nixlBackendReqH() = default;
};

/* The base of a backend. The host reads its members directly, and calls its virtual functions by their slots. */
class nixlBackendEngine {
    struct Event {
        uint32_t kind;
        uint64_t value;
    };
    std::string kind;
    nixl_b_params_t params;
    std::vector<Event> events; // stays empty
    std::mutex guard;          // of the events; the host locks it

protected:
    bool initErr = false;
    const std::string localAgent;

private:
    const bool has_telemetry;

public:
    explicit nixlBackendEngine(const nixlBackendInitParams *given)
        : kind(given->type), params(*given->customParams), localAgent(given->localAgent),
          has_telemetry(given->enableTelemetry_) {}
    nixlBackendEngine(const nixlBackendEngine &) = delete;
    void operator=(const nixlBackendEngine &) = delete;

    const nixl_b_params_t &parameters() const {
        return params;
    }
    bool hasTelemetry() const {
        return has_telemetry;
    }

    // The order of these functions is that of the virtual table.
    virtual ~nixlBackendEngine() = default;
    virtual bool supportsRemote() const = 0;
    virtual bool supportsLocal() const = 0;
    virtual bool supportsNotif() const = 0;
    virtual nixl_mem_list_t getSupportedMems() const = 0;
    virtual nixl_status_t registerMem(const nixlBlobDesc &, const nixl_mem_t &, nixlBackendMD *&) = 0;
    virtual nixl_status_t deregisterMem(nixlBackendMD *) = 0;
    virtual nixl_status_t connect(const std::string &) = 0;
    virtual nixl_status_t disconnect(const std::string &) = 0;
    virtual nixl_status_t unloadMD(nixlBackendMD *) = 0;
    virtual nixl_status_t prepXfer(const nixl_xfer_op_t &, const nixl_meta_dlist_t &, const nixl_meta_dlist_t &,
                                   const std::string &, nixlBackendReqH *&, const nixlBackendOptionalArgs *) const = 0;
    virtual nixl_status_t postXfer(const nixl_xfer_op_t &, const nixl_meta_dlist_t &, const nixl_meta_dlist_t &,
                                   const std::string &, nixlBackendReqH *&, const nixlBackendOptionalArgs *) const = 0;
    virtual nixl_status_t checkXfer(nixlBackendReqH *) const = 0;
    virtual nixl_status_t releaseReqH(nixlBackendReqH *) const = 0;
    // Memory views, for transfers that a GPU starts: of a peer's memory, of this agent's, and their end.
    virtual nixl_status_t remoteView(const nixlDescList<nixlRemoteMetaDesc> &, void *&,
                                     const nixlBackendOptionalArgs *) const {
        return NIXL_ERR_NOT_SUPPORTED;
    }
    virtual nixl_status_t localView(const nixl_meta_dlist_t &, void *&, const nixlBackendOptionalArgs *) const {
        return NIXL_ERR_NOT_SUPPORTED;
    }
    virtual void releaseView(void *) const {}
    virtual nixl_status_t getPublicData(const nixlBackendMD *, std::string &) const = 0;
    virtual nixl_status_t getConnInfo(std::string &) const = 0;
    virtual nixl_status_t loadRemoteConnInfo(const std::string &, const std::string &) = 0;
    virtual nixl_status_t loadRemoteMD(const nixlBlobDesc &, const nixl_mem_t &, const std::string &, nixlBackendMD *&) = 0;
    virtual nixl_status_t loadLocalMD(nixlBackendMD *, nixlBackendMD *&) = 0;
    virtual nixl_status_t getNotifs(notif_list_t &) = 0;
    virtual nixl_status_t genNotif(const std::string &, const std::string &) const = 0;
    // Facts about files: not of memory.
    virtual nixl_status_t queryMem(const nixlDescList<nixlBlobDesc> &, std::vector<std::optional<nixl_b_params_t>> &) const {
        return NIXL_ERR_NOT_SUPPORTED;
    }
    virtual nixl_status_t estimateXferCost(const nixl_xfer_op_t &, const nixl_meta_dlist_t &, const nixl_meta_dlist_t &,
                                           const std::string &, nixlBackendReqH *const &, std::chrono::microseconds &,
                                           std::chrono::microseconds &, nixl_cost_t &,
                                           const nixlAgentOptionalArgs *) const = 0;

    struct Layout;
};

/* What `nixl_plugin_init` returns. */
struct nixlBackendPlugin {
    int api_version;
    nixlBackendEngine *(*create_engine)(const nixlBackendInitParams *);
    void (*destroy_engine)(nixlBackendEngine *);
    const char *(*get_plugin_name)();
    const char *(*get_plugin_version)();
    nixl_b_params_t (*get_backend_options)();
    nixl_mem_list_t (*get_backend_mems)();
};

// A compiler or library with another layout is refused here.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof" // the types with a base are laid out as everywhere
#define AT(type, member, offset) static_assert(offsetof(type, member) == (offset), #type "::" #member)
static_assert(sizeof(std::string) == 32 && sizeof(nixl_b_params_t) == 56 && sizeof(std::vector<int>) == 24);
AT(nixlBackendInitParams, type, 32);
AT(nixlBackendInitParams, customParams, 64);
AT(nixlBackendInitParams, enableProgTh, 72);
AT(nixlBackendInitParams, syncMode, 88);
AT(nixlBackendInitParams, enableTelemetry_, 92);
AT(nixlBackendOptionalArgs, hasNotif, 32);
AT(nixlBackendOptionalArgs, customParam, 40);
AT(nixlBlobDesc, metaInfo, 24);
AT(nixlMetaDesc, metadataP, 24);
AT(nixl_meta_dlist_t, kind, 8);
AT(nixl_meta_dlist_t, all, 16);
AT(nixlBackendPlugin, get_backend_mems, 48);
struct nixlBackendEngine::Layout {
    AT(nixlBackendEngine, kind, 8);
    AT(nixlBackendEngine, params, 40);
    AT(nixlBackendEngine, events, 96);
    AT(nixlBackendEngine, guard, 120);
    AT(nixlBackendEngine, initErr, 120 + sizeof(std::mutex));
    AT(nixlBackendEngine, localAgent, 128 + sizeof(std::mutex));
    AT(nixlBackendEngine, has_telemetry, 160 + sizeof(std::mutex));
};
static_assert(sizeof(nixlBackendInitParams) == 96 && sizeof(nixlBackendOptionalArgs) == 72);
static_assert(sizeof(nixlBlobDesc) == 56 && sizeof(nixlMetaDesc) == 32 && sizeof(nixl_meta_dlist_t) == 40);
static_assert(sizeof(nixlBackendMD) == 16 && sizeof(nixlBackendReqH) == 8 && sizeof(nixlBackendPlugin) == 56);
#undef AT
#pragma GCC diagnostic pop
