"""Runs NIXL's own tests and examples in Python on another backend than UCX, which they name or take by default.

    theirs.py BACKEND SOURCES tests|basic|expanded|partial|partial-etcd

SOURCES is a checkout of NIXL. Its files are copied and the name of the backend replaced in the copies. They need
`pytest`, `pytest-timeout` and the package `nixl`; stand-in/torch.py takes PyTorch's place.
"""

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from xml.etree import ElementTree

BACKEND, SOURCES, CASE = sys.argv[1:]
LIMIT_S = 50
# How many of NIXL's tests pass at least. pytest is content if it skips all.
PASSED = {"OFI": 24, "LIBFABRIC": 21}
# The default of the Python interface, changed in front of each copy.
DEFAULT = (
    "import nixl._api as _api\n"
    "_api.nixl_agent_config.__init__.__defaults__ = tuple(\n"
    f"    ['{BACKEND}'] if value == ['UCX'] else value for value in _api.nixl_agent_config.__init__.__defaults__\n"
    ")\n"
)


def copy(folder, to):
    for file in (Path(SOURCES) / folder).glob("*.py"):
        text = file.read_text(encoding="utf-8").replace('"UCX"', f'"{BACKEND}"')
        # pytest reads conftest.py before the tests, and it may not have what the tests import.
        (to / file.name).write_text(text if file.name == "conftest.py" else DEFAULT + text, encoding="utf-8")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def is_open(port):
    """Whether a socket of this host listens on the port; a connection would be taken for a peer's."""
    wanted = f":{int(port):04X}"
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text(encoding="ascii").splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            if local.endswith(wanted) and state == "0A":
                return True
    return False


def start(work, *words):
    path = os.pathsep.join([str(Path(__file__).parent / "stand-in"), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.Popen([sys.executable, *words], cwd=work, env=environment)


def finish(processes):
    """Waits for all, and ends this program if one fails."""
    until = time.monotonic() + LIMIT_S
    try:
        statuses = [process.wait(until - time.monotonic()) for process in processes]
    finally:
        for process in processes:
            process.kill()
    if any(statuses):
        sys.exit(f"{CASE} ended with {statuses}")


def wait(process, is_ready):
    """Waits until a process is ready, and ends this program if it ends instead or takes too long."""
    until = time.monotonic() + LIMIT_S
    while not is_ready():
        if process.poll() is not None or time.monotonic() > until:
            process.kill()
            sys.exit(f"{process.args} is not ready: {process.wait()}")
        time.sleep(0.1)


def answers(url):
    """Whether a server of this host answers a request with success."""
    try:
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=5).close()
    except OSError:
        return False
    return True


def tests(work):
    files = ["test_nixl_api.py"]
    if BACKEND != "LIBFABRIC":
        # One thread drives both agents, and LIBFABRIC waits in one of them for the handshake of the other.
        files.append("test_nixl_bindings.py")
    told = work / "told.xml"
    words = ["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", f"--junit-xml={told}", "--backend", BACKEND]
    finish([start(work, *words, *files)])
    suites = list(ElementTree.parse(told).iter("testsuite"))
    ran, skipped = (sum(int(suite.get(count)) for suite in suites) for count in ("tests", "skipped"))
    if ran - skipped < PASSED[BACKEND]:
        sys.exit(f"{ran - skipped} tests passed of {ran}, and {PASSED[BACKEND]} should")


def pair(work, file):
    where = ["--ip", "127.0.0.1", "--port", free_port()]
    target = start(work, file, "--mode", "target", *where)
    # The initiator asks once.
    wait(target, lambda: is_open(where[-1]))
    finish([target, start(work, file, "--mode", "initiator", *where)])


def partial(work, *words):
    # Without etcd the example removes the variable, and fails if there is none.
    os.environ.setdefault("NIXL_ETCD_ENDPOINTS", "")
    finish([start(work, "partial_md_example.py", "--init-port", free_port(), "--target-port", free_port(), *words)])


def partial_etcd(work):
    client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    etcd = ["etcd", "--data-dir", str(work / "etcd"), "--log-level", "error", "--listen-client-urls", client]
    etcd += ["--advertise-client-urls", client, "--listen-peer-urls", peer]
    server = subprocess.Popen(etcd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        os.environ["NIXL_ETCD_ENDPOINTS"] = client
        wait(server, lambda: answers(f"{client}/health"))
        partial(work, "--etcd")
    finally:
        server.kill()
        server.wait()


def main():
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        copy("test/python" if CASE == "tests" else "examples/python", work)
        if CASE in ("basic", "expanded"):
            return pair(work, f"{CASE}_two_peers.py")
        {"tests": tests, "partial": partial, "partial-etcd": partial_etcd}[CASE](work)


main()
