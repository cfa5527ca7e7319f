#!/bin/sh
# In the guest of `cargo xtask vm`: fi_write_demo and the examples over verbs, each within a time limit of its own.
# examples.sh FOLDER DEMO ARGUMENTS: the folder of the examples; fi_write_demo and its arguments.
#
# Left out are those whose one thread waits at one of two endpoints (hello, counters_and_triggers, shared_contexts):
# verbs makes progress where the application polls, and both ends of a new connection must be polled. So are
# async_connections, as connected endpoints of verbs have no FI_MULTI_RECV, and publish_subscribe, which listens at
# 127.0.0.1. The others get numbers with which they take a few seconds in emulation, where a message takes milliseconds.
set -u
folder=$1
shift
# Both ends are on one host.
export FI_VERBS_SHARED_MEMORY=0 FI_PROVIDER=verbs OFI_EXAMPLE_PROVIDER=verbs
failed=0

# runs NAME COMMAND: prints the name and the time, and the output if the command fails.
runs() {
    name=$1
    shift
    begin=$(date +%s)
    timeout 60 "$@" >/tmp/runs.out 2>&1
    status=$?
    echo "$name: ended with $status after $(($(date +%s) - begin)) s"
    if [ $status -ne 0 ]; then
        failed=1
        tail -n 20 /tmp/runs.out
    fi
}

# says PATTERN: some line of the last output matches it.
says() {
    grep -q -e "$1" /tmp/runs.out && return
    echo "$name: no line with $1"
    tail -n 20 /tmp/runs.out
    failed=1
}

runs fi_write_demo env FI_LOG_LEVEL=debug "$@"
says '<info>.*opened a domain.*rxe'
says '<info>.*a session has begun.*credits='
says '<debug>.*chose the protocol of short messages to a peer.*protocol=eager'
runs allreduce "$folder/allreduce"
runs atomic_counter "$folder/atomic_counter" 20
runs kv_store "$folder/kv_store" 2 20
runs many_peers "$folder/many_peers" 2 2
runs message_pingpong "$folder/message_pingpong" 2
runs rma_with_data "$folder/rma_with_data"
runs scalable_endpoint "$folder/scalable_endpoint"
runs serve_reads "$folder/serve_reads" verbs
runs tagged_matching "$folder/tagged_matching"
runs connections "$folder/connections"
exit $failed
