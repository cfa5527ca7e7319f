/* libcuda.so.1 for a host without a GPU, so that NIXL's plug-in can be loaded. Every call reports that there is no device. */

enum { CUDA_ERROR_INVALID_VALUE = 1, CUDA_ERROR_NO_DEVICE = 100 };

int cuInit(unsigned flags) {
    (void)flags;
    return CUDA_ERROR_NO_DEVICE;
}

int cuCtxSetCurrent(void *context) {
    return context ? CUDA_ERROR_INVALID_VALUE : 0;
}

int cuDeviceGetPCIBusId(char *name, int len, int device) {
    (void)device;
    if (name && len > 0)
        name[0] = '\0';
    return CUDA_ERROR_NO_DEVICE;
}

/* Every address is host memory. */
int cuPointerGetAttributes(unsigned count, void *attributes, void **data, unsigned long long address) {
    (void)count, (void)attributes, (void)data, (void)address;
    return CUDA_ERROR_INVALID_VALUE;
}
