#!/usr/bin/env bash
# NIXL's UCX backend leaves out UCX's shared memory, unless it is told not to ask for the errors of peers.
#
# Seen with nixl-cu12 1.5.1 of PyPI (which brings UCX 1.23.0), x86-64: the backend's endpoints ask for
# UCP_ERR_HANDLING_MODE_PEER by default, which UCX's transports through mapped memory do not offer. So accesses of an
# agent within its own host are active messages over TCP's loopback, beside which only the kernel's copies between
# processes (cma) remain; and with UCX_TLS=sm,self the backend cannot be created at all (NIXL_ERR_BACKEND, the log says
# that the destination is unreachable). The backend's parameter ucx_error_handling_mode=none brings shared memory back.
# A good guess is that UCX picks shared memory within a host by itself, as in its own programs, and that UCX_TLS=sm,self
# enforces it.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv environment
environment/bin/pip install --quiet --disable-pip-version-check nixl-cu12==1.5.1 numpy
cat >backend.py <<'PYTHON'
import sys

from nixl_cu12._api import nixl_agent, nixl_agent_config

agent = nixl_agent("agent", nixl_agent_config(backends=[]))
try:
    agent.create_backend("UCX", dict(pair.split("=") for pair in sys.argv[1:]))
    print("created")
except Exception as error:
    print("refused:", error)
PYTHON

# One run: UCX's choice of a way for remote memory access, by transport, and what became of the backend.
run() {
    env UCX_LOG_LEVEL=info "$1" environment/bin/python backend.py "${@:2}" 2>&1 |
        sed -n 's/.* cfg#0 *rma\(_am\)\{0,1\}(\([a-z]*\)\/.*/accesses over \2/p; /^created$/p; /^refused: /p' |
        paste -sd,
}

{
    echo "by default: $(run UCX_TLS=all)"
    echo "UCX_TLS=sm,self: $(run UCX_TLS=sm,self)"
    echo "UCX_TLS=sm,self, ucx_error_handling_mode=none: $(run UCX_TLS=sm,self ucx_error_handling_mode=none)"
} >seen
cat seen

diff seen - <<'SEEN'
by default: accesses over tcp,created
UCX_TLS=sm,self: refused: NIXL_ERR_BACKEND
UCX_TLS=sm,self, ucx_error_handling_mode=none: accesses over self,created
SEEN
