/* Memory, and copies of all kinds. */
#include <string.h>

#include "runtime.h"

/* ---- allocation ---- */

cudaError_t cudaMalloc(void **made, size_t size) {
    if (made == NULL)
        return runtime_done(cudaErrorInvalidValue);
    if (size == 0) { /* unlike the driver, the runtime takes that */
        *made = NULL;
        return cudaSuccess;
    }
    WITH_CONTEXT(cuMemAlloc((CUdeviceptr *)made, size));
}

cudaError_t cudaMallocManaged(void **made, size_t size, unsigned int flags) {
    WITH_CONTEXT(cuMemAllocManaged((CUdeviceptr *)made, size, flags));
}

cudaError_t cudaMallocPitch(void **made, size_t *pitch, size_t width, size_t height) {
    WITH_CONTEXT(cuMemAllocPitch((CUdeviceptr *)made, pitch, width, height, 4));
}

cudaError_t cudaMallocAsync(void **made, size_t size, cudaStream_t stream) {
    WITH_CONTEXT(cuMemAllocAsync((CUdeviceptr *)made, size, stream));
}

cudaError_t cudaFree(void *memory) {
    WITH_CONTEXT(memory ? cuMemFree((CUdeviceptr)memory) : CUDA_SUCCESS);
}

cudaError_t cudaFreeAsync(void *memory, cudaStream_t stream) {
    WITH_CONTEXT(cuMemFreeAsync((CUdeviceptr)memory, stream));
}

cudaError_t cudaMallocHost(void **made, size_t size) {
    WITH_CONTEXT(cuMemHostAlloc(made, size, 0));
}

cudaError_t cudaHostAlloc(void **made, size_t size, unsigned int flags) {
    WITH_CONTEXT(cuMemHostAlloc(made, size, flags));
}

cudaError_t cudaFreeHost(void *memory) {
    WITH_CONTEXT(memory ? cuMemFreeHost(memory) : CUDA_SUCCESS);
}

cudaError_t cudaHostRegister(void *memory, size_t size, unsigned int flags) {
    WITH_CONTEXT(cuMemHostRegister(memory, size, flags));
}

cudaError_t cudaHostUnregister(void *memory) {
    WITH_CONTEXT(cuMemHostUnregister(memory));
}

cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned int flags) {
    WITH_CONTEXT(cuMemHostGetDevicePointer((CUdeviceptr *)device, host, flags));
}

cudaError_t cudaHostGetFlags(unsigned int *flags, void *host) {
    WITH_CONTEXT(cuMemHostGetFlags(flags, host));
}

cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
    WITH_CONTEXT(cuMemGetInfo(free, total));
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *memory) {
    unsigned kind = 0;
    CUdeviceptr at = (CUdeviceptr)memory, device = 0;
    bool managed = false;
    CUresult code = runtime_enter();
    if (code != CUDA_SUCCESS)
        return runtime_done(code);
    memset(attributes, 0, sizeof *attributes);
    code = cuPointerGetAttribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at);
    if (code != CUDA_SUCCESS) { /* memory that the driver does not know is no error here */
        attributes->device = cudaInvalidDeviceId;
        attributes->hostPointer = (void *)memory;
        return cudaSuccess;
    }
    cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, at);
    if (cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, at) == CUDA_SUCCESS)
        attributes->devicePointer = (void *)device;
    attributes->type = managed                       ? cudaMemoryTypeManaged
                       : kind == CU_MEMORYTYPE_HOST ? cudaMemoryTypeHost
                                                     : cudaMemoryTypeDevice;
    if (attributes->type != cudaMemoryTypeDevice)
        attributes->hostPointer = (void *)memory;
    return cudaSuccess;
}

/* ---- copies: the addresses say from where to where ---- */

cudaError_t cudaMemcpy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind) {
    if ((unsigned)kind > cudaMemcpyDefault)
        return runtime_done(cudaErrorInvalidMemcpyDirection);
    if (kind == cudaMemcpyHostToDevice)
        WITH_CONTEXT(cuMemcpyHtoD((CUdeviceptr)to, from, size));
    if (kind == cudaMemcpyDeviceToHost)
        WITH_CONTEXT(cuMemcpyDtoH(to, (CUdeviceptr)from, size));
    if (kind == cudaMemcpyDeviceToDevice)
        WITH_CONTEXT(cuMemcpyDtoD((CUdeviceptr)to, (CUdeviceptr)from, size));
    if (kind == cudaMemcpyHostToHost) {
        memmove(to, from, size);
        return cudaSuccess;
    }
    WITH_CONTEXT(cuMemcpy((CUdeviceptr)to, (CUdeviceptr)from, size));
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind,
                            cudaStream_t stream) {
    if ((unsigned)kind > cudaMemcpyDefault)
        return runtime_done(cudaErrorInvalidMemcpyDirection);
    if (kind == cudaMemcpyHostToDevice)
        WITH_CONTEXT(cuMemcpyHtoDAsync((CUdeviceptr)to, from, size, stream));
    if (kind == cudaMemcpyDeviceToHost)
        WITH_CONTEXT(cuMemcpyDtoHAsync(to, (CUdeviceptr)from, size, stream));
    if (kind == cudaMemcpyDeviceToDevice)
        WITH_CONTEXT(cuMemcpyDtoDAsync((CUdeviceptr)to, (CUdeviceptr)from, size, stream));
    WITH_CONTEXT(cuMemcpyAsync((CUdeviceptr)to, (CUdeviceptr)from, size, stream));
}

static void set_from(CUDA_MEMCPY2D *copy, const void *from, size_t pitch, bool is_host,
                     bool is_known) {
    copy->srcMemoryType = !is_known ? CU_MEMORYTYPE_UNIFIED
                          : is_host ? CU_MEMORYTYPE_HOST
                                    : CU_MEMORYTYPE_DEVICE;
    copy->srcHost = from;
    copy->srcDevice = (CUdeviceptr)from;
    copy->srcPitch = pitch;
}

static void set_to(CUDA_MEMCPY2D *copy, void *to, size_t pitch, bool is_host, bool is_known) {
    copy->dstMemoryType = !is_known ? CU_MEMORYTYPE_UNIFIED
                          : is_host ? CU_MEMORYTYPE_HOST
                                    : CU_MEMORYTYPE_DEVICE;
    copy->dstHost = to;
    copy->dstDevice = (CUdeviceptr)to;
    copy->dstPitch = pitch;
}

static CUDA_MEMCPY2D rows(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                          size_t width, size_t height, enum cudaMemcpyKind kind) {
    CUDA_MEMCPY2D copy = {.WidthInBytes = width, .Height = height};
    bool is_known = kind != cudaMemcpyDefault;
    set_from(&copy, from, from_pitch,
             kind == cudaMemcpyHostToDevice || kind == cudaMemcpyHostToHost, is_known);
    set_to(&copy, to, to_pitch, kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyHostToHost,
           is_known);
    return copy;
}

cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                         size_t width, size_t height, enum cudaMemcpyKind kind) {
    CUDA_MEMCPY2D copy = rows(to, to_pitch, from, from_pitch, width, height, kind);
    WITH_CONTEXT(cuMemcpy2DUnaligned(&copy));
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t width, size_t height, enum cudaMemcpyKind kind,
                              cudaStream_t stream) {
    CUDA_MEMCPY2D copy = rows(to, to_pitch, from, from_pitch, width, height, kind);
    WITH_CONTEXT(cuMemcpy2DAsync(&copy, stream));
}

/* A range of a variable, with the size checked as NVIDIA's runtime does. */
static CUresult range_of(const void *symbol, size_t size, size_t offset, CUdeviceptr *at) {
    size_t all = 0;
    CUresult code = find_variable(symbol, at, &all);
    if (code == CUDA_SUCCESS && (offset > all || size > all - offset))
        code = CUDA_ERROR_INVALID_VALUE;
    *at += offset;
    return code;
}

cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *from, size_t size, size_t offset,
                               enum cudaMemcpyKind kind) {
    CUdeviceptr at = 0;
    CUresult code = range_of(symbol, size, offset, &at);
    return code ? runtime_done(code) : cudaMemcpy((void *)at, from, size, kind);
}

cudaError_t cudaMemcpyFromSymbol(void *to, const void *symbol, size_t size, size_t offset,
                                 enum cudaMemcpyKind kind) {
    CUdeviceptr at = 0;
    CUresult code = range_of(symbol, size, offset, &at);
    return code ? runtime_done(code) : cudaMemcpy(to, (const void *)at, size, kind);
}

cudaError_t cudaMemcpyToSymbolAsync(const void *symbol, const void *from, size_t size,
                                    size_t offset, enum cudaMemcpyKind kind, cudaStream_t stream) {
    CUdeviceptr at = 0;
    CUresult code = range_of(symbol, size, offset, &at);
    return code ? runtime_done(code) : cudaMemcpyAsync((void *)at, from, size, kind, stream);
}

cudaError_t cudaMemcpyFromSymbolAsync(void *to, const void *symbol, size_t size, size_t offset,
                                      enum cudaMemcpyKind kind, cudaStream_t stream) {
    CUdeviceptr at = 0;
    CUresult code = range_of(symbol, size, offset, &at);
    return code ? runtime_done(code) : cudaMemcpyAsync(to, (const void *)at, size, kind, stream);
}

cudaError_t cudaMemset(void *memory, int value, size_t size) {
    WITH_CONTEXT(cuMemsetD8((CUdeviceptr)memory, (unsigned char)value, size));
}

cudaError_t cudaMemsetAsync(void *memory, int value, size_t size, cudaStream_t stream) {
    WITH_CONTEXT(cuMemsetD8Async((CUdeviceptr)memory, (unsigned char)value, size, stream));
}

cudaError_t cudaMemset2D(void *memory, size_t pitch, int value, size_t width, size_t height) {
    WITH_CONTEXT(cuMemsetD2D8((CUdeviceptr)memory, pitch, (unsigned char)value, width, height));
}
