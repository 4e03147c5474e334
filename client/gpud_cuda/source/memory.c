/* Allocating and freeing, and what programs ask about pointers. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "arena.h"
#include "contexts.h"
#include "lane.h"
#include "pinned.h"
#include "session.h"
#include "work.h"

static CUresult allocate(CUdeviceptr *address, size_t size, enum allocation_kind kind) {
    CUresult code = context_enter();
    if (code != CUDA_SUCCESS)
        return code;
    if (address == NULL || size == 0)
        return CUDA_ERROR_INVALID_VALUE;
    return arena_allocate(size, kind, address);
}

CUresult cuMemAlloc(CUdeviceptr *dptr, size_t bytesize) {
    return allocate(dptr, bytesize, MEMORY_DEVICE);
}

CUresult cuMemAllocPitch(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes, size_t Height,
                         unsigned int ElementSizeBytes) {
    enum { PITCH = 512 };
    if (pPitch == NULL || WidthInBytes == 0 || Height == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (ElementSizeBytes != 4 && ElementSizeBytes != 8 && ElementSizeBytes != 16)
        return CUDA_ERROR_INVALID_VALUE;
    if (WidthInBytes > SIZE_MAX - PITCH)
        return CUDA_ERROR_OUT_OF_MEMORY;
    size_t pitch = (WidthInBytes + PITCH - 1) / PITCH * PITCH;
    if (Height > SIZE_MAX / pitch)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult code = allocate(dptr, pitch * Height, MEMORY_DEVICE);
    if (code == CUDA_SUCCESS)
        *pPitch = pitch;
    return code;
}

CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags) {
    CUresult code = context_enter();
    if (code != CUDA_SUCCESS)
        return code;
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)
        return CUDA_ERROR_INVALID_VALUE;
    if (session_get()->device.is_copied)
        return CUDA_ERROR_NOT_SUPPORTED;
    code = allocate(dptr, bytesize, MEMORY_MANAGED);
    if (code == CUDA_SUCCESS && !arena_is_unified()) {
        arena_free(*dptr, MEMORY_MANAGED);
        code = CUDA_ERROR_NOT_SUPPORTED;
    }
    return code;
}

CUresult cuMemFree(CUdeviceptr dptr) {
    CUresult code = context_enter();
    if (code != CUDA_SUCCESS || dptr == 0)
        return code;
    work_wait(); /* what was launched before may use it */
    return arena_free(dptr, MEMORY_DEVICE);
}

CUresult cuMemGetInfo(size_t *free, size_t *total) {
    CUresult code = context_enter();
    if (code != CUDA_SUCCESS)
        return code;
    if (free == NULL || total == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t limit = arena_limit_bytes(), used = arena_used_bytes();
    *total = limit;
    *free = used < limit ? limit - used : 0;
    return CUDA_SUCCESS;
}

/* ---- memory of the host that the device reaches: it lies in the arena ---- */

static CUresult allocate_host(void **pp, size_t bytesize) {
    CUdeviceptr address;
    if (pp == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult code = allocate(&address, bytesize, MEMORY_HOST);
    if (code == CUDA_SUCCESS)
        *pp = arena_host(address, bytesize);
    return code;
}

CUresult cuMemAllocHost(void **pp, size_t bytesize) {
    return allocate_host(pp, bytesize);
}

CUresult cuMemHostAlloc(void **pp, size_t bytesize, unsigned int Flags) {
    const unsigned known = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP |
                           CU_MEMHOSTALLOC_WRITECOMBINED;
    if (Flags & ~known)
        return CUDA_ERROR_INVALID_VALUE;
    return allocate_host(pp, bytesize);
}

CUresult cuMemFreeHost(void *p) {
    CUresult code = context_enter();
    if (code != CUDA_SUCCESS || p == NULL)
        return code;
    work_wait();
    return arena_free(arena_device(p), MEMORY_HOST);
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr *pdptr, void *p, unsigned int Flags) {
    struct allocation found;
    CUresult code = context_enter();
    if (code != CUDA_SUCCESS)
        return code;
    CUdeviceptr address = arena_device(p);
    if (pdptr == NULL || Flags != 0 || address == 0 || !arena_find(address, &found))
        return CUDA_ERROR_INVALID_VALUE;
    *pdptr = address;
    return CUDA_SUCCESS;
}

CUresult cuMemHostGetFlags(unsigned int *pFlags, void *p) {
    struct allocation found;
    CUresult code = context_enter();
    if (code != CUDA_SUCCESS)
        return code;
    CUdeviceptr address = arena_device(p);
    if (pFlags == NULL || address == 0 || !arena_find(address, &found) || found.kind != MEMORY_HOST)
        return CUDA_ERROR_INVALID_VALUE;
    *pFlags = CU_MEMHOSTALLOC_DEVICEMAP;
    return CUDA_SUCCESS;
}

/* Memory of the program's own can be used for asynchronous copies then, not by kernels. */
CUresult cuMemHostRegister(void *p, size_t bytesize, unsigned int Flags) {
    CUresult code = context_enter();
    if (code != CUDA_SUCCESS)
        return code;
    if (p == NULL || bytesize == 0 || Flags & CU_MEMHOSTREGISTER_IOMEMORY)
        return CUDA_ERROR_INVALID_VALUE;
    return pinned_add(p, bytesize);
}

CUresult cuMemHostUnregister(void *p) {
    CUresult code = context_enter();
    if (code != CUDA_SUCCESS)
        return code;
    work_wait();
    return pinned_remove(p);
}

/* ---- pointers ---- */

CUresult cuMemGetAddressRange(CUdeviceptr *pbase, size_t *psize, CUdeviceptr dptr) {
    struct allocation found;
    CUresult code = context_enter();
    if (code != CUDA_SUCCESS)
        return code;
    if (!arena_find(dptr, &found))
        return CUDA_ERROR_NOT_FOUND;
    if (pbase != NULL)
        *pbase = found.address;
    if (psize != NULL)
        *psize = found.size;
    return CUDA_SUCCESS;
}

/* Writes an attribute of a pointer that lies in an allocation. */
static CUresult write_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr,
                                const struct allocation *found) {
    bool is_host = found->kind == MEMORY_HOST;
    switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *(CUcontext *)data = context_current();
        break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)data = is_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *(CUdeviceptr *)data = ptr;
        break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (found->kind == MEMORY_DEVICE)
            return CUDA_ERROR_INVALID_VALUE;
        *(void **)data = arena_host(ptr, 1);
        break;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *(bool *)data = attribute == CU_POINTER_ATTRIBUTE_MAPPED ||
                        (attribute == CU_POINTER_ATTRIBUTE_IS_MANAGED &&
                         found->kind == MEMORY_MANAGED);
        break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        *(unsigned long long *)data = found->number;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)data = 0;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *(CUdeviceptr *)data = found->address;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *(size_t *)data = found->size;
        break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        *(bool *)data = false;
        break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *(void **)data = NULL;
        break;
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr) {
    struct allocation found;
    CUresult code = context_enter();
    if (code != CUDA_SUCCESS)
        return code;
    if (data == NULL || !arena_find(ptr, &found))
        return CUDA_ERROR_INVALID_VALUE;
    return write_attribute(data, attribute, ptr, &found);
}

/* How many bytes an attribute has: what is unknown of a pointer that is not ours is cleared. */
static size_t attribute_bytes(CUpointer_attribute attribute) {
    switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        return sizeof(int);
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        return sizeof(bool);
    default:
        return sizeof(void *);
    }
}

CUresult cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute *attributes,
                                void **data, CUdeviceptr ptr) {
    struct allocation found;
    CUresult code = context_enter();
    if (code != CUDA_SUCCESS)
        return code;
    if (attributes == NULL || data == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    bool is_ours = arena_find(ptr, &found);
    for (unsigned i = 0; i < numAttributes; i++) {
        if (is_ours && write_attribute(data[i], attributes[i], ptr, &found) == CUDA_SUCCESS)
            continue;
        memset(data[i], 0, attribute_bytes(attributes[i]));
        if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
            *(int *)data[i] = -2; /* as the driver does for pointers that it does not know */
    }
    return CUDA_SUCCESS;
}

CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr ptr) {
    struct allocation found;
    CUresult code = context_enter();
    if (code != CUDA_SUCCESS)
        return code;
    bool known = attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS;
    return value != NULL && known && arena_find(ptr, &found) ? CUDA_SUCCESS
                                                             : CUDA_ERROR_INVALID_VALUE;
}
