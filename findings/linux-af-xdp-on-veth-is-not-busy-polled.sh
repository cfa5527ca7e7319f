#!/usr/bin/env bash
# Linux: a busy-polling AF_XDP socket on veth polls nothing, so that packets wait for the timer which it should replace.
#
# The kernel's guide (Documentation/networking/af_xdp.rst) has a program set SO_PREFER_BUSY_POLL and SO_BUSY_POLL on its
# AF_XDP socket, and napi_defer_hard_irqs and gro_flush_timeout of the device: then the program's own calls poll the
# device, and the timer is a safety net. All of that succeeds on veth. But the socket learns whom to poll from the
# receive queue, which veth registers before its NAPI has a number: SO_INCOMING_NAPI_ID stays 0, no call polls, and
# packets wait for the timer. A UDP socket on the same device learns the number from the packets, and gets them at once.
#
# Versions: Linux 6.18.44, x86-64 (veth_enable_xdp in drivers/net/veth.c).
# Seen: the output below. This script needs root with CAP_BPF, python3 and iproute2. It fails if the outcome changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/see.py" <<'PYTHON'
import ctypes, mmap, os, socket, struct, time

BPF = {"x86_64": 321, "aarch64": 280}[os.uname().machine]
MAP_CREATE, MAP_UPDATE, PROG_LOAD, LINK_CREATE = 0, 2, 5, 28
XSKMAP, TYPE_XDP, ATTACH_XDP, NATIVE, PASS, REDIRECT_MAP = 17, 6, 37, 4, 2, 51
SOL_XDP, MMAP_OFFSETS, RX_RING, UMEM_REG, FILL_RING, COMPLETION_RING = 283, 1, 2, 4, 5, 6
BUSY_POLL, INCOMING_NAPI_ID, PREFER_BUSY_POLL = 46, 56, 69
FRAME, COUNT, TIMER = 2048, 64, 0.1
libc = ctypes.CDLL(None, use_errno=True)


def check(result):
    assert result >= 0, os.strerror(ctypes.get_errno())
    return result


def bpf(command, attributes):
    return check(libc.syscall(BPF, command, ctypes.create_string_buffer(attributes, 128), 128))


def instruction(code, to=0, source=0, offset=0, number=0):
    return struct.pack("<BBhi", code, to | source << 4, offset, number)


def busy_polling(sock):
    sock.setsockopt(socket.SOL_SOCKET, PREFER_BUSY_POLL, 1)
    sock.setsockopt(socket.SOL_SOCKET, BUSY_POLL, 50)
    return sock


def see(what, sock, arrived):
    """Sends one datagram after another, and tells how long the socket's calls do not see them."""
    times = []
    for number in range(1, 8):
        begin = time.monotonic()
        sender.send(b"x")
        while arrived() < number:
            pass
        times.append(time.monotonic() - begin)
    late = "wait for the timer" if sorted(times)[3] > TIMER / 4 else "come at once"
    has_id = "has" if sock.getsockopt(socket.SOL_SOCKET, INCOMING_NAPI_ID) > 0 else "has no"
    print(f"{what}: {has_id} NAPI to poll, packets {late}")


def enter(space):
    check(libc.setns(space, 0x40000000))


own = os.open("/proc/self/ns/net", os.O_RDONLY)
far = os.open(f"/proc/{os.environ['FAR']}/ns/net", os.O_RDONLY)
enter(far)
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sender.connect(("10.96.0.1", 4000))
enter(own)

# A program that gives packets to the socket of their queue, and passes them if there is none.
index = socket.if_nametoindex("near")
sockets = bpf(MAP_CREATE, struct.pack("<IIII", XSKMAP, 4, 4, 1))
code = instruction(0x61, 2, 1, 16) + instruction(0x18, 1, 1, 0, sockets) + instruction(0)  # r2 = queue, r1 = map
code += instruction(0xB7, 3, number=PASS) + instruction(0x85, number=REDIRECT_MAP) + instruction(0x95)
code = ctypes.create_string_buffer(code, 48)
license = ctypes.create_string_buffer(b"GPL")
pointers = ctypes.addressof(code), ctypes.addressof(license)
program = bpf(PROG_LOAD, struct.pack("<IIQQ", TYPE_XDP, 6, *pointers))
link = bpf(LINK_CREATE, struct.pack("<IIII", program, index, ATTACH_XDP, NATIVE))
for name, value in ("napi_defer_hard_irqs", 2), ("gro_flush_timeout", int(TIMER * 1e9)):
    with open(f"/sys/class/net/near/{name}", "w") as file:
        file.write(str(value))

udp = busy_polling(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
udp.bind(("10.96.0.1", 4000))
udp.setblocking(False)
count = 0


def received():
    global count
    try:
        count += len(udp.recv(16))
    except BlockingIOError:
        pass
    return count


see("UDP", udp, received)

xsk = socket.socket(44, socket.SOCK_RAW, 0)
memory = mmap.mmap(-1, FRAME * COUNT)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
xsk.setsockopt(SOL_XDP, UMEM_REG, struct.pack("<QQIIII", address, len(memory), FRAME, 0, 0, 0))
for ring in FILL_RING, COMPLETION_RING, RX_RING:
    xsk.setsockopt(SOL_XDP, ring, COUNT)
offsets = struct.unpack("<16Q", xsk.getsockopt(SOL_XDP, MMAP_OFFSETS, 128))
fill_producer, fill_entries, rx_producer = offsets[8], offsets[10], offsets[0]
fill = mmap.mmap(xsk.fileno(), fill_entries + 8 * COUNT, offset=0x100000000)
rx = mmap.mmap(xsk.fileno(), offsets[2] + 16 * COUNT)
fill[fill_entries : fill_entries + 8 * COUNT] = struct.pack(f"<{COUNT}Q", *range(0, FRAME * COUNT, FRAME))
fill[fill_producer : fill_producer + 4] = struct.pack("<I", COUNT)
busy_polling(xsk)
check(libc.bind(xsk.fileno(), struct.pack("<HHIII", 44, 2, index, 0, 0), 16))  # XDP_COPY
key, value = ctypes.c_uint32(0), ctypes.c_uint32(xsk.fileno())
pointers = ctypes.addressof(key), ctypes.addressof(value)
bpf(MAP_UPDATE, struct.pack("<I4xQQ", sockets, *pointers))


def redirected():
    libc.recv(xsk.fileno(), None, 0, socket.MSG_DONTWAIT)  # a poll, says the guide
    return struct.unpack("<I", rx[rx_producer : rx_producer + 4])[0]


see("AF_XDP", xsk, redirected)
PYTHON
cat >"$folder/join.sh" <<'SHELL'
mount -t sysfs sysfs /sys
unshare -n sleep 60 &
trap 'kill $!' EXIT
until [ "$(readlink /proc/$!/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.01; done
for space in self $!; do # no packets of its own
    nsenter --net=/proc/$space/ns/net sh -c 'echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6'
done
ip link add near type veth peer name far netns $!
ip address add 10.96.0.1/24 dev near
ip link set near up
nsenter -t $! -n sh -ec 'ip address add 10.96.0.2/24 dev far; ip link set far up'
nsenter -t $! -n ip neighbour replace 10.96.0.1 dev far nud permanent \
    lladdr "$(ip -o link show near | sed 's/.*ether \([0-9a-f:]*\).*/\1/')"
sleep 1
FAR=$! python3 "$(dirname "$0")/see.py"
SHELL
unshare -nm bash -eu "$folder/join.sh" >"$folder/seen"
cat "$folder/seen"
diff - "$folder/seen" <<'WANTED'
UDP: has NAPI to poll, packets come at once
AF_XDP: has no NAPI to poll, packets wait for the timer
WANTED
