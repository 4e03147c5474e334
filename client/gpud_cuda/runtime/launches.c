/* Kernel launches: the <<<>>> of compiled programs, and the functions that take a stub. */
#include "runtime.h"

struct configuration {
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
};

enum { MOST_NESTED = 32 };

static _Thread_local struct configuration pushed[MOST_NESTED];
static _Thread_local unsigned pushed_count;

EXPORTED unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared,
                                              struct CUstream_st *stream);
EXPORTED cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared,
                                                void *stream);
EXPORTED cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args,
                                        size_t shared, cudaStream_t stream);
EXPORTED cudaError_t __cudaLaunchKernel_ptsz(cudaKernel_t kernel, dim3 grid, dim3 block,
                                             void **args, size_t shared, cudaStream_t stream);

/* Between the <<<>>> and the stub that it calls. Not 0: the stub is not called. */
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared,
                                     struct CUstream_st *stream) {
    if (pushed_count == MOST_NESTED)
        return (unsigned)runtime_done(cudaErrorLaunchOutOfResources);
    pushed[pushed_count++] = (struct configuration){grid, block, shared, stream};
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    if (pushed_count == 0)
        return runtime_done(cudaErrorMissingConfiguration);
    struct configuration *top = &pushed[--pushed_count];
    *grid = top->grid;
    *block = top->block;
    *shared = top->shared;
    *(cudaStream_t *)stream = top->stream;
    return cudaSuccess;
}

/* The runtime calls wrong sizes by another name than the driver. */
static int launch_code(CUresult code) {
    return code == CUDA_ERROR_INVALID_VALUE ? (int)cudaErrorInvalidConfiguration : (int)code;
}

static cudaError_t launch(CUfunction function, dim3 grid, dim3 block, void **args, size_t shared,
                          cudaStream_t stream) {
    if (function == NULL) /* its registration said why */
        return runtime_done(cudaErrorInvalidDeviceFunction);
    return runtime_done(launch_code(cuLaunchKernel(function, grid.x, grid.y, grid.z, block.x,
                                                   block.y, block.z, (unsigned)shared, stream,
                                                   args, NULL)));
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args,
                               size_t shared, cudaStream_t stream) {
    return launch((CUfunction)kernel, grid, block, args, shared, stream);
}

cudaError_t __cudaLaunchKernel_ptsz(cudaKernel_t kernel, dim3 grid, dim3 block, void **args,
                                    size_t shared, cudaStream_t stream) {
    return launch((CUfunction)kernel, grid, block, args, shared,
                  stream ? stream : cudaStreamPerThread);
}

/* A stub, or a kernel's handle. */
static CUresult function_of(const void *func, CUfunction *function) {
    CUresult code = find_function(func, function);
    int registers;
    if (code != (CUresult)cudaErrorInvalidDeviceFunction || func == NULL)
        return code;
    *function = (CUfunction)func;
    return cuFuncGetAttribute(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS, *function) == CUDA_SUCCESS
               ? CUDA_SUCCESS
               : code;
}

cudaError_t cudaLaunchKernel(const void *func, dim3 grid, dim3 block, void **args, size_t shared,
                             cudaStream_t stream) {
    CUfunction function;
    CUresult code = function_of(func, &function);
    return code ? runtime_done(code) : launch(function, grid, block, args, shared, stream);
}

cudaError_t cudaLaunchCooperativeKernel(const void *func, dim3 grid, dim3 block, void **args,
                                        size_t shared, cudaStream_t stream) {
    CUfunction function;
    CUresult code = function_of(func, &function);
    if (code != CUDA_SUCCESS)
        return runtime_done(code);
    return runtime_done(launch_code(cuLaunchCooperativeKernel(function, grid.x, grid.y, grid.z,
                                                              block.x, block.y, block.z,
                                                              (unsigned)shared, stream, args)));
}

/* The attributes are the driver's, and have its numbers. */
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *func, void **args) {
    CUfunction function;
    if (config == NULL)
        return runtime_done(cudaErrorInvalidValue);
    CUresult code = function_of(func, &function);
    if (code != CUDA_SUCCESS)
        return runtime_done(code);
    CUlaunchConfig given = {
        .gridDimX = config->gridDim.x,
        .gridDimY = config->gridDim.y,
        .gridDimZ = config->gridDim.z,
        .blockDimX = config->blockDim.x,
        .blockDimY = config->blockDim.y,
        .blockDimZ = config->blockDim.z,
        .sharedMemBytes = (unsigned)config->dynamicSmemBytes,
        .hStream = config->stream,
        .attrs = (CUlaunchAttribute *)config->attrs,
        .numAttrs = config->numAttrs,
    };
    return runtime_done(launch_code(cuLaunchKernelEx(&given, function, args, NULL)));
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *data) {
    WITH_CONTEXT(cuLaunchHostFunc(stream, fn, data));
}

/* ---- attributes and occupancy ---- */

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *func) {
    CUfunction function;
    int shared, constant, local, threads, registers, ptx, binary, most_shared;
    if (attributes == NULL)
        return runtime_done(cudaErrorInvalidValue);
    CUresult code = function_of(func, &function);
    struct {
        int *value;
        CUfunction_attribute which;
    } wanted[] = {
        {&shared, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES},
        {&constant, CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES},
        {&local, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES},
        {&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK},
        {&registers, CU_FUNC_ATTRIBUTE_NUM_REGS},
        {&ptx, CU_FUNC_ATTRIBUTE_PTX_VERSION},
        {&binary, CU_FUNC_ATTRIBUTE_BINARY_VERSION},
        {&most_shared, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES},
    };
    for (size_t i = 0; code == CUDA_SUCCESS && i < sizeof wanted / sizeof *wanted; i++)
        code = cuFuncGetAttribute(wanted[i].value, wanted[i].which, function);
    if (code == CUDA_SUCCESS)
        *attributes = (struct cudaFuncAttributes){
            .sharedSizeBytes = (size_t)shared,
            .constSizeBytes = (size_t)constant,
            .localSizeBytes = (size_t)local,
            .maxThreadsPerBlock = threads,
            .numRegs = registers,
            .ptxVersion = ptx,
            .binaryVersion = binary,
            .maxDynamicSharedSizeBytes = most_shared,
        };
    return runtime_done(code);
}

cudaError_t cudaFuncSetAttribute(const void *func, enum cudaFuncAttribute attribute, int value) {
    CUfunction function;
    CUresult code = function_of(func, &function);
    return runtime_done(
        code ? code : cuFuncSetAttribute(function, (CUfunction_attribute)attribute, value));
}

cudaError_t cudaFuncSetCacheConfig(const void *func, enum cudaFuncCache config) {
    CUfunction function;
    CUresult code = function_of(func, &function);
    return runtime_done(code ? code : cuFuncSetCacheConfig(function, (CUfunc_cache)config));
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *func,
                                                          int block_size, size_t shared) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, func, block_size, shared,
                                                                  0);
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *func,
                                                                   int block_size, size_t shared,
                                                                   unsigned int flags) {
    CUfunction function;
    CUresult code = function_of(func, &function);
    return runtime_done(code ? code
                             : cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
                                   blocks, function, block_size, shared, flags));
}

cudaError_t cudaOccupancyAvailableDynamicSMemPerBlock(size_t *shared, const void *func, int blocks,
                                                      int block_size) {
    CUfunction function;
    CUresult code = function_of(func, &function);
    return runtime_done(
        code ? code
             : cuOccupancyAvailableDynamicSMemPerBlock(shared, function, blocks, block_size));
}
