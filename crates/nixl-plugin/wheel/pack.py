"""Packs a folder as a wheel for CPython 3 of any version, and prints the wheel's path.

    pack.py OUT VERSION TREE LICENSE...

TREE is what the wheel installs beside other packages. Its ELF files decide the platform: the newest symbol versions of
glibc and libstdc++ that they need. Times and order are fixed, so equal content gives equal wheels.
"""

import base64
import hashlib
import os
import platform
import re
import subprocess
import sys
import zipfile
from pathlib import Path

NAME = "ofi_nixl"
# For each version of manylinux, the newest symbols of libstdc++ that its systems have (PEP 600).
LIBSTDCXX = [(17, 19), (24, 21), (28, 24), (31, 28), (34, 29), (35, 30), (39, 33)]


def newest(text, library):
    """The newest minor version of this library's symbols, or 0."""
    return max((int(minor) for minor in re.findall(rf"Name: {library}\.(\d+)\b", text)), default=0)


def platform_of(tree):
    """The tag of the oldest platform that has the symbols which the ELF files need."""
    glibc, cxx = 17, 0
    for path in tree.rglob("*"):
        if path.is_file() and path.read_bytes()[:4] == b"\x7fELF":
            read = ["readelf", "--version-info", "--wide", str(path)]
            # In another language, readelf names its columns otherwise.
            english = os.environ | {"LC_ALL": "C"}
            text = subprocess.run(read, check=True, capture_output=True, text=True, env=english).stdout
            glibc, cxx = max(glibc, newest(text, "GLIBC_2")), max(cxx, newest(text, r"GLIBCXX_3\.4"))
    enough = [version for version, symbols in LIBSTDCXX if symbols >= cxx]
    if not enough:
        sys.exit(f"GLIBCXX_3.4.{cxx} is newer than any version of manylinux: build on an older system")
    return f"manylinux_2_{max(glibc, enough[0])}_{platform.machine()}"


def metadata(version, licenses):
    lines = [
        "Metadata-Version: 2.4",
        "Name: ofi-nixl",
        f"Version: {version}",
        "Summary: The backend OFI for NVIDIA's NIXL, with libfabric.so.1",
        "Home-page: https://github.com/ofi-rs/ofi",
        "License-Expression: MIT OR Apache-2.0",
        *(f"License-File: {path.name}" for path in licenses),
        "Requires-Python: >=3.10",
        "Description-Content-Type: text/markdown",
    ]
    return "\n".join(lines) + "\n\n" + (Path(__file__).parent / "README.md").read_text(encoding="utf-8")


def main(out, version, tree, *licenses):
    tree, licenses = Path(tree), [Path(path) for path in licenses]
    tag = f"py3-none-{platform_of(tree)}"
    info = f"{NAME}-{version}.dist-info"
    files = {str(path.relative_to(tree)): path.read_bytes() for path in sorted(tree.rglob("*")) if path.is_file()}
    files |= {f"{info}/licenses/{path.name}": path.read_bytes() for path in licenses}
    files[f"{info}/METADATA"] = metadata(version, licenses).encode()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: ofi\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    record = []
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record.append(f"{name},sha256={digest},{len(content)}")
    record.append(f"{info}/RECORD,,")
    files[f"{info}/RECORD"] = ("\n".join(record) + "\n").encode()
    wheel = Path(out) / f"{NAME}-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (0o100755 if content[:4] == b"\x7fELF" else 0o100644) << 16
            packed.writestr(entry, content, zipfile.ZIP_DEFLATED)
    print(wheel)


main(*sys.argv[1:])
