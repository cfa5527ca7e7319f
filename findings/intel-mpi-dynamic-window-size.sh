#!/usr/bin/env bash
# Intel MPI 2021.18: the size of a dynamic window is 0 over libfabric's tcp provider, and -1 over its shm.
#
# A good guess: MPI_WIN_SIZE of a window from MPI_Win_create_dynamic is 0, with any transport. The MPI standard says so
# (base MPI_BOTTOM, size 0), and MPICH 4.3.2 and 5.0.2 and Open MPI 5.0.11 do it. On Intel MPI it depends on the
# provider. A program that makes a buffer of the window's base and size (mpi4py's Win.tomemory) fails on shm alone.
#
# Versions: impi-rt 2021.18.1 and mpi4py 4.1.2 from PyPI; the libfabric is the one in the wheel.
# Seen (a line for each rank): tcp: base 0, size 0; shm: base 0, size -1.
# This script needs python3 with venv, and PyPI. It fails if the outcome changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
bin=$folder/venv/bin
"$bin/pip" install --quiet --disable-pip-version-check impi-rt==2021.18.1 mpi4py==4.1.2

cat >"$folder/size.py" <<'PYTHON'
from mpi4py import MPI

window = MPI.Win.Create_dynamic(comm=MPI.COMM_WORLD)
base, size = window.Get_attr(MPI.WIN_BASE), window.Get_attr(MPI.WIN_SIZE)
for turn in range(MPI.COMM_WORLD.size):
    if turn == MPI.COMM_WORLD.rank:
        print(f"base {base}, size {size}", flush=True)
    MPI.COMM_WORLD.Barrier()
window.Free()
PYTHON

unset LD_LIBRARY_PATH
export VIRTUAL_ENV=$folder/venv PATH=$bin:$PATH I_MPI_FABRICS=ofi
for provider in tcp shm; do
    FI_PROVIDER=$provider timeout 60 mpirun -n 2 python "$folder/size.py" | sed "s/^/$provider: /"
done >"$folder/seen"
cat "$folder/seen"
diff - "$folder/seen" <<'WANTED'
tcp: base 0, size 0
tcp: base 0, size 0
shm: base 0, size -1
shm: base 0, size -1
WANTED
