"""Memory of a CUDA device, by the functions of libcuda.so.1 that crates/cuda-emulator has too."""

import ctypes

import numpy


class DeviceMemory:
    """Memory of the first device. The processor does not touch it: `fill` and `contents` copy."""

    def __init__(self, nbytes):
        self.nbytes = nbytes
        self.driver = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.stream, address = ctypes.c_void_p(), ctypes.c_uint64()
        self.call("cuInit", ctypes.c_uint(0))
        self.call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(0))
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxPushCurrent_v2", context)
        self.call("cuStreamCreate", ctypes.byref(self.stream), ctypes.c_uint(0))
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(nbytes))
        self.address = address.value

    def call(self, name, *arguments):
        result = getattr(self.driver, name)(*arguments)
        if result != 0:
            raise RuntimeError(f"{name} returned {result}: see CUresult in cuda.h")

    def copy(self, to, at):
        self.call("cuMemcpyAsync", ctypes.c_uint64(to), ctypes.c_uint64(at), ctypes.c_size_t(self.nbytes), self.stream)
        self.call("cuStreamSynchronize", self.stream)

    def fill(self, array):
        """Copies an array of that many bytes to the device."""
        self.copy(self.address, array.ctypes.data)

    def contents(self):
        """A copy of the memory."""
        array = numpy.zeros(self.nbytes, dtype=numpy.uint8)
        self.copy(array.ctypes.data, self.address)
        return array
