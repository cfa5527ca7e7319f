#!/bin/sh
# In the guest of `cargo xtask vm`: ranks of Open MPI over our verbs, through the device and with the default settings.
# mpi.sh FOLDER PROGRAM: the folder of our libfabric.so.1, and the ranks' program.
set -u
folder=$1
program=$2
# Open MPI assigns a host's devices to its ranks in turn. The guest's devices reach each other only by the addresses of
# the wire, so all ranks use the first one.
export LD_LIBRARY_PATH="$folder" FI_PROVIDER=verbs FI_VERBS_IFACE=roce0
counter=/sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts

failed=0
# ranks COUNT SHARED-MEMORY MIN MAX: all ranks succeed, and the device sends MIN to MAX packets.
ranks() {
    before=$(cat $counter)
    # osc pt2pt: one-sided accesses as messages. By default Open MPI uses its own shared memory within a host.
    FI_VERBS_SHARED_MEMORY=$2 timeout 240 mpirun --allow-run-as-root --oversubscribe -n "$1" --mca pml cm --mca mtl ofi \
        --mca mtl_ofi_provider_include verbs --mca osc pt2pt "$program" 2>/tmp/mpi.err
    status=$?
    sent=$(($(cat $counter) - before))
    echo "$1 ranks, FI_VERBS_SHARED_MEMORY=$2: ended with $status, $sent packets"
    if [ $status -ne 0 ] || [ $sent -lt "$3" ] || [ $sent -gt "$4" ]; then
        echo "wanted: 0, $3 to $4 packets"
        tail -n 20 /tmp/mpi.err
        failed=1
    fi
}
ranks 2 0 5000 1000000
ranks 4 0 10000 1000000
ranks 4 1 0 500
exit $failed
