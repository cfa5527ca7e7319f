"""Measures how fast two processes move memory through a NIXL backend.

    speed.py BACKEND thread|polls SIZExCOUNTxROUNDS ...

For each shape the started process writes COUNT blocks of SIZE bytes to the other, ROUNDS times, and reads them back as
often, with a notification for each transfer. The processes are pinned to the first two cores that they may use. Every
byte is checked. Prints a line for each shape and direction: the median and the best round, in GB/s. compare.py runs it
on several backends; `cargo xtask nixl --speed` sets up the wheel and the libraries.
"""

import os
import pathlib
import socket
import statistics
import subprocess
import sys
import time

import numpy

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tests" / "nixl"))
from pair import TARGET, End, Link, pattern  # noqa: E402

WARM = 2
LIMIT_S = 60


def shapes_of(texts):
    return [tuple(int(number) for number in text.split("x")) for text in texts]


def content(shapes):
    """The bytes of the longest shape."""
    return pattern(4096, max(size * count for size, count, _ in shapes) // 4096)


def initiate(link, backend, driven, shapes):
    wanted = content(shapes)
    end = End("initiator", link, wanted.copy(), backend, driven)
    for size, count, rounds in shapes:
        for way in ("WRITE", "READ"):
            if way == "READ":
                end.memory[: size * count] = 0
            speeds = measure(end, backend, way, size, count, rounds)
            middle, best = statistics.median(speeds), max(speeds)
            print(f"{way} {size} x {count}: median {middle:.3f} best {best:.3f}", flush=True)
        # What was read back was written before.
        if not (end.memory[: size * count] == wanted[: size * count]).all():
            sys.exit("the bytes are wrong")
    link.tell("done")
    if not link.hear():
        sys.exit("notifications are missing")


def measure(end, backend, way, size, count, rounds):
    def blocks(base):
        return end.agent.get_xfer_descs([(base + at * size, size, 0) for at in range(count)], "DRAM")

    here, there = blocks(end.memory.ctypes.data), blocks(end.there)
    agent, clock = end.agent, time.perf_counter
    handle = agent.initialize_xfer(way, here, there, end.peer, way.encode(), backends=[backend])
    speeds = []
    for _ in range(WARM + rounds):
        began = clock()
        state = agent.transfer(handle)
        while state == "PROC":
            state = agent.check_xfer_state(handle)
        took = clock() - began
        if state != "DONE":
            sys.exit(f"{way} ended as {state}")
        speeds.append(size * count / took / 1e9)
    agent.release_xfer_handle(handle)
    return speeds[WARM:]


def serve(link, backend, driven, shapes):
    end = End("target", link, numpy.ones(content(shapes).size, dtype=numpy.uint8), backend, driven)
    notes, wanted, turn = 0, sum(2 * (WARM + rounds) for _, _, rounds in shapes), 0
    began = time.monotonic()
    while time.monotonic() - began < LIMIT_S:
        notes += sum(len(all_of_one) for all_of_one in end.agent.get_new_notifs().values())
        turn += 1
        if turn % 64 == 0 and notes >= wanted and link.heard():
            break
    link.tell(notes == wanted)


def main():
    arguments = sys.argv[3:] if sys.argv[1] == TARGET else sys.argv[1:]
    backend, driven, shapes = *arguments[:2], shapes_of(arguments[2:])
    cores = sorted(os.sched_getaffinity(0))
    if sys.argv[1] == TARGET:
        return serve(Link(socket.socket(fileno=int(sys.argv[2]))), backend, driven, shapes)
    ours, theirs = socket.socketpair()
    command = ["taskset", "-c", str(cores[1 % len(cores)]), sys.executable, __file__, TARGET, str(theirs.fileno())]
    target = subprocess.Popen([*command, *arguments], pass_fds=[theirs.fileno()])
    theirs.close()
    os.sched_setaffinity(0, {cores[0]})
    try:
        initiate(Link(ours), backend, driven, shapes)
    finally:
        ours.close()
        try:
            target.wait(10)
        except subprocess.TimeoutExpired:
            target.kill()


main()
sys.stdout.flush()
os._exit(0)  # loaded libraries may crash during Python's shutdown
