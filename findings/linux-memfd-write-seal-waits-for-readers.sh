#!/usr/bin/env bash
# Linux: a memfd cannot be sealed against writing while anybody maps it for reading, or while sent bytes are unread.
#
# A good guess, which fcntl(2) confirms: F_SEAL_WRITE fails with EBUSY where a writable, shared mapping exists. So a
# producer may unmap its buffer, pass it on, and seal it then or later, as readers do not matter. But a shared mapping
# with PROT_READ counts as well, if the descriptor that it was made with may write. And the kernel takes each reference
# to a page that is not a mapping's for somebody who may still write: that of bytes which sendfile has put into a
# socket, or splice into a pipe, and nobody has read. It waits 150 ms for their end, and answers EBUSY then. All that
# time, others who hold the memory can neither write (write(2) waits) nor map it for writing (EPERM, as if it were
# sealed, though it won't be). Seal before the first reader gets the memory, and pass on descriptors opened for reading.
#
# Versions: Linux 6.18.44, x86-64 (the wait is memfd_wait_for_pins in mm/memfd.c; since 3.17, then in mm/shmem.c);
# manpages-dev 6.03-2 of Debian bookworm.
# Seen: the output below. This script needs python3.10, and apt's lists of Debian bookworm. It fails if the outcome
# changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
apt-get -qq -o APT::Sandbox::User=root download manpages-dev=6.03-2
dpkg -x manpages-dev_*.deb .
zcat usr/share/man/man2/fcntl.2.gz | tr '\n' ' ' | grep -q "exists a writable, shared mapping on the file referred to"

cat >seal.py <<'PYTHON'
import errno, fcntl, os, socket, threading, time
from mmap import ACCESS_WRITE, MAP_SHARED, PROT_READ, mmap

SIZE, ADD_SEALS, SEAL_WRITE = 65536, 1033, 8


def memory():
    file = os.memfd_create("buffer", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(file, bytes(SIZE))
    return file


def seal(file):
    begin = time.monotonic()
    try:
        fcntl.fcntl(file, ADD_SEALS, SEAL_WRITE)
        return "sealed"
    except OSError as error:
        late = time.monotonic() - begin > 0.1
        return errno.errorcode[error.errno] + (" after more than 100 ms" if late else " at once")


def holders(file):
    """What another holder's map and write do while the seal waits."""
    sealing = threading.Thread(target=seal, args=[file])
    sealing.start()
    time.sleep(0.02)
    try:
        mmap(file, SIZE, access=ACCESS_WRITE).close()
        mapped = "mapped"
    except OSError as error:
        mapped = errno.errorcode[error.errno]
    begin = time.monotonic()
    os.pwrite(file, b"x", SIZE - 1)
    written = "more than 50 ms" if time.monotonic() - begin > 0.05 else "no time"
    sealing.join()
    return f"another maps it for writing: {mapped}, a write takes {written}"


file = memory()
reader = mmap(file, SIZE, MAP_SHARED, PROT_READ)
print(f"mapped for reading, by a descriptor for both: {seal(file)}")
reader.close()
reader = mmap(os.open(f"/proc/self/fd/{file}", os.O_RDONLY), SIZE, MAP_SHARED, PROT_READ)
print(f"mapped for reading, by a descriptor for reading: {seal(file)}")

near, far = socket.socketpair()
file = memory()
near.send(os.pread(file, 4096, 0))
print(f"copied into a socket: {seal(file)}")
far.recv(SIZE)

file = memory()
os.sendfile(near.fileno(), file, 0, 4096)
print(f"sent with sendfile, not received: {seal(file)}")
for attempt in range(20):  # a busy machine may let the wait pass by
    others = holders(file)
    if "EPERM" in others and "50" in others:
        break
print(f"meanwhile: {others}")
far.recv(SIZE)
print(f"received: {seal(file)}")

file = memory()
end, pipe = os.pipe()
os.splice(file, pipe, 4096, offset_src=0)
print(f"spliced into a pipe, not read: {seal(file)}")
os.read(end, SIZE)
print(f"read: {seal(file)}")
PYTHON
python3 seal.py >seen
cat seen
diff - seen <<'WANTED'
mapped for reading, by a descriptor for both: EBUSY at once
mapped for reading, by a descriptor for reading: sealed
copied into a socket: sealed
sent with sendfile, not received: EBUSY after more than 100 ms
meanwhile: another maps it for writing: EPERM, a write takes more than 50 ms
received: sealed
spliced into a pipe, not read: EBUSY after more than 100 ms
read: sealed
WANTED
