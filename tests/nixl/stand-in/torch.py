"""What NIXL's own tests and examples use of PyTorch, which is gigabytes: tensors of host memory, on numpy."""

import numpy

float32 = numpy.float32
uint8 = numpy.uint8


class Tensor:
    """An array by the names that PyTorch gives its parts."""

    device = "cpu"

    def __init__(self, array):
        self.array = array
        self.shape = array.shape

    def __getitem__(self, at):
        return Tensor(self.array[at])

    def __setitem__(self, at, value):
        self.array[at] = value

    def __eq__(self, other):
        return Tensor(self.array == other)

    __hash__ = None

    def reshape(self, *shape):
        return Tensor(self.array.reshape(shape))

    def data_ptr(self):
        return self.array.ctypes.data

    def element_size(self):
        return self.array.itemsize

    def numel(self):
        return self.array.size

    def get_device(self):
        return -1

    def is_contiguous(self):
        return self.array.flags.c_contiguous


class cuda:
    """No device."""

    @staticmethod
    def device_count():
        return 0

    @staticmethod
    def is_available():
        return False


def ones(shape, dtype=float32):
    return Tensor(numpy.ones(shape, dtype))


def zeros(shape, dtype=float32):
    return Tensor(numpy.zeros(shape, dtype))


def zeros_like(tensor):
    return Tensor(numpy.zeros_like(tensor.array))


def arange(end):
    return Tensor(numpy.arange(end))


def transpose(tensor, first, second):
    return Tensor(numpy.swapaxes(tensor.array, first, second))


def allclose(one, other):
    return numpy.allclose(one.array, other.array)


def any(tensor):
    return bool(tensor.array.any())


def set_default_device(device):
    if device != "cpu":
        raise RuntimeError(f"the stand-in for PyTorch has no device {device}")
