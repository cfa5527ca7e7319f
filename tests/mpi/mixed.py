"""Two ranks of MPI, one on C's libfabric and one on ours, exchange messages, collect, and access each other's windows.

    mpirun -n 2 python mixed.py FOLDER RANK

FOLDER has our libfabric.so.1, which rank RANK loads; the other one loads the copy of its wheel. `cargo xtask mpi` has
what it needs. C's tcp keeps no more than 64 tagged messages without receives, so there are fewer here than in ranks.py.
"""

import os
import sys

FOLDER, OURS = os.path.realpath(sys.argv[1]), sys.argv[2]
IS_OURS = (os.environ.get("PMI_RANK") or os.environ.get("OMPI_COMM_WORLD_RANK")) == OURS
if IS_OURS and os.environ.get("LD_LIBRARY_PATH") != FOLDER:
    # The loader reads it before the first instruction of a program.
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "LD_LIBRARY_PATH": FOLDER})

import array
import faulthandler

import ranks
from mpi4py import MPI

COMM, RANK, OTHER = ranks.COMM, ranks.RANK, ranks.RIGHT


def messages():
    for size in ranks.SIZES:
        ours, theirs = ranks.pattern(RANK, size)[:size], ranks.pattern(OTHER, size)[:size]
        for tag in range(5):
            room = bytearray(size)
            MPI.Request.Waitall([COMM.Irecv(room, OTHER, tag), COMM.Isend(ours, OTHER, tag)])
            ranks.check(f"{size} bytes", bytes(room), theirs)
        # One way, then the other, before the receive is posted.
        for sender in (0, 1):
            if RANK == sender:
                COMM.Ssend(ours, OTHER, tag=7)
            else:
                room = bytearray(size)
                COMM.Recv(room, OTHER, tag=7)
                ranks.check(f"{size} bytes, synchronous", bytes(room), theirs)
    # Received in the opposite order of tags.
    requests = [COMM.Isend(array.array("i", [RANK, tag]), OTHER, tag) for tag in range(30)]
    for tag in reversed(range(30)):
        pair = array.array("i", [0, 0])
        COMM.Recv(pair, OTHER, tag)
        ranks.check("by tag", list(pair), [OTHER, tag])
    MPI.Request.Waitall(requests)


if __name__ == "__main__":
    faulthandler.dump_traceback_later(ranks.LIMIT_S, exit=True)
    with open("/proc/self/maps", encoding="utf-8") as lines:
        loaded = {os.path.realpath(line.split()[-1]) for line in lines if "/libfabric.so" in line}
    on_ours = loaded == {os.path.join(FOLDER, "libfabric.so.1")}
    ranks.check("one libfabric, and whether it is ours", (len(loaded), on_ours), (1, IS_OURS))
    for part in (messages, ranks.collectives, ranks.windows):
        part()
        COMM.Barrier()
    faulthandler.cancel_dump_traceback_later()
    if RANK == 0:
        print(f"passed: rank {OURS} of {MPI.Get_library_version().splitlines()[0].strip()} on our libfabric")
