// NIXL's plug-in interface on the C interface of ofi_nixl.h. The shim only converts NIXL's types, and passes errors on.

#include <chrono>
#include <exception>
#include <string>
#include <vector>

#include "host.h"
#include "ofi_nixl.h"

namespace {

ofi_bytes lend(const std::string &text) {
    return {text.data(), text.size()};
}

std::string text(ofi_bytes bytes) {
    return {static_cast<const char *>(bytes.at), bytes.len};
}

nixl_status_t status(int number) {
    return static_cast<nixl_status_t>(number);
}

// Memory of the host, and of CUDA devices if there may be any.
nixl_mem_list_t memories(bool has_devices) {
    return has_devices ? nixl_mem_list_t{DRAM_SEG, VRAM_SEG} : nixl_mem_list_t{DRAM_SEG};
}

bool is_known(nixl_mem_t kind) {
    return kind == DRAM_SEG || kind == VRAM_SEG;
}

void assign(void *to, ofi_bytes, ofi_bytes bytes) {
    *static_cast<std::string *>(to) = text(bytes);
}

// Memory of this agent, or of a peer; one of the two is null.
struct Memory final : nixlBackendMD {
    ofi_region *region;
    ofi_target *target;
    Memory(ofi_region *region, ofi_target *target) : nixlBackendMD(region != nullptr), region(region), target(target) {}
};

const Memory *memory(const nixlBackendMD *md) {
    return static_cast<const Memory *>(md);
}

struct Request final : nixlBackendReqH {
    ofi_request *request = nullptr;
};

const ofi_request *request(nixlBackendReqH *handle) {
    return static_cast<Request *>(handle)->request;
}

class Engine final : public nixlBackendEngine {
    ofi_engine *engine = nullptr;

public:
    explicit Engine(const nixlBackendInitParams *params) : nixlBackendEngine(params) {
        std::vector<ofi_bytes> options;
        for (const auto &[name, value] : parameters()) {
            options.insert(options.end(), {lend(name), lend(value)});
        }
        initErr = ofi_nixl_open(lend(localAgent), options.data(), options.size() / 2, params->enableProgTh, &engine) != 0;
    }

    ~Engine() override {
        if (engine) {
            ofi_nixl_close(engine);
        }
    }

    bool supportsRemote() const override {
        return true;
    }

    bool supportsLocal() const override {
        return true;
    }

    bool supportsNotif() const override {
        return true;
    }

    nixl_mem_list_t getSupportedMems() const override {
        return memories(ofi_nixl_has_devices());
    }

    nixl_status_t registerMem(const nixlBlobDesc &mem, const nixl_mem_t &kind, nixlBackendMD *&out) override {
        if (!is_known(kind)) {
            return NIXL_ERR_NOT_SUPPORTED;
        }
        ofi_region *region = nullptr;
        int done = kind == VRAM_SEG ? ofi_nixl_register_device(engine, mem.devId, mem.addr, mem.len, &region)
                                    : ofi_nixl_register(engine, reinterpret_cast<void *>(mem.addr), mem.len, &region);
        out = done == 0 ? new Memory(region, nullptr) : nullptr;
        return status(done);
    }

    nixl_status_t deregisterMem(nixlBackendMD *md) override {
        int done = ofi_nixl_deregister(engine, memory(md)->region);
        if (done == 0) {
            delete md;
        }
        return status(done);
    }

    nixl_status_t connect(const std::string &peer) override {
        return status(ofi_nixl_connect(engine, lend(peer)));
    }

    nixl_status_t disconnect(const std::string &peer) override {
        return status(ofi_nixl_disconnect(engine, lend(peer)));
    }

    nixl_status_t unloadMD(nixlBackendMD *md) override {
        int done = ofi_nixl_unload(engine, memory(md)->target);
        delete md;
        return status(done);
    }

    nixl_status_t getPublicData(const nixlBackendMD *md, std::string &out) const override {
        return status(ofi_nixl_region_info(engine, memory(md)->region, assign, &out));
    }

    nixl_status_t getConnInfo(std::string &out) const override {
        return status(ofi_nixl_conn_info(engine, assign, &out));
    }

    nixl_status_t loadRemoteConnInfo(const std::string &peer, const std::string &info) override {
        return status(ofi_nixl_load_peer(engine, lend(peer), lend(info)));
    }

    nixl_status_t loadRemoteMD(const nixlBlobDesc &mem, const nixl_mem_t &kind, const std::string &peer,
                               nixlBackendMD *&out) override {
        if (!is_known(kind)) {
            return NIXL_ERR_NOT_SUPPORTED;
        }
        ofi_target *target = nullptr;
        int done = ofi_nixl_load_region(engine, lend(peer), lend(mem.metaInfo), mem.addr, mem.len, &target);
        out = done == 0 ? new Memory(nullptr, target) : nullptr;
        return status(done);
    }

    nixl_status_t loadLocalMD(nixlBackendMD *input, nixlBackendMD *&out) override {
        ofi_target *target = nullptr;
        int done = ofi_nixl_load_own(engine, memory(input)->region, &target);
        out = done == 0 ? new Memory(nullptr, target) : nullptr;
        return status(done);
    }

    nixl_status_t prepXfer(const nixl_xfer_op_t &way, const nixl_meta_dlist_t &local, const nixl_meta_dlist_t &remote,
                           const std::string &peer, nixlBackendReqH *&handle, const nixlBackendOptionalArgs *) const override {
        handle = nullptr;
        if (local.all.size() != remote.all.size()) {
            return NIXL_ERR_MISMATCH;
        }
        std::vector<ofi_descriptor> descriptors;
        descriptors.reserve(local.all.size());
        for (size_t nth = 0; nth < local.all.size(); ++nth) {
            const nixlMetaDesc &here = local.all[nth], &there = remote.all[nth];
            const Memory *ours = memory(here.metadataP), *theirs = memory(there.metadataP);
            descriptors.push_back({ours ? ours->region : nullptr, here.addr, theirs ? theirs->target : nullptr, there.addr,
                                   here.len, there.len});
        }
        ofi_request *prepared = nullptr;
        int done =
            ofi_nixl_prepare(engine, way == NIXL_WRITE, lend(peer), descriptors.data(), descriptors.size(), &prepared);
        if (done == 0) {
            auto *made = new Request;
            made->request = prepared;
            handle = made;
        }
        return status(done);
    }

    nixl_status_t postXfer(const nixl_xfer_op_t &, const nixl_meta_dlist_t &, const nixl_meta_dlist_t &, const std::string &,
                           nixlBackendReqH *&handle, const nixlBackendOptionalArgs *args) const override {
        bool has_message = args && args->hasNotif;
        return status(ofi_nixl_post(request(handle), has_message, has_message ? lend(args->notifMsg) : ofi_bytes{}));
    }

    nixl_status_t checkXfer(nixlBackendReqH *handle) const override {
        return status(ofi_nixl_check(request(handle)));
    }

    nixl_status_t releaseReqH(nixlBackendReqH *handle) const override {
        // NIXL forgets the handle after a second refusal, when its memory is still in use: then it is never freed.
        int done = ofi_nixl_release(static_cast<Request *>(handle)->request);
        if (done == 0) {
            delete handle;
        }
        return status(done);
    }

    nixl_status_t getNotifs(notif_list_t &out) override {
        auto push = [](void *to, ofi_bytes peer, ofi_bytes message) {
            static_cast<notif_list_t *>(to)->emplace_back(text(peer), text(message));
        };
        return status(ofi_nixl_notifications(engine, push, &out));
    }

    nixl_status_t genNotif(const std::string &peer, const std::string &message) const override {
        return status(ofi_nixl_notify(engine, lend(peer), lend(message)));
    }

    nixl_status_t estimateXferCost(const nixl_xfer_op_t &, const nixl_meta_dlist_t &, const nixl_meta_dlist_t &,
                                   const std::string &, nixlBackendReqH *const &handle, std::chrono::microseconds &duration,
                                   std::chrono::microseconds &margin, nixl_cost_t &method,
                                   const nixlAgentOptionalArgs *) const override {
        if (!handle) {
            return NIXL_ERR_INVALID_PARAM;
        }
        double seconds = 0;
        int done = ofi_nixl_estimate(request(handle), &seconds);
        if (done == 0) {
            duration = std::chrono::microseconds(static_cast<int64_t>(seconds * 1e6));
            margin = duration / 2;
            method = nixl_cost_t::ANALYTICAL_BACKEND;
        }
        return status(done);
    }
};

nixl_b_params_t options() {
    nixl_b_params_t all;
    auto insert = [](void *to, ofi_bytes name, ofi_bytes value) {
        static_cast<nixl_b_params_t *>(to)->emplace(text(name), text(value));
    };
    ofi_nixl_options(insert, &all);
    return all;
}

constexpr const char *NAME = "OFI";

bool is_refused(const std::string &why) {
    if (!why.empty()) {
        ofi_nixl_refuse(lend(why));
    }
    return !why.empty();
}

nixlBackendEngine *create(const nixlBackendInitParams *given) {
    try {
        return is_refused(host::refusal(given, NAME)) ? nullptr : new Engine(given);
    } catch (const std::exception &error) {
        is_refused(std::string("the backend cannot be created: ") + error.what());
        return nullptr;
    }
}

nixlBackendPlugin plugin = {
    NIXL_API,
    create,
    [](nixlBackendEngine *engine) { delete engine; },
    [] { return NAME; },
    [] { return OFI_VERSION; },
    options,
    [] { return memories(ofi_nixl_may_have_devices()); },
};

} // namespace

extern "C" nixlBackendPlugin *nixl_plugin_init() {
    return is_refused(host::refusal(__builtin_return_address(0))) ? nullptr : &plugin;
}

extern "C" void nixl_plugin_fini() {}
