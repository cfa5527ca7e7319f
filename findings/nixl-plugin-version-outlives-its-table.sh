#!/usr/bin/env bash
# NIXL's plug-in interface changed its binary layout and kept its version number.
#
# Seen with the wheels nixl-cu12 0.10.1 and 1.0.0 of PyPI, x86-64: `nixl_plugin_init` of their POSIX plug-ins returns a
# structure that begins with an interface version, 1 in both. Yet the table of virtual functions of the class that every
# plug-in derives from, nixlBackendEngine, has 0x108 bytes in 0.10.1 and 0xe8 in 1.0.0: four functions fewer. A good
# guess is that the loader's version check refuses a plug-in built for the other; it cannot, and calls go through the
# wrong slots. A plug-in that serves several releases has to find out by other means which host has loaded it.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

for version in 0.10.1 1.0.0; do
    python3 -m pip download --quiet --no-deps --only-binary :all: --python-version 3.11 --implementation cp \
        --platform manylinux_2_28_x86_64 --dest "wheel-$version" "nixl-cu12==$version"
    python3 -m zipfile -e wheel-"$version"/*.whl "$version"
    plugin=$version/.nixl_cu12.mesonpy.libs/plugins/libplugin_POSIX.so
    size=$(nm -SC "$plugin" | awk '/vtable for nixlBackendEngine$/ { sub(/^0+/, "", $2); print $2 }')
    libraries=$version/.nixl_cu12.mesonpy.libs:$version/nixl_cu12.libs
    states=$(LD_LIBRARY_PATH=$libraries python3 - "$plugin" <<'PYTHON'
import ctypes, sys
init = ctypes.CDLL(sys.argv[1]).nixl_plugin_init
init.restype = ctypes.POINTER(ctypes.c_int)
print(init()[0])
PYTHON
)
    echo "nixl-cu12 $version: states plug-in interface $states; virtual table of nixlBackendEngine: 0x$size bytes"
done >seen
cat seen

diff seen - <<'SEEN'
nixl-cu12 0.10.1: states plug-in interface 1; virtual table of nixlBackendEngine: 0x108 bytes
nixl-cu12 1.0.0: states plug-in interface 1; virtual table of nixlBackendEngine: 0xe8 bytes
SEEN
