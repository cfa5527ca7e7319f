"""Measures how fast two processes move memory through a NIXL backend.

    speed.py BACKEND thread|polls SIZE COUNT ROUNDS

The started process writes COUNT blocks of SIZE bytes to the other, ROUNDS times, and reads them back as often, with a
notification for each. The processes are pinned to the first two cores that they may use. Every byte is checked at the
end. Prints a line for each direction: the median and the best round, in GB/s. compare.py runs it on several backends;
the wheel and the libraries are set up as by `cargo xtask nixl`.
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

WARM = 5
LIMIT_S = 60


def initiate(link, backend, driven, size, count, rounds):
    wanted = pattern(size, count)
    end = End("initiator", link, wanted.copy(), backend, driven)

    def blocks(base):
        return end.agent.get_xfer_descs([(base + at * size, size, 0) for at in range(count)], "DRAM")

    here, there = blocks(end.memory.ctypes.data), blocks(end.there)
    agent, clock = end.agent, time.perf_counter
    for way in ("WRITE", "READ"):
        if way == "READ":
            end.memory[:] = 0
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
        speeds = speeds[WARM:]
        middle, best = statistics.median(speeds), max(speeds)
        print(f"{way} {size} x {count}: median {middle:.2f} best {best:.2f}", flush=True)
    link.tell("done")
    if not link.hear() or not (end.memory == wanted).all():
        sys.exit("the bytes are wrong")


def serve(link, backend, driven, size, count, rounds):
    end = End("target", link, numpy.ones(size * count, dtype=numpy.uint8), backend, driven)
    notes, wanted, turn = 0, 2 * (WARM + rounds), 0
    began = time.monotonic()
    while time.monotonic() - began < LIMIT_S:
        notes += sum(len(all_of_one) for all_of_one in end.agent.get_new_notifs().values())
        turn += 1
        if turn % 64 == 0 and notes >= wanted and link.heard():
            break
    link.tell(notes == wanted and bool((end.memory == pattern(size, count)).all()))


def main():
    arguments = sys.argv[3:] if sys.argv[1] == TARGET else sys.argv[1:]
    sizes = [int(text) for text in arguments[2:5]]
    cores = sorted(os.sched_getaffinity(0))
    if sys.argv[1] == TARGET:
        return serve(Link(socket.socket(fileno=int(sys.argv[2]))), *arguments[:2], *sizes)
    ours, theirs = socket.socketpair()
    command = ["taskset", "-c", str(cores[1 % len(cores)]), sys.executable, __file__, TARGET, str(theirs.fileno())]
    target = subprocess.Popen([*command, *arguments], pass_fds=[theirs.fileno()])
    theirs.close()
    os.sched_setaffinity(0, {cores[0]})
    try:
        initiate(Link(ours), *arguments[:2], *sizes)
    finally:
        ours.close()
        try:
            target.wait(10)
        except subprocess.TimeoutExpired:
            target.kill()


main()
sys.stdout.flush()
os._exit(0)  # loaded libraries may crash during Python's shutdown
