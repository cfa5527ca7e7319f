#!/bin/sh
# In the guest of `cargo xtask vm`: the same program on C libfabric's verbs provider and on ours, in both roles.
# interop.sh FOLDER ATOMICS: the folder of our libfabric.so.1, and the program built from tests/capi/verbs/atomics.c.
set -u
ours="env LD_LIBRARY_PATH=$1"
c=""
program="$2"
# By default C uses the first GID, a link-local one. Whether it routes from a device to itself is a matter of chance.
export FI_VERBS_GID_IDX=1
# Our reliable datagrams go over the device, too.
export FI_VERBS_SHARED_MEMORY=0

command -v fi_pingpong >/dev/null || {
    echo "NOT RUN: C libfabric beside ours, on verbs: fi_pingpong is not installed (apt-get install libfabric-bin)"
    exit 77
}
fi_info -p verbs -t FI_EP_DGRAM >/dev/null 2>&1 || {
    echo "NOT RUN: C libfabric beside ours, on verbs: this libfabric has no provider verbs"
    exit 77
}

failed=0
attempts=0
# unacknowledged STATUS OTHER OUTPUT: whether a program has failed only because its last message was not acknowledged.
# fi_pingpong shuts down as soon as it has the other end's last message. soft-RoCE reports a message before it
# acknowledges it, and acknowledges nothing once the queue pair is in error (rxe_resp.c, do_complete). So on a busy host
# an end may close before its device has acknowledged, and the other end cannot know that its message arrived.
unacknowledged() {
    [ "$1" -ne 0 ] && [ "$2" -eq 0 ] && grep -q "^bytes" "$3" && grep -q "Work Request Flushed" "$3"
}
# both WHAT SERVER-NAME CLIENT-NAME SERVER CLIENT: runs a server and its client, which check their data.
both() {
    attempts=$((attempts + 1))
    timeout 60 $4 >/tmp/server.out 2>&1 &
    server=$!
    for attempt in 1 2 3 4 5 6 7 8 9 10; do
        sleep 0.5
        # Until the server listens, the client cannot connect.
        timeout 60 $5 >/tmp/client.out 2>&1
        client=$?
        grep -qi "connection refused" /tmp/client.out || break
    done
    wait $server
    status=$?
    echo "$1: server $2 ended with $status, client $3 with $client"
    if [ $attempts -lt 3 ] && { unacknowledged $status $client /tmp/server.out ||
        unacknowledged $client $status /tmp/client.out; }; then
        echo "$1: the last message was not acknowledged, once more"
        both "$@"
        return
    fi
    attempts=0
    if [ $status -ne 0 ] || [ $client -ne 0 ]; then
        failed=1
        tail -n 5 /tmp/server.out /tmp/client.out
    fi
}
# pair TYPE SIZE SERVER-NAME SERVER CLIENT-NAME CLIENT: messages there and back.
pair() {
    arguments="-p verbs -e $1 -c -I 20 -S $2"
    both "$1, $2 bytes" "$3" "$5" "$4 fi_pingpong $arguments" "$6 fi_pingpong $arguments 10.77.0.1"
}
# atomics OWNER-NAME OWNER ACCESSING-NAME ACCESSING: atomic operations by the owner's device.
atomics() {
    both atomics "$1" "$3" "$2 $program own 10.77.0.1" "$4 $program access 10.77.0.1"
}

for size in 1 64 512 1024; do
    pair dgram $size C "$c" ours "$ours"
    pair dgram $size ours "$ours" C "$c"
done
for size in 64 4096 1048576; do
    pair msg $size C "$c" ours "$ours"
    pair msg $size ours "$ours" C "$c"
done
atomics C "$c" ours "$ours"
atomics ours "$ours" C "$c"
atomics ours "$ours" ours "$ours"
pair rdm 64 ours "$ours" ours "$ours"
pair rdm 1048576 ours "$ours" ours "$ours"

# offered INTERFACES WANTED: whether ours offers anything with FI_VERBS_IFACE (0), or nothing (1).
offered() {
    FI_VERBS_IFACE="$1" $ours fi_info -p verbs >/tmp/info.out 2>&1 && found=0 || found=1
    if [ $found -ne "$2" ]; then
        echo "FI_VERBS_IFACE=$1: wanted $2, found $found"
        tail -n 5 /tmp/info.out
        failed=1
    fi
}
# FI_VERBS_GID_IDX=1 is the device's IPv4 address; the last entry of the table is empty.
$ours fi_info -p verbs -t FI_EP_DGRAM >/tmp/info.out 2>&1 || { echo "FI_VERBS_GID_IDX=1: no interface is offered"; failed=1; }
FI_VERBS_GID_IDX=250 $ours fi_info -p verbs -t FI_EP_DGRAM >/tmp/info.out 2>&1 && { echo "FI_VERBS_GID_IDX=250: an interface is offered"; failed=1; }
# prefix MODE WANTED: the prefix of datagrams that ours reports to a program with this mode.
prefix() {
    $ours fi_info -p verbs -t FI_EP_DGRAM -m "$1" -v >/tmp/info.out 2>&1
    if ! grep -q "msg_prefix_size: $2\$" /tmp/info.out; then
        echo "mode $1: wanted a prefix of $2 bytes"
        tail -n 5 /tmp/info.out
        failed=1
    fi
}
prefix FI_MSG_PREFIX 40
prefix FI_CONTEXT 0
offered roce0 0
offered nosuch,roce 0
offered nosuch 1
exit $failed
