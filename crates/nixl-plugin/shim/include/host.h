/* Whether the program that loads the plug-in has the interface of nixl_backend.h. NIXL states API version 1 since 0.7,
 * but its virtual table changed in 1.0, so the number alone does not tell. */
#pragma once
#include <cstring>
#include <dlfcn.h>
#include <string>

#include "nixl_backend.h"

namespace host {

/* A function of NIXL's agent, which has it as long as its backends have four virtual functions for transfers that a GPU
 * starts. 1.0 replaced them by three, so all functions after them moved by a slot. */
constexpr const char *OF_0_X = "_ZNK9nixlAgent16getGpuSignalSizeERmPK21nixlAgentOptionalArgs";

/* Why the library of this address, which loads the plug-in, cannot have it. Empty: it can. */
inline std::string refusal(const void *caller) {
    Dl_info found{};
    if (!dladdr(caller, &found) || !found.dli_fname) {
        return {}; // not a library: nothing is known about it
    }
    void *library = dlopen(found.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    // A program by its name is no library: it is asked as a whole.
    void *asked = library ? library : dlopen(nullptr, RTLD_LAZY);
    if (!asked) {
        return {};
    }
    const bool is_old = dlsym(asked, OF_0_X) != nullptr;
    dlclose(asked);
    return is_old ? std::string("NIXL ") + found.dli_fname + " is older than 1.0, and its backends have other functions; "
                                                             "install NIXL 1.0 or newer (tested: 1.4.1, 1.5.1)"
                  : std::string();
}

/* Why the parameters of a backend of this name are not those of nixl_backend.h. Empty: they are. The words are looked
 * at before any is followed: the type is a short string, which lies in itself. */
inline std::string refusal(const nixlBackendInitParams *given, const char *name) {
    struct {
        uintptr_t data, len;
        char bytes[16];
    } type;
    uintptr_t params;
    unsigned char thread, telemetry;
    int sync;
    const char *at = reinterpret_cast<const char *>(given);
    if (!given) {
        return "NIXL passed no parameters; update NIXL or this plug-in";
    }
    std::memcpy(&type, at + offsetof(nixlBackendInitParams, type), sizeof type);
    std::memcpy(&params, at + offsetof(nixlBackendInitParams, customParams), sizeof params);
    std::memcpy(&thread, at + offsetof(nixlBackendInitParams, enableProgTh), sizeof thread);
    std::memcpy(&sync, at + offsetof(nixlBackendInitParams, syncMode), sizeof sync);
    std::memcpy(&telemetry, at + offsetof(nixlBackendInitParams, enableTelemetry_), sizeof telemetry);
    const uintptr_t own = reinterpret_cast<uintptr_t>(at) + offsetof(nixlBackendInitParams, type) + 16;
    const bool is_known = type.data == own && type.len == std::strlen(name) &&
                          std::memcmp(type.bytes, name, type.len) == 0 && params != 0 &&
                          params % alignof(nixl_b_params_t) == 0 && thread <= 1 && telemetry <= 1 && sync >= 0 && sync <= 2;
    return is_known ? std::string()
                    : std::string("NIXL's parameters of a backend are not laid out as in 1.0 to 1.5: this plug-in does not "
                                  "know this version of NIXL; update the plug-in, or install NIXL 1.4 or 1.5");
}

} // namespace host
