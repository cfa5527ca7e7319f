#!/usr/bin/env bash
# NIXL 1.5.1: an agent that loads a peer's newer metadata still takes what the peer has deregistered for registered.
#
# A good guess: get_agent_metadata describes all that an agent has registered now, so add_remote_agent with a newer one
# replaces what was known of that peer. A cache of registrations gives up a buffer, sends its metadata anew, and the
# others know. But the new description is only added to the old. check_remote_metadata goes on to answer True for a
# region that the peer no longer has, and initialize_xfer makes requests to it, whose memory may serve something else by
# then; an agent that meets the peer now sees neither. In a service that registers buffers as it goes, the set grows
# with each of them. Call remove_remote_agent before you load again, which ends the connection, or tell the end of a
# registration by other means.
#
# Versions: nixl-cu12 1.5.1 of PyPI (UCX backend), x86-64. (1.0.0 does the same.)
# Seen: the output below. The peer registers "kept" and "gone"; then deregisters "gone", and registers "new".
# This script needs python3 with venv, and PyPI. It fails if the outcome changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check nixl-cu12==1.5.1 numpy

cat >"$folder/reload.py" <<'PYTHON'
import numpy
from nixl_cu12._api import nixl_agent, nixl_agent_config

SIZE = 65536
regions = {name: numpy.zeros(SIZE, dtype=numpy.uint8) for name in ("kept", "gone", "new")}


def agent(name):
    return nixl_agent(name, nixl_agent_config(backends=["UCX"]))


def register(name):
    return peer.register_memory([(regions[name].ctypes.data, SIZE, 0, "")], "DRAM")


def transfers(reader, descriptors):
    local = reader.get_xfer_descs([(room.ctypes.data, SIZE, 0)], "DRAM")
    try:
        reader.release_xfer_handle(reader.initialize_xfer("READ", local, descriptors, "peer"))
        return True
    except Exception:
        return False


def tell(when, reader):
    known = []
    for name, region in regions.items():
        descriptors = reader.get_xfer_descs([(region.ctypes.data, SIZE, 0)], "DRAM")
        answer = reader.check_remote_metadata("peer", descriptors)
        if answer != transfers(reader, descriptors):
            name += " (a request differs)"
        if answer:
            known.append(name)
    print(f"{when}: {', '.join(known)}", flush=True)


peer, reader, later = agent("peer"), agent("reader"), agent("later")
room = numpy.zeros(SIZE, dtype=numpy.uint8)
for each in reader, later:
    each.register_memory([(room.ctypes.data, SIZE, 0, "")], "DRAM")

kept, gone = register("kept"), register("gone")
reader.add_remote_agent(peer.get_agent_metadata())
tell("loaded", reader)
peer.deregister_memory(gone)
new = register("new")
reader.add_remote_agent(peer.get_agent_metadata())
later.add_remote_agent(peer.get_agent_metadata())
tell("loaded again", reader)
tell("loaded by another, from the same metadata", later)
reader.remove_remote_agent("peer")
reader.add_remote_agent(peer.get_agent_metadata())
tell("removed and loaded", reader)
PYTHON

unset LD_LIBRARY_PATH "${!UCX_@}" "${!NIXL_@}"
timeout 120 "$folder/venv/bin/python" "$folder/reload.py" 2>"$folder/log" | grep -a "loaded" >"$folder/seen"
cat "$folder/seen"
diff - "$folder/seen" <<'WANTED'
loaded: kept, gone
loaded again: kept, gone, new
loaded by another, from the same metadata: kept, new
removed and loaded: kept, new
WANTED
