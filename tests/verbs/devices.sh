#!/bin/sh
# In the guest of `cargo xtask vm`: tests its soft-RoCE devices with rdma-core's programs. A failure here is not ours.
set -eu

for program in ibv_rc_pingpong rping; do
    command -v $program >/dev/null || {
        echo "NOT RUN: soft-RoCE's devices: $program is not installed (apt-get install ibverbs-utils rdmacm-utils)"
        exit 77
    }
done

# pair SERVER CLIENT: both must succeed.
pair() {
    timeout 60 sh -c "$1" &
    server=$!
    for attempt in 1 2 3 4 5 6 7 8 9 10; do
        sleep 0.5
        timeout 60 sh -c "$2" && break
        [ $attempt -lt 10 ]
    done
    wait $server
}

pair 'ibv_rc_pingpong -g 1 -d rxe0 -n 20' 'ibv_rc_pingpong -g 1 -d rxe0 -n 20 10.77.0.1'
pair 'ibv_rc_pingpong -g 1 -d rxe1 -n 20' 'ibv_rc_pingpong -g 1 -d rxe2 -n 20 10.78.0.1'
pair 'rping -s -a 10.77.0.1 -C 3 -p 7174' 'rping -c -a 10.77.0.1 -C 3 -p 7174'
pair 'rping -s -a fd77::1 -C 3 -p 7175' 'rping -c -a fd77::1 -C 3 -p 7175'
pair 'rping -s -a 10.78.0.2 -C 3 -p 7176' 'rping -c -a 10.78.0.2 -C 3 -p 7176'
echo "the devices work"
