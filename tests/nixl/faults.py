"""What a program sees of NIXL when a transfer is cancelled, late, or loses its peer, and what NIXL's telemetry counts.

    faults.py CASE    cancel, deadline, death, absent or telemetry

Two processes on the backend OFI; the target is stopped or killed by signals. The initiator's calls are NIXL's alone, so
everything goes through NIXL's own interface. `cargo xtask nixl` runs every case, through shared memory and sockets.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nixl_cu12
import numpy
from pair import TARGET, End, Link, pattern

LIMIT_S = 50
SIZE, COUNT = 1 << 20, 16
# `shm` notices the death of a process of its host within a second, and `udp` within three.
NOTICED_S = 15
# A limit that a transfer keeps even on a busy machine, and a bound for silence that is over later.
TIMEOUT_S = 6
PATIENT = {"FI_UDP_PEER_TIMEOUT_MS": "40000"}


class Target:
    """The other process, which serves until it is killed."""

    def __init__(self):
        ours, theirs = socket.socketpair()
        number = str(theirs.fileno())
        self.process = subprocess.Popen(
            [sys.executable, __file__, TARGET, number], pass_fds=[theirs.fileno()]
        )
        theirs.close()
        self.link = Link(ours)

    def stop(self):
        """Stops every thread of it: nothing is answered from here on."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def resume(self):
        self.process.send_signal(signal.SIGCONT)

    def kill(self):
        self.process.kill()
        self.process.wait()


def serve(link):
    memory = pattern(SIZE, COUNT)
    end = End("target", link, memory, "OFI", "thread")
    while not link.heard():
        end.agent.get_new_notifs()


def initiator(target, **options):
    memory = numpy.zeros(SIZE * COUNT, dtype=numpy.uint8)
    return End("initiator", target.link, memory, "OFI", "thread", **options)


def request(end, way):
    def blocks(base):
        return end.agent.get_xfer_descs([(base + at * SIZE, SIZE, 0) for at in range(COUNT)], "DRAM")

    here, there = blocks(end.address), blocks(end.there)
    return end.agent.initialize_xfer(way, here, there, end.peer, b"note", backends=["OFI"])


def outcome(end, handle):
    """Posts a transfer. Returns its end, as DONE or the name of the error, and the seconds until then."""
    try:
        state = end.agent.transfer(handle)
    except Exception as error:
        return type(error).__name__, 0
    return ended(end, handle) if state == "PROC" else (state, 0)


def ended(end, handle):
    """The end of a posted transfer, and the seconds until then."""
    began = time.monotonic()
    try:
        while (state := end.agent.check_xfer_state(handle)) == "PROC":
            pass
    except Exception as error:
        state = type(error).__name__
    return state, time.monotonic() - began


def expect(is_so, what):
    if not is_so:
        sys.exit(what)


def exchange(end):
    """A read that must bring the target's bytes, so that a session is open."""
    end.memory[:] = 0
    handle = request(end, "READ")
    state, _ = outcome(end, handle)
    expect(state == "DONE" and (end.memory == pattern(SIZE, COUNT)).all(), f"the first read ended as {state}")
    end.agent.release_xfer_handle(handle)


def cancel():
    """A handle that is released in flight is a cancellation: its memory is the program's again at once."""
    target = Target()
    end = initiator(target)
    exchange(end)
    wanted, states = pattern(SIZE, COUNT), []
    for way in ("READ", "WRITE"):
        target.stop()
        end.memory[:] = 7
        handle = request(end, way)
        states.append(end.agent.transfer(handle))
        end.agent.release_xfer_handle(handle)
        end.memory[:] = 77
        target.resume()
        time.sleep(1)
        if way == "READ":
            expect(states[-1] == "DONE" or (end.memory == 77).all(), "a cancelled read has written into its memory")
    # The write was in flight: the target answers none. What it took of it, it took before the release.
    expect(states[-1] == "PROC", f"the states were {states} when the transfers were released")
    handle = request(end, "READ")
    state, _ = outcome(end, handle)
    expect(state == "DONE", f"the agents do not go on: a read ended as {state}")
    late = (end.memory == 77) & (wanted != 77)
    expect(not late.any(), "a cancelled write has sent what came into its memory later")
    end.agent.release_xfer_handle(handle)
    target.kill()
    return f"the states of a read and a write were {states} when they were released"


def deadline():
    """A transfer that the target does not answer ends after `timeout_s`, and the target stays a peer."""
    os.environ |= PATIENT
    target = Target()
    end = initiator(target, timeout_s=str(TIMEOUT_S))
    exchange(end)
    target.stop()
    handle = request(end, "WRITE")
    state, seconds = outcome(end, handle)
    expect(state == "nixlBackendError", f"it ended as {state} after {seconds:.1f} s")
    is_in_time = TIMEOUT_S - 0.1 < seconds < TIMEOUT_S + NOTICED_S
    expect(is_in_time, f"it ended after {seconds:.1f} s, and the limit was {TIMEOUT_S} s")
    target.resume()
    state, _ = outcome(end, handle)
    expect(state == "DONE", f"the same transfer ended as {state} when the target answered again")
    end.agent.release_xfer_handle(handle)
    target.kill()
    return f"it failed after {seconds:.1f} s, and was done when the target answered again"


def death():
    """A transfer whose target dies fails long before `timeout_s`, and a new life of the target is a peer again."""
    target = Target()
    end = initiator(target)
    exchange(end)
    target.stop()
    handle = request(end, "WRITE")
    expect(end.agent.transfer(handle) == "PROC", "a write ended although its target was stopped")
    target.kill()
    state, seconds = ended(end, handle)
    expect(state == "nixlRemoteDisconnectError", f"it ended as {state} after {seconds:.1f} s")
    expect(seconds < NOTICED_S, f"a dead target was noticed after {seconds:.1f} s")
    end.agent.release_xfer_handle(handle)
    end.agent.remove_remote_agent(end.peer)
    target = Target()
    end.meet(target.link)
    exchange(end)
    target.kill()
    return f"{state} after {seconds:.1f} s, and a successor serves"


def absent():
    """A target that died before the first transfer is noticed too, long before `connect_timeout_s`."""
    target = Target()
    end = initiator(target)
    target.kill()
    state, seconds = outcome(end, request(end, "WRITE"))
    expect(state == "nixlRemoteDisconnectError", f"it ended as {state} after {seconds:.1f} s")
    expect(seconds < NOTICED_S, f"a dead target was noticed after {seconds:.1f} s")
    return f"{state} after {seconds:.1f} s"


def telemetry():
    """Times and bytes of a transfer as NIXL takes them around the backend's calls, and what its log file counts."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= PATIENT | {"NIXL_TELEMETRY_ENABLE": "y", "NIXL_TELEMETRY_DIR": folder}
        target = Target()
        end = initiator(target, timeout_s=str(TIMEOUT_S))
        handle, began = request(end, "WRITE"), time.monotonic()
        state, _ = outcome(end, handle)
        limit_us = (time.monotonic() - began) * 1e6
        expect(state == "DONE", f"the write ended as {state}")
        told = end.agent.get_xfer_telemetry(handle)
        expect(told.totalBytes == SIZE * COUNT, f"it counted {told.totalBytes} bytes of {SIZE * COUNT}")
        expect(0 < told.descCount <= COUNT, f"it counted {told.descCount} descriptors of {COUNT}")
        posted, whole = (told.postDuration, told.xferDuration)
        expect(0 <= posted <= whole <= limit_us, f"{posted} us to post and {whole} us of {limit_us:.0f} us")
        target.stop()
        state, _ = outcome(end, handle)
        expect(state == "nixlBackendError", f"a write past its deadline ended as {state}")
        end.agent.release_xfer_handle(handle)
        target.kill()
        counts = counted(os.path.join(folder, "initiator"))
    # NIXL does not count the other error, NIXL_ERR_REMOTE_DISCONNECT: it forgets the peer, and returns.
    wanted = {"agent_tx_bytes": SIZE * COUNT, "agent_err_backend": 1}
    expect(counts | wanted == counts, f"NIXL's file has {counts}")
    return f"{whole} us, {posted} of them to post; {counts}"


def counted(file):
    """The sums of the events in a file of NIXL's telemetry, as its own reader prints them."""
    time.sleep(1)  # NIXL writes the file every 0.1 s.
    reader = Path(nixl_cu12.__file__).parent.parent / "nixl_cu12.scripts" / "telemetry_reader"
    libraries = Path(nixl_cu12.__file__).parent.parent / ".nixl_cu12.mesonpy.libs"
    reader.chmod(0o755)
    # It follows the file until it is interrupted.
    process = subprocess.Popen(
        [reader, file], env=os.environ | {"LD_LIBRARY_PATH": str(libraries)}, stdout=subprocess.PIPE, text=True
    )
    try:
        process.communicate(timeout=2)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    text, _ = process.communicate(timeout=5)
    counts = {}
    for name, value in re.findall(r"Event name: (\w+)\s+Value: (\d+)", text):
        counts[name] = counts.get(name, 0) + int(value)
    return counts


CASES = {case.__name__: case for case in (cancel, deadline, death, absent, telemetry)}


def main():
    # A process that hangs is killed by the signal's default action, even inside NIXL.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(LIMIT_S)
    if sys.argv[1] == TARGET:
        return serve(Link(socket.socket(fileno=int(sys.argv[2]))))
    print(f"{sys.argv[1]}: {CASES[sys.argv[1]]()}")


main()
