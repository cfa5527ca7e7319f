#!/bin/sh
# In the guest of `cargo xtask vm`: error messages name what a host lacks for provider verbs.
# refusals.sh INFO PINGPONG: our fi_info and fi_pingpong.
set -u
info=$1
pingpong=$2
export FI_PROVIDER=verbs FI_VERBS_SHARED_MEMORY=0
failed=0

# says WHAT PATTERN COMMAND: the command fails, and its output matches the pattern.
says() {
    what=$1
    pattern=$2
    shift 2
    timeout 60 "$@" >/tmp/says.out 2>&1
    status=$?
    if [ $status -eq 0 ] || [ $status -ge 124 ] || ! grep -q -e "$pattern" /tmp/says.out; then
        echo "$what: ended with $status, wanted: $pattern"
        cat /tmp/says.out
        failed=1
    else
        echo "$what: $(grep -o -e "$pattern.*" /tmp/says.out | head -n 1)"
    fi
}
# Runs a command as a user without privileges.
nobody="setpriv --reuid 65534 --regid 65534 --clear-groups --bounding-set -all --inh-caps -all"

says 'a GID index without a GID' 'wanted: 250' env FI_VERBS_GID_IDX=250 "$info" --explain -p verbs -t FI_EP_DGRAM
says 'a GID index that is not a number' 'it must be an index in /sys/class/infiniband' env FI_VERBS_GID_IDX=nine "$info" --explain -p verbs -t FI_EP_DGRAM
says 'a missing device' 'FI_VERBS_DEVICE_NAME="mlx5"' env FI_VERBS_DEVICE_NAME=mlx5 "$info" --explain -p verbs
chmod 600 /dev/infiniband/*
says 'no permission' 'may not open /dev/infiniband' $nobody "$info" --explain -p verbs
chmod 666 /dev/infiniband/*
cd /
# The client opens its endpoint only after it has connected to the server.
timeout 60 "$pingpong" -p verbs >/tmp/server.out 2>&1 &
server=$!
sleep 2
says 'a low limit of locked memory' 'ulimit -l' $nobody sh -c "ulimit -l 64; exec '$pingpong' -p verbs 10.77.0.1"
kill $server 2>/dev/null
wait $server
export FI_VERBS_IFACE=roce0
ip link set roce0 down
says 'a port that is down' 'whose port 1 is down' "$info" --explain -p verbs
ip link set roce0 up
ip addr flush dev roce0
says 'an interface without an address' 'wanted one whose interface has an IP address' "$info" --explain -p verbs
unset FI_VERBS_IFACE
for device in rxe0 rxe1 rxe2; do
    rdma link delete $device
done
says 'no device' 'the kernel knows no RDMA device' "$info" --explain -p verbs
exit $failed
