"""The backend OFI for NVIDIA's NIXL, and libfabric.so.1 with every transport.

NIXL finds the backend by itself: the wheel puts it into the plug-in folders of nixl-cu12 and nixl-cu13. `python -m
ofi_nixl` says whether it is there.
"""

import ctypes
import importlib.util
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_LIBFABRIC = "libfabric.so.1"
_PLUGIN = "libplugin_OFI.so"
_NIXL = ("nixl_cu12", "nixl_cu13")


def plugin_dir():
    """The folder for NIXL_PLUGIN_DIR, with a NIXL that is not one of these wheels."""
    return str(_HERE / "plugins")


def library_dir():
    """The folder of libfabric.so.1, for LD_LIBRARY_PATH."""
    return str(_HERE / "lib")


def load_libfabric():
    """Loads libfabric.so.1 into this process, for NIXL's own backend LIBFABRIC.

    Every library that asks for libfabric.so.1 afterwards gets this one. Raises RuntimeError if the process has another
    one already.
    """
    own = str(_HERE / "lib" / _LIBFABRIC)
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        mapped = {line.split(None, 5)[5].rstrip("\n") for line in maps if _LIBFABRIC in line}
    other = [path for path in mapped if not Path(path).exists() or not Path(path).samefile(own)]
    if other:
        raise RuntimeError(f"{other[0]} is loaded already: call load_libfabric() before NIXL creates a backend")
    ctypes.CDLL(own)


def installations():
    """The installed wheels of NIXL, each with its plug-in and whether that is there."""
    found = []
    for name in _NIXL:
        spec = importlib.util.find_spec(name)
        if spec and spec.origin:
            plugin = Path(spec.origin).parent.parent / f".{name}.mesonpy.libs" / "plugins" / _PLUGIN
            found.append((name, plugin, plugin.is_file()))
    return found
