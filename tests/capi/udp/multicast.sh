#!/bin/sh
# One process sends to a multicast group and another receives, over the loopback of this network namespace:
#     multicast.sh SENDER RECEIVER ADDRESS PROGRAM...
# SENDER and RECEIVER are library folders; ADDRESS is the address of the receiver's endpoint.
set -eu
sender=$1 receiver=$2 address=$3
shift 3
ip link set lo up
ip route add 239.0.0.0/8 dev lo
LD_LIBRARY_PATH=$sender "$@" send 127.0.0.1 &
trap 'kill $!' EXIT
LD_LIBRARY_PATH=$receiver "$@" receive "$address"
