// A host of libplugin_OFI.so without NIXL: what the plug-in says to a host that it does not know, and to its log.
//
//     host PLUGIN serve|moved|refused [NAME=VALUE...]
//
// `serve` opens a backend with these options, registers memory and closes it; the status of `opened` or `not opened` is
// printed. `moved` creates one with parameters that lie elsewhere. `refused` expects that the plug-in does not load:
// compiled with -DOLD this program looks like NIXL 0.9. `cargo xtask nixl` runs it.
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <string>

#include "nixl_backend.h"

#ifdef OLD
extern "C" void _ZNK9nixlAgent16getGpuSignalSizeERmPK21nixlAgentOptionalArgs() {}
#endif

static void expect(bool is_so, const char *what) {
    if (!is_so) {
        std::fprintf(stderr, "host: %s\n", what);
        std::exit(1);
    }
}

static int serve(nixlBackendPlugin *plugin, nixlBackendInitParams &params) {
    static char memory[4096];
    nixlBackendEngine *engine = plugin->create_engine(&params);
    expect(engine, "no backend was created");
    // The host reads whether it failed at the place of the declaration.
    struct Reader : nixlBackendEngine {
        static bool failed(const nixlBackendEngine *engine) {
            return engine->*&Reader::initErr;
        }
    };
    const bool is_open = !Reader::failed(engine);
    if (is_open) {
        expect(engine->supportsRemote() && engine->supportsLocal() && engine->supportsNotif(), "it supports less");
        nixlBlobDesc range;
        range.addr = reinterpret_cast<uintptr_t>(memory);
        range.len = sizeof memory;
        range.devId = 0;
        nixlBackendMD *region = nullptr;
        std::string described;
        expect(engine->registerMem(range, DRAM_SEG, region) == NIXL_SUCCESS && region, "memory cannot be registered");
        expect(engine->getPublicData(region, described) == NIXL_SUCCESS && !described.empty(), "it has no description");
        void *view = nullptr;
        expect(engine->localView(nixl_meta_dlist_t{}, view, nullptr) == NIXL_ERR_NOT_SUPPORTED, "it has views");
        expect(engine->deregisterMem(region) == NIXL_SUCCESS, "memory cannot be deregistered");
        expect(engine->getConnInfo(described) == NIXL_SUCCESS && !described.empty(), "it has no address");
    }
    plugin->destroy_engine(engine);
    std::puts(is_open ? "opened" : "not opened");
    return 0;
}

int main(int count, char **args) {
    expect(count >= 3, "usage: host PLUGIN serve|moved|refused [NAME=VALUE...]");
    void *library = dlopen(args[1], RTLD_NOW);
    expect(library, "the plug-in cannot be loaded");
    auto init = reinterpret_cast<nixlBackendPlugin *(*)()>(dlsym(library, "nixl_plugin_init"));
    expect(init, "it has no nixl_plugin_init");
    nixlBackendPlugin *plugin = init();
    const std::string what = args[2];
    if (what == "refused") {
        expect(!plugin, "it serves a host that it does not know");
        return 0;
    }
    expect(plugin && plugin->api_version == 1 && std::string(plugin->get_plugin_name()) == "OFI", "it is another");
    nixl_b_params_t options = plugin->get_backend_options();
    expect(options.count("rails") == 1, "it has no option rails");
    for (int nth = 3; nth < count; ++nth) {
        const std::string pair = args[nth];
        const size_t at = pair.find('=');
        options[pair.substr(0, at)] = pair.substr(at + 1);
    }
    nixlBackendInitParams params{"host", "OFI", &options, false, 0, 0, false};
    if (what == "serve") {
        return serve(plugin, params);
    }
    // A field more in front of the others.
    struct {
        uint64_t field;
        nixlBackendInitParams params;
    } moved{1, params};
    expect(!plugin->create_engine(reinterpret_cast<nixlBackendInitParams *>(&moved)), "it takes moved parameters");
    expect(!plugin->create_engine(nullptr), "it takes no parameters");
    return 0;
}
