#!/bin/sh
# In the guest of `cargo xtask vm`: a second address and a VLAN on the interface of a device. C's fi_info lists the same
# addresses with our library as with C's, and a test uses every one of them.
# addresses.sh FOLDER TESTS: the folder of our libfabric.so.1, and the test program `verbs`.
set -u
ours="env LD_LIBRARY_PATH=$1"
tests="$2"
ip addr add 10.77.0.2/24 dev roce0
ip link add link roce0 name roce0.7 type vlan id 7
ip addr add 10.79.0.1/24 dev roce0.7
ip link set roce0.7 up
# A worker of the kernel enters addresses into the device's table.
for attempt in $(seq 100); do
    grep -q "0a4f:0001" /sys/class/infiniband/rxe0/ports/1/gids/* 2>/dev/null && break
    sleep 0.1
done
grep -q "0a4f:0001" /sys/class/infiniband/rxe0/ports/1/gids/* || {
    echo "the device has no entry for the VLAN's address"
    exit 1
}

failed=0
# listed COMMAND TYPE INTERFACE: domains and source addresses, but for link-local ones, which ours leaves out.
listed() {
    FI_VERBS_IFACE="$3" $1 fi_info -v -p verbs -t "$2" 2>/dev/null | awk '
        $1 == "src_addr:" { source = $2 }
        $1 == "fi_domain_attr:" { wanted = 1 }
        wanted && $1 == "name:" { print $2, source; wanted = 0 }' | grep -v "\[fe80:" | sort -u
}
command -v fi_info >/dev/null && fi_info -p verbs -t FI_EP_MSG >/dev/null 2>&1 || {
    echo "NOT RUN: addresses of devices beside C's: no fi_info with C's verbs (apt-get install libfabric-bin)"
    exit 77
}
for interface in roce0 roce0.7 wire0; do
    listed "" FI_EP_MSG $interface >/tmp/listed.c
    listed "$ours" FI_EP_MSG $interface >/tmp/listed.ours
    if cmp -s /tmp/listed.c /tmp/listed.ours && [ -s /tmp/listed.c ]; then
        echo "$interface: both list $(tr '\n' ';' </tmp/listed.c)"
    else
        failed=1
        echo "$interface: C lists"
        cat /tmp/listed.c
        echo "$interface: ours lists"
        cat /tmp/listed.ours
    fi
done
# Not the wire: between its ends, routes lead from each end to the other one alone.
FI_VERBS_IFACE=roce $tests --include-ignored listed:: || failed=1
exit $failed
