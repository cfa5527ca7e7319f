"""Ranks of MPI exchange messages, collect, and access each other's windows, and check every byte.

    mpirun -n N python ranks.py [LIBRARY]

LIBRARY is the libfabric.so.1 that the process must have loaded, and the only one.
`cargo xtask mpi` has what it needs: wheels of MPICH and Open MPI with mpi4py, and our libfabric.so.1.
"""

import array
import faulthandler
import os
import sys

from mpi4py import MPI

LIMIT_S = 40
SIZES = [0, 1, 7, 64, 4_096, 20_000, 65_536, 300_001, 2 << 20]
ROUNDS = 20

COMM = MPI.COMM_WORLD
RANK, RANKS = COMM.rank, COMM.size
RIGHT, LEFT = (RANK + 1) % RANKS, (RANK - 1) % RANKS


def check(what, found, wanted):
    if found != wanted:
        raise AssertionError(f"rank {RANK}: {what}: {found!r}, not {wanted!r}"[:500])


def pattern(rank, size, salt=0):
    return bytes((rank * 31 + salt * 7 + at) % 251 for at in range(min(size, 251))) * (size // 251 + 1)


def point_to_point():
    for size in SIZES:
        ours, theirs = pattern(RANK, size)[:size], pattern(LEFT, size)[:size]
        room = bytearray(size)
        requests = [COMM.Irecv(room, LEFT, tag=size % 1000), COMM.Isend(ours, RIGHT, tag=size % 1000)]
        MPI.Request.Waitall(requests)
        check(f"{size} bytes", bytes(room), theirs)
        # Unexpected: sent before the receive is posted, and found by a probe.
        sent = COMM.Isend(ours, RIGHT, tag=5)
        COMM.Barrier()
        status = MPI.Status()
        message = COMM.Mprobe(MPI.ANY_SOURCE, MPI.ANY_TAG, status)
        check("probed", (status.Get_count(MPI.BYTE), status.source, status.tag), (size, LEFT, 5))
        message.Recv(room)
        check(f"{size} bytes, unexpected", bytes(room), theirs)
        sent.Wait()
    # Synchronous and ready sends, persistent requests, a cancelled receive.
    cancelled = COMM.Irecv(bytearray(1), LEFT, tag=999)
    cancelled.Cancel()
    cancelled.Wait()
    numbers, room = array.array("i", [RANK] * 100), array.array("i", [-1] * 100)
    out, come = COMM.Ssend_init(numbers, RIGHT, tag=1), COMM.Recv_init(room, LEFT, tag=1)
    for _ in range(ROUNDS):
        MPI.Prequest.Startall([come, out])
        MPI.Request.Waitall([come, out])
        check("a persistent request", room[99], LEFT)
    out.Free()
    come.Free()
    # Many at once, received in the opposite order of tags.
    requests = [COMM.Isend(array.array("i", [RANK, tag]), RIGHT, tag) for tag in range(200)]
    for tag in reversed(range(200)):
        pair = array.array("i", [0, 0])
        COMM.Recv(pair, LEFT, tag)
        check("by tag", list(pair), [LEFT, tag])
    MPI.Request.Waitall(requests)
    # A column of a matrix: strided on both sides.
    column = MPI.DOUBLE.Create_vector(200, 1, 50).Commit()
    matrix, other = array.array("d", [RANK] * 10_000), array.array("d", [-1] * 10_000)
    COMM.Sendrecv([matrix, 1, column], RIGHT, 3, [other, 1, column], LEFT, 3)
    check("a column", (other[0], other[1], other[50 * 199]), (LEFT, -1, LEFT))
    column.Free()


def collectives():
    for count in (1, 1_000, 100_000):
        ours, total = array.array("l", [RANK + 1]) * count, array.array("l", [0]) * count
        COMM.Allreduce(ours, total)
        check("allreduce", (total[0], total[-1]), (RANKS * (RANKS + 1) // 2,) * 2)
        room = array.array("l", [0]) * count * RANKS
        COMM.Allgather(ours, room)
        check("allgather", list(room[::count]), list(range(1, RANKS + 1)))
        spread = array.array("l", [value for to in range(RANKS) for value in [RANK * 100 + to] * count])
        COMM.Alltoall(spread, room)
        check("alltoall", list(room[::count]), [source * 100 + RANK for source in range(RANKS)])
        whole = array.array("l", [42 if RANK == 0 else 0]) * count
        COMM.Bcast(whole)
        check("bcast", whole[-1], 42)
        request = COMM.Iallreduce(ours, total, MPI.MAX)
        request.Wait()
        check("iallreduce", total[-1], RANKS)
        COMM.Scan(ours, total)
        check("scan", total[0], (RANK + 1) * (RANK + 2) // 2)
    check("objects", COMM.allgather({"rank": RANK}), [{"rank": rank} for rank in range(RANKS)])
    half = COMM.Split(RANK % 2, RANK)
    check("a part", half.allreduce(1), (RANKS + 1 - RANK % 2) // 2)
    half.Free()


def windows():
    count = 50_000
    for allocated in (True, False):
        if allocated:
            window = MPI.Win.Allocate(count * 8, 8, comm=COMM)
            memory = memoryview(window.tomemory()).cast("B").cast("q")
        else:
            memory = memoryview(array.array("q", [0]) * count)
            window = MPI.Win.Create(memory, 8, comm=COMM)
        for at in range(count):
            memory[at] = 0
        window.Fence()
        # MPI reads the origin's memory until the window is synchronized, so it needs a name.
        origin = array.array("q", range(RANK, RANK + count - 10))
        window.Put(origin, RIGHT, 10)
        window.Fence()
        check("put", (memory[9], memory[10], memory[count - 1]), (0, LEFT, LEFT + count - 11))
        room = array.array("q", [0]) * (count - 10)
        window.Get(room, RIGHT, 10)
        window.Fence()
        check("get", (room[0], room[-1]), (RANK, RANK + count - 11))
        ones = array.array("q", [1]) * 1_000
        window.Accumulate(ones, 0, 10, MPI.SUM)
        window.Fence()
        check("accumulate", (memory[10] - LEFT, memory[1_009] - LEFT - 999), (RANKS, RANKS) if RANK == 0 else (0, 0))
        window.Fence(MPI.MODE_NOSUCCEED)
        # Passive targets: a counter with fetch_and_op, a lock with compare_and_swap, and exclusive locks.
        got, one = array.array("q", [0]), array.array("q", [1])
        seen = []
        for _ in range(ROUNDS):
            window.Lock(0, MPI.LOCK_SHARED)
            window.Fetch_and_op(one, got, 0, 0, MPI.SUM)
            window.Unlock(0)
            seen.append(got[0])
        everything = sorted(value for part in COMM.allgather(seen) for value in part)
        check("fetch_and_op", everything, list(range(RANKS * ROUNDS)))
        for _ in range(ROUNDS):
            window.Lock(0, MPI.LOCK_EXCLUSIVE)
            window.Get(got, 0, 1)
            window.Flush(0)
            origin = array.array("q", [got[0] + 1])
            window.Put(origin, 0, 1)
            window.Unlock(0)
        COMM.Barrier()
        window.Lock_all()
        window.Get(got, 0, 1)
        window.Flush(0)
        check("exclusive locks", got[0], RANKS * ROUNDS)
        swapped = array.array("q", [-1])
        origin, zero = array.array("q", [RANK + 1]), array.array("q", [0])
        window.Compare_and_swap(origin, zero, swapped, RIGHT, 2)
        window.Flush(RIGHT)
        check("compare_and_swap", swapped[0], 0)
        # Operations with requests, and an atomic read.
        window.Rput(array.array("q", [RANK] * 5), RIGHT, 3).Wait()
        window.Flush(RIGHT)
        room = array.array("q", [0] * 5)
        window.Rget(room, RIGHT, 3).Wait()
        check("rget", list(room), [RANK] * 5)
        room = array.array("q", [0] * 5)
        window.Get_accumulate(zero, room, RIGHT, [3, 5, MPI.INT64_T], op=MPI.NO_OP)
        window.Flush(RIGHT)
        check("an atomic read", list(room), [RANK] * 5)
        window.Unlock_all()
        COMM.Barrier()
        # Post, start, complete, wait.
        group = COMM.Get_group()
        to, source = group.Incl([RIGHT]), group.Incl([LEFT])
        window.Post(source)
        window.Start(to)
        origin = array.array("q", [77 + RANK])
        window.Put(origin, RIGHT, 4)
        window.Complete()
        window.Wait()
        window.Lock(RANK)
        check("put under post", memory[4], 77 + LEFT)
        window.Unlock(RANK)
        for one_of in (to, source, group):
            one_of.Free()
        COMM.Barrier()
        del memory
        window.Free()


def dynamic_windows():
    window = MPI.Win.Create_dynamic(comm=COMM)
    memory = MPI.Alloc_mem(80_000)
    words = memoryview(memory).cast("B").cast("q")
    for at in range(10_000):
        words[at] = RANK
    window.Attach(memory)
    places = COMM.allgather(MPI.Get_address(memory))
    room = array.array("q", [-1]) * 5_000
    window.Lock_all()
    window.Get(room, RIGHT, places[RIGHT])
    window.Flush(RIGHT)
    check("get of a dynamic window", (room[0], room[-1]), (RIGHT, RIGHT))
    origin, fives = array.array("q", [1_000 + RANK]) * 5_000, array.array("q", [5]) * 10
    window.Put(origin, RIGHT, places[RIGHT] + 40_000)
    window.Accumulate(fives, RIGHT, places[RIGHT], MPI.SUM)
    window.Flush(RIGHT)
    window.Unlock_all()
    COMM.Barrier()
    window.Lock(RANK)
    check("a dynamic window", (words[0], words[9], words[10], words[5_000]), (RANK + 5, RANK + 5, RANK, 1_000 + LEFT))
    window.Unlock(RANK)
    COMM.Barrier()
    window.Detach(memory)
    del words
    window.Free()
    MPI.Free_mem(memory)


def library(wanted):
    with open("/proc/self/maps", encoding="utf-8") as lines:
        loaded = {os.path.realpath(line.split()[-1]) for line in lines if "/libfabric.so" in line}
    check("libfabric", loaded, {os.path.realpath(wanted)})


if __name__ == "__main__":
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)
    if sys.argv[1:]:
        library(sys.argv[1])
    for part in (point_to_point, collectives, windows, dynamic_windows):
        part()
        COMM.Barrier()
    faulthandler.cancel_dump_traceback_later()
    if RANK == 0:
        print(f"passed: {RANKS} ranks of {MPI.Get_library_version().splitlines()[0].strip()}")
