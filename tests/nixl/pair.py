"""Shared by the programs of two processes over NIXL: a link outside NIXL, and an agent that exposes its memory."""

import pickle
import socket

import numpy
from nixl_cu12._api import nixl_agent, nixl_agent_config

try:
    import ofi_nixl
except ImportError:
    ofi_nixl = None

# With this as its first argument, a program is the target; the second argument is its end of the link.
TARGET = "--target"


class Link:
    """Sends Python objects between the two processes, outside NIXL."""

    def __init__(self, sock):
        self.file = sock.makefile("rwb")
        self.sock = sock

    def tell(self, thing):
        pickle.dump(thing, self.file)
        self.file.flush()

    def hear(self):
        return pickle.load(self.file)

    def heard(self):
        """Whether the peer has sent an object that was not read yet."""
        try:
            return bool(self.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return False


class End:
    """One agent and the memory that it exposes to the other: an array, or a `device.DeviceMemory`."""

    def __init__(self, name, link, memory, backend, driven, **options):
        config = nixl_agent_config(backends=[], enable_prog_thread=driven == "thread")
        self.agent = nixl_agent(name, config)
        if ofi_nixl and backend == "LIBFABRIC":
            ofi_nixl.load_libfabric()
        self.agent.create_backend(backend, options)
        self.memory = memory
        is_host = isinstance(memory, numpy.ndarray)
        self.address, self.kind = (memory.ctypes.data, "DRAM") if is_host else (memory.address, "VRAM")
        whole = self.agent.get_reg_descs([(self.address, memory.nbytes, 0, "whole")], self.kind)
        self.agent.register_memory(whole, backends=[backend])
        self.meet(link)

    def meet(self, link):
        """Exchanges metadata with the agent at the other end of the link."""
        link.tell((self.agent.get_agent_metadata(), self.address))
        metadata, self.there = link.hear()
        peer = self.agent.add_remote_agent(metadata)
        self.peer = peer.decode() if isinstance(peer, bytes) else peer


def pattern(size, count):
    """The content of the blocks: neighbouring blocks differ at every offset."""
    at = numpy.arange(size * count, dtype=numpy.uint64)
    return ((at * 131 + at // size * 17 + 5) & 0xFF).astype(numpy.uint8)
