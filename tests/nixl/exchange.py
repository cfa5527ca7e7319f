"""Two processes exchange memory through a backend of NIXL's, and check every byte.

    exchange.py SIZE COUNT ROUNDS [BACKEND [thread|polls [OURS THEIRS]]]

The process that is started writes COUNT blocks of SIZE bytes to the other, ROUNDS times, and reads them back as often, with
a notification for each. The backend is LIBFABRIC if none is named, and has its progress thread, unless it is to be driven by
polls. OURS and THEIRS are the kinds of memory of the two, DRAM or VRAM: that of a CUDA device, or of the emulated one.
`cargo xtask nixl` has what it needs: the wheel, a stub of libcuda, and our libfabric.so.1 or libplugin_OFI.so.
"""

import signal
import socket
import subprocess
import sys
import time

import numpy
from device import DeviceMemory
from pair import TARGET, End, Link, pattern

ARGUMENTS = sys.argv[3:] if sys.argv[1] == TARGET else sys.argv[1:]
BACKEND = (ARGUMENTS[3:4] or ["LIBFABRIC"])[0]
DRIVEN = (ARGUMENTS[4:5] or ["thread"])[0]
OURS, THEIRS = ARGUMENTS[5:7] or ["DRAM", "DRAM"]
LIMIT_S = 50


def memory_of(kind, nbytes):
    return DeviceMemory(nbytes) if kind == "VRAM" else numpy.zeros(nbytes, dtype=numpy.uint8)


def fill(memory, array):
    if isinstance(memory, DeviceMemory):
        memory.fill(array)
    else:
        memory[:] = array


def contents(memory):
    return memory.contents() if isinstance(memory, DeviceMemory) else memory


def initiate(link, size, count, rounds):
    wanted = pattern(size, count)
    memory = memory_of(OURS, size * count)
    fill(memory, wanted)
    end = End("initiator", link, memory, BACKEND, DRIVEN)

    def blocks(base, kind):
        return end.agent.get_xfer_descs([(base + at * size, size, 0) for at in range(count)], kind)

    here, there = blocks(end.address, OURS), blocks(end.there, THEIRS)
    for way in ("WRITE", "READ"):
        if way == "READ":
            fill(memory, numpy.zeros(size * count, dtype=numpy.uint8))
        handle = end.agent.initialize_xfer(way, here, there, end.peer, way.encode(), backends=[BACKEND])
        for number in range(rounds):
            state = end.agent.transfer(handle)
            while state == "PROC":
                state = end.agent.check_xfer_state(handle)
            if state != "DONE":
                sys.exit(f"{way} {number} ended as {state}")
        end.agent.release_xfer_handle(handle)
    link.tell("done")
    notes, same = link.hear()
    problems = [] if same else ["the bytes that arrived differ from the written ones"]
    if not (contents(memory) == wanted).all():
        problems.append("the bytes that were read differ from the target's")
    if notes != {b"WRITE": rounds, b"READ": rounds}:
        problems.append(f"{rounds} notifications of each kind were sent, and these arrived: {notes}")
    if problems:
        sys.exit("; ".join(problems))
    print(f"{count} blocks of {size} bytes, {rounds} rounds: every byte is right")


def serve(link, size, count, rounds):
    end = End("target", link, memory_of(THEIRS, size * count), BACKEND, DRIVEN)
    notes = {}
    said, patience = False, 0
    while not said or (sum(notes.values()) < 2 * rounds and time.monotonic() < patience):
        for all_of_one in end.agent.get_new_notifs().values():
            for note in all_of_one:
                notes[note] = notes.get(note, 0) + 1
        if not said and link.heard():
            said, patience = True, time.monotonic() + 5
    link.tell((notes, bool((contents(end.memory) == pattern(size, count)).all())))


def main():
    # A process that hangs is killed by the signal's default action, even inside NIXL.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(LIMIT_S)
    sizes = [int(text) for text in ARGUMENTS[:3]]
    if sys.argv[1] == TARGET:
        return serve(Link(socket.socket(fileno=int(sys.argv[2]))), *sizes)
    ours, theirs = socket.socketpair()
    number = str(theirs.fileno())
    target = subprocess.Popen(
        [sys.executable, __file__, TARGET, number, *ARGUMENTS], pass_fds=[theirs.fileno()]
    )
    theirs.close()
    initiate(Link(ours), *sizes)
    if target.wait() != 0:
        sys.exit(f"the target ended with {target.returncode}")


main()
