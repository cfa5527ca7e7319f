#!/usr/bin/env bash
# io_uring takes no buffer that the process may only read, although the buffer is to be sent.
#
# Seen with Linux 6.18, x86-64: IORING_REGISTER_BUFFERS answers EFAULT for every mapping without PROT_WRITE, anonymous,
# shared or private, while write(2) sends from the same memory. The kernel pins all fixed buffers for writing, because
# the call does not say what they are for. A good guess is that a buffer for IORING_OP_SEND_ZC or WRITE_FIXED need only
# be readable. So a reader's mapping of a shared ring, or of a model's weights, cannot be a fixed buffer; a writable
# mapping of the same memfd can.
#
# This script needs python3 and leave to use io_uring. It fails if the outcome changes.
set -euo pipefail

seen=$(mktemp)
trap 'rm -f "$seen"' EXIT
python3 - >"$seen" <<'PYTHON'
import ctypes
import errno
import mmap
import os

LEN = 65536
SETUP, REGISTER = 425, 427  # the same on all architectures
REGISTER_BUFFERS, UNREGISTER_BUFFERS = 0, 1


class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]


libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
ring = libc.syscall(SETUP, 4, (ctypes.c_char * 120)())
assert ring >= 0, os.strerror(ctypes.get_errno())
memory = os.memfd_create("buffers")
os.write(memory, b"x" * LEN)
out, into = os.pipe()


def buffer(what, rights, flags, file):
    address = libc.mmap(None, LEN, rights, flags, file, 0)
    sent = libc.write(into, ctypes.c_void_p(address), 4096)
    os.read(out, 4096)
    refused = libc.syscall(REGISTER, ring, REGISTER_BUFFERS, ctypes.byref(Vector(address, LEN)), 1) != 0
    answer = errno.errorcode[ctypes.get_errno()] if refused else "registered"
    print(f"{what}: write(2) takes {sent} bytes, io_uring: {answer}")
    if not refused:
        libc.syscall(REGISTER, ring, UNREGISTER_BUFFERS, None, 0)


READ, BOTH = mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE
buffer("anonymous, writable", BOTH, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
buffer("anonymous, read-only", READ, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
buffer("memfd, shared, writable", BOTH, mmap.MAP_SHARED, memory)
buffer("memfd, shared, read-only", READ, mmap.MAP_SHARED, memory)
buffer("memfd, private, read-only", READ, mmap.MAP_PRIVATE, memory)
PYTHON
cat "$seen"

diff "$seen" - <<'SEEN'
anonymous, writable: write(2) takes 4096 bytes, io_uring: registered
anonymous, read-only: write(2) takes 4096 bytes, io_uring: EFAULT
memfd, shared, writable: write(2) takes 4096 bytes, io_uring: registered
memfd, shared, read-only: write(2) takes 4096 bytes, io_uring: EFAULT
memfd, private, read-only: write(2) takes 4096 bytes, io_uring: EFAULT
SEEN
