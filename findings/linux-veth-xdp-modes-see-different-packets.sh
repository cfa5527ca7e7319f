#!/usr/bin/env bash
# Linux: over veth, generic XDP sees a train of UDP_SEGMENT as one packet longer than the MTU, and native XDP at one end
# takes segmentation offload from the other end.
#
# A good guess is that the two modes differ in speed only, that a program sees the packets of a wire, and that one which
# passes everything changes nothing else. But generic XDP runs before anybody has segmented what a local sender has
# sent: the program sees one packet, with 32 datagrams behind one UDP header. A check of lengths drops all of them, and
# so does an AF_XDP socket, whose frames have 2 or 4 KiB. Native XDP sees 32 packets, since the other end, in whatever
# namespace, is without the feature for as long as the program is attached: each datagram crosses alone.
#
# Versions: Linux 6.18.44, x86-64 (veth_xdp_set in drivers/net/veth.c, netif_receive_generic_xdp in net/core/dev.c).
# Seen: the output below. This script needs root with CAP_BPF, python3 and iproute2. It fails if the outcome changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/see.py" <<'PYTHON'
import ctypes, os, socket, struct, subprocess, time

LEN, COUNT = 1400, 32
BPF = {"x86_64": 321, "aarch64": 280}[os.uname().machine]
PROG_LOAD, LINK_CREATE, TYPE_XDP, ATTACH_XDP, GENERIC, NATIVE = 5, 28, 6, 37, 2, 4
UDP_SEGMENT = 103
libc = ctypes.CDLL(None, use_errno=True)


def bpf(command, attributes):
    fd = libc.syscall(BPF, command, ctypes.create_string_buffer(attributes, 128), 128)
    assert fd >= 0, os.strerror(ctypes.get_errno())
    return fd


def instruction(code, to=0, source=0, offset=0, number=0):
    return struct.pack("<BBhi", code, to | source << 4, offset, number)


def attach(device, mode):
    """Passes packets of up to 1,514 bytes, and drops longer ones."""
    code = instruction(0x61, 2, 1, 0) + instruction(0x61, 3, 1, 4)  # r2 = data, r3 = data_end
    code += instruction(0x1F, 3, 2) + instruction(0xB7, 0, number=1)  # r3 -= r2, r0 = XDP_DROP
    code += instruction(0x25, 3, 0, 1, 1514) + instruction(0xB7, 0, number=2)  # r0 = XDP_PASS, unless r3 > 1514
    code = ctypes.create_string_buffer(code + instruction(0x95), 56)
    license = ctypes.create_string_buffer(b"GPL")
    pointers = ctypes.addressof(code), ctypes.addressof(license)
    program = bpf(PROG_LOAD, struct.pack("<IIQQ", TYPE_XDP, 7, *pointers))
    return bpf(LINK_CREATE, struct.pack("<IIII", program, socket.if_nametoindex(device), ATTACH_XDP, mode))


def packets():
    text = subprocess.check_output(["ip", "-s", "-o", "link", "show", "near"], text=True)
    return int(text.split("TX:")[1].split("\\")[1].split()[1])


def see(what):
    before = packets()
    sender.send(bytes(LEN * COUNT))
    time.sleep(0.2)
    got = 0
    while True:
        try:
            got += len(receiver.recv(65536, socket.MSG_DONTWAIT)) // LEN
        except BlockingIOError:
            break
    print(f"{what}: packets that cross: {packets() - before}, datagrams that arrive: {got}")


def enter(space):
    assert libc.setns(space, 0x40000000) == 0


own = os.open("/proc/self/ns/net", os.O_RDONLY)
far = os.open(f"/proc/{os.environ['FAR']}/ns/net", os.O_RDONLY)
enter(far)
receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
receiver.bind(("10.96.0.2", 4000))
enter(own)
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sender.connect(("10.96.0.2", 4000))
sender.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, LEN)
see("no program")
for what, mode in ("generic", GENERIC), ("native", NATIVE):
    enter(far)
    link = attach("far", mode)
    enter(own)
    see(what)
    os.close(link)
    time.sleep(0.2)
see("no program")
PYTHON
cat >"$folder/join.sh" <<'SHELL'
unshare -n sleep 60 &
trap 'kill $!' EXIT
until [ "$(readlink /proc/$!/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.01; done
echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6 # whose own packets would be counted
ip link add near type veth peer name far netns $!
ip address add 10.96.0.1/24 dev near
ip link set near up
nsenter -t $! -n sh -ec 'ip address add 10.96.0.2/24 dev far; ip link set far up'
ip neighbour replace 10.96.0.2 dev near nud permanent \
    lladdr "$(nsenter -t $! -n ip -o link show far | sed 's/.*ether \([0-9a-f:]*\).*/\1/')"
sleep 1
FAR=$! python3 "$(dirname "$0")/see.py"
SHELL
unshare -n bash -eu "$folder/join.sh" >"$folder/seen"
cat "$folder/seen"
diff - "$folder/seen" <<'WANTED'
no program: packets that cross: 1, datagrams that arrive: 32
generic: packets that cross: 1, datagrams that arrive: 0
native: packets that cross: 32, datagrams that arrive: 32
no program: packets that cross: 1, datagrams that arrive: 32
WANTED
