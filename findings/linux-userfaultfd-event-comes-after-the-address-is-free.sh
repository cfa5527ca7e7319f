#!/usr/bin/env bash
# Linux, userfaultfd(2): an address whose munmap still waits for its event to be read can already be mapped anew.
#
# A good guess, which caches of registrations in HPC libraries make: munmap of a watched range returns after its
# UFFD_EVENT_UNMAP was read, so whoever has read all queued events knows all memory that has gone. But the kernel queues
# the event after it has released its lock on the mappings. Another thread may get the address before, and what it maps
# there is not watched. While events are not read, UFFDIO_COPY fails with EAGAIN: the one way to know.
# (userfaultfd(2) documents UFFD_USER_MODE_ONLY for processes without privileges: such a descriptor reports events of
# memory that is registered for write protection, too.)
#
# Versions: Linux 6.1.0-57 (Debian 12) and 6.18.44, x86-64.
# Seen: the output below. This script needs python3 on x86-64, and userfaultfd that no seccomp filter forbids.
# It fails if the outcome changes.
set -eu
seen=$(mktemp)
trap 'rm -f "$seen"' EXIT
python3 - >"$seen" <<'PYTHON'
import ctypes, errno, os, struct, threading, time

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p] + [ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.ioctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p]
if os.getuid() == 0:
    os.setgid(65534), os.setuid(65534)
print("user is root:", os.getuid() == 0)

SIZE, ANONYMOUS, NOREPLACE = 1 << 20, 0x22, 0x100000
fd = libc.syscall(323, 0o2000000 | 0o4000 | 1)  # userfaultfd(O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY)
print("descriptor:", fd >= 0)

def ioctl(request, *words):
    buffer = ctypes.create_string_buffer(struct.pack(f"{len(words)}Q", *words))
    return 0 if libc.ioctl(fd, request, buffer) == 0 else ctypes.get_errno()

print("events of unmap, remap and remove:", ioctl(0xC018AA3F, 0xAA, 0x4D, 0) == 0)
base = libc.mmap(None, SIZE, 3, ANONYMOUS, -1, 0)
print("watched for write protection:", ioctl(0xC020AA00, base, SIZE, 2, 0) == 0)
ctypes.memset(base, 1, SIZE)
print("a copy while nothing changes:", errno.errorcode[ioctl(0xC028AA03, 0, 0, 0, 0, 0)])

waiting = threading.Thread(target=lambda: libc.munmap(base, SIZE))
waiting.start()
time.sleep(0.3)
print("munmap has returned:", not waiting.is_alive())
print("its address is mapped anew:", libc.mmap(base, SIZE, 3, ANONYMOUS | NOREPLACE, -1, 0) == base)
print("a copy meanwhile:", errno.errorcode[ioctl(0xC028AA03, 0, 0, 0, 0, 0)])
print("event:", hex(os.read(fd, 32)[0]))
waiting.join(10)
print("munmap has returned:", not waiting.is_alive())
PYTHON
cat "$seen"
diff - "$seen" <<'WANTED'
user is root: False
descriptor: True
events of unmap, remap and remove: True
watched for write protection: True
a copy while nothing changes: EINVAL
munmap has returned: False
its address is mapped anew: True
a copy meanwhile: EAGAIN
event: 0x16
munmap has returned: True
WANTED
