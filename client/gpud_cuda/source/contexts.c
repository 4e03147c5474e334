#include "contexts.h"

#include <pthread.h>
#include <stdlib.h>

#include "handles.h"
#include "lane.h"
#include "session.h"
#include "work.h"

enum { MOST_NESTED = 64 };

struct context {
    unsigned flags;
    unsigned long long id;
    bool is_primary;
};

static __thread struct {
    CUcontext contexts[MOST_NESTED];
    unsigned count;
} stack;

static struct {
    pthread_mutex_t lock;
    CUcontext handle;
    struct context context;
    unsigned users;
} primary = {.lock = PTHREAD_MUTEX_INITIALIZER, .context = {.id = 1, .is_primary = true}};

static unsigned long long last_id = 1; /* with the primary context's lock */

static struct context *find(CUcontext handle) {
    return handle_get(HANDLE_CONTEXT, handle);
}

CUcontext context_current(void) {
    return stack.count ? stack.contexts[stack.count - 1] : NULL;
}

CUresult context_enter(void) {
    CUresult code = session_check();
    if (code != CUDA_SUCCESS)
        return code;
    if (stack.count == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (find(context_current()) == NULL)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return lane_failure();
}

static bool is_device(CUdevice device) {
    return device == 0;
}

/* ---- the primary context ---- */

CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev) {
    CUresult code = session_check();
    if (code != CUDA_SUCCESS)
        return code;
    if (pctx == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&primary.lock);
    if (primary.handle == NULL)
        primary.handle = handle_new(HANDLE_CONTEXT, &primary.context);
    primary.users++;
    *pctx = primary.handle;
    pthread_mutex_unlock(&primary.lock);
    return CUDA_SUCCESS;
}

/* Its handle stays valid: whoever retains it again gets the same one, as with CUDA. */
CUresult cuDevicePrimaryCtxRelease(CUdevice dev) {
    CUresult code = session_check();
    if (code != CUDA_SUCCESS)
        return code;
    if (!is_device(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&primary.lock);
    code = primary.users > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
    if (primary.users > 0)
        primary.users--;
    pthread_mutex_unlock(&primary.lock);
    return code;
}

CUresult cuDevicePrimaryCtxReset(CUdevice dev) {
    CUresult code = session_check();
    if (code == CUDA_SUCCESS && !is_device(dev))
        code = CUDA_ERROR_INVALID_DEVICE;
    if (code == CUDA_SUCCESS)
        work_wait();
    return code;
}

CUresult cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned int flags) {
    CUresult code = session_check();
    if (code == CUDA_SUCCESS && !is_device(dev))
        code = CUDA_ERROR_INVALID_DEVICE;
    if (code == CUDA_SUCCESS)
        primary.context.flags = flags;
    return code;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active) {
    CUresult code = session_check();
    if (code != CUDA_SUCCESS)
        return code;
    if (!is_device(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    if (flags != NULL)
        *flags = primary.context.flags;
    if (active != NULL)
        *active = primary.users > 0;
    return CUDA_SUCCESS;
}

/* ---- other contexts ---- */

static CUresult create(CUcontext *pctx, unsigned flags, CUdevice dev) {
    CUresult code = session_check();
    if (code != CUDA_SUCCESS)
        return code;
    if (pctx == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    struct context *context = calloc(1, sizeof *context);
    if (context == NULL || stack.count == MOST_NESTED) {
        free(context);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    context->flags = flags;
    pthread_mutex_lock(&primary.lock);
    context->id = ++last_id;
    pthread_mutex_unlock(&primary.lock);
    *pctx = handle_new(HANDLE_CONTEXT, context);
    stack.contexts[stack.count++] = *pctx;
    return CUDA_SUCCESS;
}

CUresult cuCtxCreate(CUcontext *pctx, CUctxCreateParams *ctxCreateParams, unsigned int flags,
                     CUdevice dev) {
    if (ctxCreateParams != NULL && ctxCreateParams->numExecAffinityParams > 0)
        return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    return create(pctx, flags, dev);
}

EXPORTED CUresult cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *params, int count,
                                 unsigned int flags, CUdevice dev);
CUresult cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *params, int count,
                        unsigned int flags, CUdevice dev) {
    (void)params;
    return count > 0 ? CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY : create(pctx, flags, dev);
}

EXPORTED CUresult cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev);
CUresult cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev) {
    return create(pctx, flags, dev);
}

CUresult cuCtxDestroy(CUcontext ctx) {
    CUresult code = session_check();
    if (code != CUDA_SUCCESS)
        return code;
    const struct context *context = find(ctx);
    if (context == NULL || context->is_primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    work_wait();
    free(handle_take(HANDLE_CONTEXT, ctx));
    if (context_current() == ctx)
        stack.count--;
    return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext ctx) {
    CUresult code = session_check();
    if (code != CUDA_SUCCESS)
        return code;
    if (find(ctx) == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (stack.count == MOST_NESTED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    stack.contexts[stack.count++] = ctx;
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext *pctx) {
    CUresult code = session_check();
    if (code != CUDA_SUCCESS)
        return code;
    if (stack.count == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    CUcontext context = stack.contexts[--stack.count];
    if (pctx != NULL)
        *pctx = context;
    return CUDA_SUCCESS;
}

/* It replaces the top of the stack; NULL takes that away. */
CUresult cuCtxSetCurrent(CUcontext ctx) {
    CUresult code = session_check();
    if (code != CUDA_SUCCESS)
        return code;
    if (ctx != NULL && find(ctx) == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (stack.count > 0)
        stack.count--;
    if (ctx != NULL)
        stack.contexts[stack.count++] = ctx;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *pctx) {
    CUresult code = session_check();
    if (code == CUDA_SUCCESS && pctx == NULL)
        code = CUDA_ERROR_INVALID_VALUE;
    if (code == CUDA_SUCCESS)
        *pctx = context_current();
    return code;
}

/* ---- what is asked of a context ---- */

CUresult cuCtxGetDevice(CUdevice *device) {
    CUresult code = context_enter();
    if (code == CUDA_SUCCESS && device == NULL)
        code = CUDA_ERROR_INVALID_VALUE;
    if (code == CUDA_SUCCESS)
        *device = 0;
    return code;
}

CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext ctx) {
    if (ctx == NULL)
        return cuCtxGetDevice(device);
    if (find(ctx) == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (device == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *device = 0;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetId(CUcontext ctx, unsigned long long *ctxId) {
    CUresult code = session_check();
    if (code != CUDA_SUCCESS)
        return code;
    const struct context *context = find(ctx ? ctx : context_current());
    if (context == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (ctxId == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *ctxId = context->id;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetFlags(unsigned int *flags) {
    CUresult code = context_enter();
    if (code != CUDA_SUCCESS)
        return code;
    if (flags == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = find(context_current())->flags;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetFlags(unsigned int flags) {
    CUresult code = context_enter();
    if (code == CUDA_SUCCESS)
        find(context_current())->flags = flags;
    return code;
}

CUresult cuCtxGetApiVersion(CUcontext ctx, unsigned int *version) {
    if (find(ctx ? ctx : context_current()) == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (version == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *version = CUDA_VERSION;
    return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void) {
    CUresult code = context_enter();
    if (code != CUDA_SUCCESS)
        return code;
    work_wait();
    return lane_failure();
}

CUresult cuCtxSynchronize_v2(CUcontext ctx) {
    if (ctx != NULL && find(ctx) == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    work_wait();
    return lane_failure();
}

/* Of stacks and heaps of kernels, which gpud sizes itself. */
CUresult cuCtxGetLimit(size_t *pvalue, CUlimit limit) {
    static const size_t values[] = {
        [CU_LIMIT_STACK_SIZE] = 1024,
        [CU_LIMIT_PRINTF_FIFO_SIZE] = 1 << 20,
        [CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20,
    };
    CUresult code = context_enter();
    if (code != CUDA_SUCCESS)
        return code;
    if (pvalue == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if ((size_t)limit >= COUNT_OF(values))
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    *pvalue = values[limit];
    return CUDA_SUCCESS;
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
    (void)value;
    CUresult code = context_enter();
    if (code == CUDA_SUCCESS && limit > CU_LIMIT_MALLOC_HEAP_SIZE)
        code = CUDA_ERROR_UNSUPPORTED_LIMIT;
    return code;
}

CUresult cuCtxGetStreamPriorityRange(int *leastPriority, int *greatestPriority) {
    CUresult code = context_enter();
    if (leastPriority != NULL)
        *leastPriority = 0;
    if (greatestPriority != NULL)
        *greatestPriority = 0;
    return code;
}

CUresult cuCtxGetCacheConfig(CUfunc_cache *pconfig) {
    CUresult code = context_enter();
    if (pconfig != NULL)
        *pconfig = CU_FUNC_CACHE_PREFER_NONE;
    return code;
}

CUresult cuCtxSetCacheConfig(CUfunc_cache config) {
    (void)config;
    return context_enter();
}

CUresult cuCtxResetPersistingL2Cache(void) {
    return context_enter();
}
