/* Allocating in the order of a stream. Compiled twice; see stream_calls.c. */
#include "arena.h"
#include "pools.h"
#include "streams.h"

CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream) {
    CUresult code = stream_enter(hStream);
    if (code != CUDA_SUCCESS)
        return code;
    if (dptr == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return arena_allocate(bytesize ? bytesize : 1, MEMORY_DEVICE, dptr);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool,
                                 CUstream hStream) {
    if (!pool_is_valid(pool))
        return CUDA_ERROR_INVALID_VALUE;
    return cuMemAllocAsync(dptr, bytesize, hStream);
}

CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream) {
    CUresult code = stream_enter(hStream);
    if (code != CUDA_SUCCESS || dptr == 0)
        return code;
    return pool_free_later(dptr);
}

/* Memory that is used from both sides is in one place. */
CUresult cuMemPrefetchAsync(CUdeviceptr devPtr, size_t count, CUmemLocation location,
                            unsigned int flags, CUstream hStream) {
    (void)location, (void)flags;
    CUresult code = stream_enter(hStream);
    if (code == CUDA_SUCCESS && !arena_host(devPtr, count))
        code = CUDA_ERROR_INVALID_VALUE;
    return code;
}
