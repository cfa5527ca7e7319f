#!/usr/bin/env bash
# Linux: process_vm_readv and process_vm_writev stop inside an element, where their manual says that they never do.
#
# A good guess, and a sentence of process_vm_readv(2): partial transfers happen at whole elements of the vectors, and a
# transfer that splits one is not made. So with one element the answer would be everything or EFAULT, and after a short
# answer the whole elements could be counted. But the kernel goes page by page: if a page of an element is not mapped,
# here or in the other process, all bytes before that page have been copied, and their number is returned. EFAULT comes
# only if not even the first page is there. So a write may leave a part of an element in the other process's memory, and
# whoever takes every answer that is not -1 for success loses the rest.
#
# Versions: Linux 6.18, x86-64; manpages-dev 6.03-2 of Debian bookworm (6.9.1-1 of trixie has the same sentence).
# Seen: one element that begins 96 bytes into a page and ends with the third page, of which the last or the first page
# is unmapped on one side:
#   readv, third page missing there: two pages less 96 bytes, copied
#   readv, third page missing here: two pages less 96 bytes, copied
#   writev, third page missing there: two pages less 96 bytes, copied
#   writev, third page missing here: two pages less 96 bytes, copied
#   readv, first page missing there: EFAULT
#   writev, first page missing here: EFAULT
# This script needs python3, leave to read a child process's memory, and apt's lists of Debian bookworm. It fails if the
# outcome changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
apt-get -qq -o APT::Sandbox::User=root download manpages-dev=6.03-2
dpkg -x manpages-dev_*.deb .
zcat usr/share/man/man2/process_vm_readv.2.gz | tr '\n' ' ' |
    grep -q "These system calls won't perform a partial transfer that splits a single"

cat >split.py <<'PYTHON'
import ctypes, errno, os, signal
from mmap import PAGESIZE

C = ctypes.CDLL(None, use_errno=True)
C.mmap.restype = ctypes.c_void_p
C.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
C.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
START, LENGTH = 96, 3 * PAGESIZE - 96


class Element(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def pages(byte):
    area = C.mmap(None, 3 * PAGESIZE, 3, 0x22, -1, 0)  # readable and writable, private and anonymous
    ctypes.memset(area, byte, 3 * PAGESIZE)
    return area


def transfer(name, missing, where):
    here, there = pages(1), pages(2)
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        if where == "there":
            C.munmap(there + missing * PAGESIZE, PAGESIZE)
        signal.alarm(60)
        os.write(tell, b"x")
        signal.pause()
    os.read(ready, 1)
    if where == "here":
        C.munmap(here + missing * PAGESIZE, PAGESIZE)
    call = getattr(C, "process_vm_" + name)
    call.restype = ctypes.c_ssize_t
    count = ctypes.c_ulong(1)
    local, remote = Element(here + START, LENGTH), Element(there + START, LENGTH)
    moved = call(child, ctypes.byref(local), count, ctypes.byref(remote), count, ctypes.c_ulong(0))
    outcome = errno.errorcode[ctypes.get_errno()] if moved < 0 else f"{moved} bytes"
    if moved == 2 * PAGESIZE - START:
        with open(f"/proc/{child}/mem", "rb") as memory:
            memory.seek(there + START)
            same = memory.read(moved) == ctypes.string_at(here + START, moved)
        outcome = f"two pages less {START} bytes, " + ("copied" if same else "not copied")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    print(f"{name}, {'third' if missing else 'first'} page missing {where}: {outcome}", flush=True)


for name in "readv", "writev":
    transfer(name, 2, "there")
    transfer(name, 2, "here")
transfer("readv", 0, "there")
transfer("writev", 0, "here")
PYTHON
python3 split.py >seen
cat seen
diff - seen <<'WANTED'
readv, third page missing there: two pages less 96 bytes, copied
readv, third page missing here: two pages less 96 bytes, copied
writev, third page missing there: two pages less 96 bytes, copied
writev, third page missing here: two pages less 96 bytes, copied
readv, first page missing there: EFAULT
writev, first page missing here: EFAULT
WANTED
