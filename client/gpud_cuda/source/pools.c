/* Memory pools: one, the default, with memory as from cuMemAlloc. */
#include <pthread.h>
#include <stdlib.h>

#include "arena.h"
#include "contexts.h"
#include "handles.h"
#include "pools.h"
#include "work.h"

struct pool {
    cuuint64_t threshold; /* how much it may keep; kept for the program only */
};

static struct pool default_pool;
static CUmemoryPool default_handle;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_default(void) {
    default_handle = handle_new(HANDLE_POOL, &default_pool);
}

static CUresult get_default(CUmemoryPool *pool, CUdevice device) {
    if (device != 0)
        return CUDA_ERROR_INVALID_DEVICE;
    if (pool == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_once(&once, make_default);
    *pool = default_handle;
    return CUDA_SUCCESS;
}

bool pool_is_valid(CUmemoryPool pool) {
    return handle_get(HANDLE_POOL, pool) != NULL;
}

/* ---- memory that is freed in the order of the other work ---- */

struct freeing {
    struct work work;
    CUdeviceptr address;
};

static void free_later(struct work *work) {
    struct freeing *freeing = (struct freeing *)work;
    work_wait_for_launches();
    arena_free(freeing->address, MEMORY_DEVICE);
    free(freeing);
}

CUresult pool_free_later(CUdeviceptr address) {
    struct allocation found;
    if (!arena_find(address, &found) || found.address != address || found.kind == MEMORY_HOST)
        return CUDA_ERROR_INVALID_VALUE;
    if (work_is_over())
        return arena_free(address, MEMORY_DEVICE);
    struct freeing *freeing = malloc(sizeof *freeing);
    if (freeing == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *freeing = (struct freeing){{free_later, NULL}, address};
    work_post(&freeing->work);
    return CUDA_SUCCESS;
}

/* ---- the calls ---- */

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool_out, CUdevice dev) {
    return get_default(pool_out, dev);
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev) {
    return get_default(pool, dev);
}

CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool) {
    if (dev != 0)
        return CUDA_ERROR_INVALID_DEVICE;
    return pool_is_valid(pool) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *poolProps) {
    CUresult code = context_enter();
    if (code != CUDA_SUCCESS)
        return code;
    if (pool == NULL || poolProps == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (poolProps->handleTypes != CU_MEM_HANDLE_TYPE_NONE)
        return CUDA_ERROR_NOT_SUPPORTED;
    struct pool *made = calloc(1, sizeof *made);
    *pool = made ? handle_new(HANDLE_POOL, made) : NULL;
    return *pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    if (pool == default_handle)
        return CUDA_ERROR_INVALID_VALUE;
    struct pool *found = handle_take(HANDLE_POOL, pool);
    free(found);
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep) {
    (void)minBytesToKeep;
    return pool_is_valid(pool) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value) {
    struct pool *found = handle_get(HANDLE_POOL, pool);
    if (found == NULL || value == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (attr == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
        found->threshold = *(cuuint64_t *)value;
    return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value) {
    const struct pool *found = handle_get(HANDLE_POOL, pool);
    if (found == NULL || value == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    switch ((int)attr) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        *(cuuint64_t *)value = found->threshold;
        break;
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        *(int *)value = 1;
        break;
    default: /* how much it has and had */
        *(cuuint64_t *)value = arena_used_bytes();
    }
    return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count) {
    (void)map, (void)count;
    return pool_is_valid(pool) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool memPool,
                            CUmemLocation *location) {
    (void)location;
    if (flags == NULL || !pool_is_valid(memPool))
        return CUDA_ERROR_INVALID_VALUE;
    *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return CUDA_SUCCESS;
}
