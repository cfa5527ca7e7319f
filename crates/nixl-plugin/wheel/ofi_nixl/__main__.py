"""Prints where the backend is, and whether each installed NIXL finds it. Exits with 1 if one does not."""

import sys
from importlib.metadata import version

from ofi_nixl import installations, library_dir, plugin_dir


def main():
    print(f"ofi-nixl {version('ofi-nixl')}")
    print(f"libfabric.so.1 is in {library_dir()}")
    found = installations()
    if not found:
        print("no wheel of NIXL is installed (pip install nixl-cu12, or nixl-cu13);")
        print(f"a NIXL that was built from source finds the backend with NIXL_PLUGIN_DIR={plugin_dir()}")
    for name, plugin, is_there in found:
        print(f"{name}: {'finds' if is_there else 'does not find'} {plugin}")
    if not all(is_there for _, _, is_there in found):
        print(f"ofi-nixl and NIXL are in different folders: install both in one, or set NIXL_PLUGIN_DIR={plugin_dir()}")
        return 1
    return 0


sys.exit(main())
