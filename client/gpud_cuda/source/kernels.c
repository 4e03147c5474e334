/* What a kernel is, and how it runs with a block shape. */
#include <stdlib.h>
#include <string.h>

#include "contexts.h"
#include "handles.h"
#include "lane.h"
#include "modules.h"
#include "session.h"

struct kernel *kernel_get(const void *handle) {
    return handle_get(HANDLE_KERNEL, handle);
}

/* ---- sites ---- */

static CUresult measure(const struct kernel *kernel, struct site *site) {
    struct request request;
    struct writer frame = {0};
    request_open(&request);
    struct wire_measure message = {
        .request = request.number,
        .module = kernel->module->number,
        .kernel = kernel->index,
        .block = {site->block[0], site->block[1], site->block[2]},
        .shared = site->shared,
    };
    wire_write_measure(&frame, &message);
    connection_ask(&request, &frame);
    CUresult code = session_expect(kernel->name, &request.reply, WIRE_MEASURED);
    struct reader reader = reader_of(reply_bytes(&request.reply));
    struct wire_measured measured;
    if (code == CUDA_SUCCESS && !wire_read_measured(&reader, &measured))
        code = CUDA_ERROR_UNKNOWN;
    if (code == CUDA_SUCCESS) {
        site->occupancy = (uint32_t)measured.occupancy;
        site->form = report_form(measured.form);
        site->is_job = site->form == FORM_WHOLE || kernel->is_cooperative;
        site->is_measured = true;
    }
    reply_free(&request.reply);
    return code;
}

/* With its place pinned afterwards. */
static CUresult prepare(const struct kernel *kernel, struct site *site) {
    if (site->is_prepared && (site->is_job || sites_pin(&site->place)))
        return CUDA_SUCCESS;
    bool is_first = !site->is_prepared; /* else another kernel has got its place */
    CUresult code = lane_open();
    if (code == CUDA_SUCCESS && !site->is_job)
        code = sites_make(kernel->module->number, kernel->index, site->block, site->shared,
                          &site->place, &site->is_job);
    site->is_prepared = code == CUDA_SUCCESS;
    if (code == CUDA_SUCCESS && is_first)
        report_kernel(site->form);
    return code;
}

void kernel_release_site(const struct site *site) {
    if (!site->is_job)
        sites_unpin(&site->place);
}

/* With the kernel's lock. */
static struct site *find_site(struct kernel *kernel, const uint64_t block[3], uint64_t shared) {
    for (size_t i = 0; i < kernel->site_count; i++) {
        struct site *site = &kernel->sites[i];
        if (memcmp(site->block, block, sizeof site->block) == 0 && site->shared == shared)
            return site;
    }
    struct site *sites = realloc(kernel->sites, (kernel->site_count + 1) * sizeof *sites);
    if (sites == NULL)
        return NULL;
    kernel->sites = sites;
    struct site *site = &sites[kernel->site_count++];
    *site = (struct site){.block = {block[0], block[1], block[2]}, .shared = shared};
    return site;
}

CUresult kernel_site(struct kernel *kernel, const uint64_t block[3], uint64_t shared,
                     bool in_lane, struct site *found) {
    pthread_mutex_lock(&kernel->lock);
    struct site *site = find_site(kernel, block, shared);
    CUresult code = site ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    if (code == CUDA_SUCCESS && !site->is_measured)
        code = measure(kernel, site);
    if (code == CUDA_SUCCESS && in_lane)
        code = prepare(kernel, site);
    if (code == CUDA_SUCCESS)
        *found = *site;
    else if (site != NULL && !site->is_measured)
        kernel->site_count--; /* it is the last one */
    pthread_mutex_unlock(&kernel->lock);
    return code;
}

/* ---- attributes ---- */

static CUresult get_attribute(int *value, CUfunction_attribute attribute, const void *handle) {
    const struct kernel *kernel = kernel_get(handle);
    if (kernel == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (value == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    switch ((int)attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *value = kernel->max_threads ? (int)kernel->max_threads : 1024;
        break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
        *value = (int)kernel->shared_bytes;
        break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
        *value = 32; /* a CPU device has none to run out of */
        break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
        *value = (int)session_get()->device.capability;
        break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        *value = kernel->dynamic_shared_limit;
        break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        *value = -1;
        break;
    default:
        if ((int)attribute < 0 || attribute >= CU_FUNC_ATTRIBUTE_MAX)
            return CUDA_ERROR_INVALID_VALUE;
        *value = 0;
    }
    return CUDA_SUCCESS;
}

static CUresult set_attribute(const void *handle, CUfunction_attribute attribute, int value) {
    struct kernel *kernel = kernel_get(handle);
    if (kernel == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT)
        return CUDA_SUCCESS; /* a hint */
    if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
        return CUDA_ERROR_INVALID_VALUE;
    if (value < 0 || (uint32_t)value + kernel->shared_bytes > 99u << 10)
        return CUDA_ERROR_INVALID_VALUE;
    kernel->dynamic_shared_limit = value;
    return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *pi, CUfunction_attribute attrib, CUfunction hfunc) {
    return get_attribute(pi, attrib, hfunc);
}

CUresult cuKernelGetAttribute(int *pi, CUfunction_attribute attrib, CUkernel kernel, CUdevice dev) {
    return dev == 0 ? get_attribute(pi, attrib, kernel) : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuFuncSetAttribute(CUfunction hfunc, CUfunction_attribute attrib, int value) {
    return set_attribute(hfunc, attrib, value);
}

CUresult cuKernelSetAttribute(CUfunction_attribute attrib, int val, CUkernel kernel, CUdevice dev) {
    return dev == 0 ? set_attribute(kernel, attrib, val) : CUDA_ERROR_INVALID_DEVICE;
}

static CUresult check(const void *handle) {
    return kernel_get(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuFuncSetCacheConfig(CUfunction hfunc, CUfunc_cache config) {
    (void)config;
    return check(hfunc);
}

CUresult cuFuncSetSharedMemConfig(CUfunction hfunc, CUsharedconfig config) {
    (void)config;
    return check(hfunc);
}

CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice dev) {
    (void)config, (void)dev;
    return check(kernel);
}

CUresult cuFuncLoad(CUfunction function) {
    return check(function);
}

CUresult cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction function) {
    CUresult code = check(function);
    if (code == CUDA_SUCCESS && state == NULL)
        code = CUDA_ERROR_INVALID_VALUE;
    if (code == CUDA_SUCCESS)
        *state = CU_FUNCTION_LOADING_STATE_LOADED;
    return code;
}

CUresult cuFuncGetName(const char **name, CUfunction hfunc) {
    const struct kernel *kernel = kernel_get(hfunc);
    if (kernel == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (name == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *name = kernel->name;
    return CUDA_SUCCESS;
}

CUresult cuKernelGetName(const char **name, CUkernel hfunc) {
    return cuFuncGetName(name, (CUfunction)hfunc);
}

CUresult cuFuncGetParamInfo(CUfunction func, size_t paramIndex, size_t *paramOffset,
                            size_t *paramSize) {
    const struct kernel *kernel = kernel_get(func);
    if (kernel == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (paramOffset == NULL || paramIndex >= kernel->parameter_count)
        return CUDA_ERROR_INVALID_VALUE;
    *paramOffset = kernel->parameters[paramIndex].offset;
    if (paramSize != NULL)
        *paramSize = kernel->parameters[paramIndex].size;
    return CUDA_SUCCESS;
}

CUresult cuKernelGetParamInfo(CUkernel kernel, size_t paramIndex, size_t *paramOffset,
                              size_t *paramSize) {
    return cuFuncGetParamInfo((CUfunction)kernel, paramIndex, paramOffset, paramSize);
}

/* ---- occupancy ---- */

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *numBlocks, CUfunction func,
                                                              int blockSize,
                                                              size_t dynamicSMemSize,
                                                              unsigned int flags) {
    (void)flags;
    struct site site;
    CUresult code = context_enter();
    if (code != CUDA_SUCCESS)
        return code;
    struct kernel *kernel = kernel_get(func);
    if (kernel == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (numBlocks == NULL || blockSize < 1 || blockSize > 1024 || dynamicSMemSize > UINT32_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    code = kernel_site(kernel, (uint64_t[]){(uint64_t)blockSize, 1, 1}, dynamicSMemSize, false,
                       &site);
    if (code == CUDA_SUCCESS)
        *numBlocks = (int)site.occupancy;
    return code;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *numBlocks, CUfunction func, int blockSize,
                                                     size_t dynamicSMemSize) {
    return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(numBlocks, func, blockSize,
                                                                dynamicSMemSize, 0);
}

CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *minGridSize, int *blockSize,
                                                   CUfunction func,
                                                   CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                                   size_t dynamicSMemSize, int blockSizeLimit,
                                                   unsigned int flags) {
    CUresult code = context_enter();
    if (code != CUDA_SUCCESS)
        return code;
    const struct kernel *kernel = kernel_get(func);
    if (kernel == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (minGridSize == NULL || blockSize == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    int most = kernel->max_threads ? (int)kernel->max_threads : 1024;
    if (blockSizeLimit > 0 && blockSizeLimit < most)
        most = blockSizeLimit;
    int best_threads = 0;
    for (int threads = most / 32 * 32; threads >= 128; threads /= 2) {
        int blocks;
        size_t shared = blockSizeToDynamicSMemSize ? blockSizeToDynamicSMemSize(threads)
                                                   : dynamicSMemSize;
        code = cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&blocks, func, threads, shared,
                                                                    flags);
        if (code != CUDA_SUCCESS)
            return code;
        if (blocks * threads > best_threads) {
            best_threads = blocks * threads;
            *blockSize = threads;
            *minGridSize = blocks * (int)session_get()->device.sms;
        }
    }
    if (best_threads == 0) {
        *blockSize = most;
        *minGridSize = (int)session_get()->device.sms;
    }
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxPotentialBlockSize(int *minGridSize, int *blockSize, CUfunction func,
                                          CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                          size_t dynamicSMemSize, int blockSizeLimit) {
    return cuOccupancyMaxPotentialBlockSizeWithFlags(
        minGridSize, blockSize, func, blockSizeToDynamicSMemSize, dynamicSMemSize, blockSizeLimit,
        0);
}

CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *dynamicSmemSize, CUfunction func,
                                                 int numBlocks, int blockSize) {
    const struct kernel *kernel = kernel_get(func);
    if (kernel == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (dynamicSmemSize == NULL || numBlocks < 1 || blockSize < 1)
        return CUDA_ERROR_INVALID_VALUE;
    size_t each = (100u << 10) / (unsigned)numBlocks, used = kernel->shared_bytes + (1u << 10);
    *dynamicSmemSize = each > used ? each - used : 0;
    return CUDA_SUCCESS;
}
