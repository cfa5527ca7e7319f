#!/bin/sh
# In the guest of `cargo xtask vm`: other programs share the device with ours. Neither disturbs the other.
# neighbours.sh FOLDER: the folder of our libfabric.so.1.
set -u
library=$1
export FI_VERBS_SHARED_MEMORY=0
stop=/tmp/neighbours.stop
failed=0

for program in ibv_rc_pingpong:ibverbs-utils rping:rdmacm-utils ib_write_bw:perftest fi_pingpong:libfabric-bin; do
    command -v "${program%:*}" >/dev/null || {
        echo "NOT RUN: other programs on our device: ${program%:*} is not installed (apt-get install ${program#*:})"
        exit 77
    }
done

# pair SERVER CLIENT: both must succeed. The client is retried until the server listens.
pair() {
    name=$(echo "$1" | tr -c 'a-z0-9\n' _)
    timeout 90 sh -c "$1" >"/tmp/$name.server" 2>&1 &
    server=$!
    client=1
    for attempt in 1 2 3 4 5 6 7 8 9 10; do
        sleep 0.5
        timeout 90 sh -c "$2" >"/tmp/$name.client" 2>&1
        client=$?
        [ $client -eq 0 ] && break
    done
    [ $client -eq 0 ] || kill $server 2>/dev/null
    wait $server
    server=$?
    [ $server -eq 0 ] && [ $client -eq 0 ] && return 0
    echo "server ended with $server, client with $client: $1"
    tail -n 8 "/tmp/$name.server" "/tmp/$name.client"
    return 1
}

# ours TYPE SIZE PORT: repeats rounds of our traffic with checked data until $stop exists. Writes the number of
# successful rounds, or "failed", to /tmp/ours.TYPE.
ours() {
    rounds=0
    program="LD_LIBRARY_PATH=$library fi_pingpong -p verbs -e $1 -c -I 50 -S $2"
    while [ ! -e $stop ]; do
        pair "$program -B $3" "$program -P $3 10.77.0.1" >&2 || { echo failed >"/tmp/ours.$1"; return; }
        rounds=$((rounds + 1))
        echo $rounds >"/tmp/ours.$1"
    done
}
rounds() { cat "/tmp/ours.$1" 2>/dev/null || echo 0; }

rm -f $stop /tmp/ours.*
ours rdm 65536 47601 &
reliable=$!
ours msg 65536 47701 &
connected=$!

# beside NAME SERVER CLIENT: runs a program beside our traffic. devices.sh runs the same ones alone.
beside() {
    pair "$2" "$3" && echo "$1: ended well, our rounds so far: $(rounds rdm) of rdm, $(rounds msg) of msg" || failed=1
}
beside ibv_rc_pingpong 'ibv_rc_pingpong -g 1 -d rxe0 -n 500 -c' 'ibv_rc_pingpong -g 1 -d rxe0 -n 500 -c 10.77.0.1'
beside rping 'rping -s -a 10.77.0.1 -C 50 -V -p 7174' 'rping -c -a 10.77.0.1 -C 50 -V -p 7174'
beside ib_write_bw 'ib_write_bw -F -d rxe0 -x 1 -n 100 -s 65536' 'ib_write_bw -F -d rxe0 -x 1 -n 100 -s 65536 10.77.0.1'
beside 'ib_write_bw by rdma_cm' 'ib_write_bw -F -R -n 100 -s 65536 -p 18600' 'ib_write_bw -F -R -n 100 -s 65536 -p 18600 10.77.0.1'
touch $stop
wait $reliable
wait $connected
for type in rdm msg; do
    case $(rounds $type) in
        failed | 0 | 1)
            echo "ours, $type: $(rounds $type)"
            failed=1
            ;;
        *) echo "ours, $type: $(rounds $type) rounds of 50 messages of 64 KiB each way, all right" ;;
    esac
done
exit $failed
