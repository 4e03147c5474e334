/* The calls that launch kernels. Compiled twice; see stream_calls.c. */
#include "launches.h"
#include "streams.h"

CUresult cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                        unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
                        unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
                        void **kernelParams, void **extra) {
    CUresult code = stream_enter(hStream);
    if (code != CUDA_SUCCESS)
        return code;
    if (kernelParams != NULL && extra != NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return launch(&(struct launch){
        .function = f,
        .grid = {gridDimX, gridDimY, gridDimZ},
        .block = {blockDimX, blockDimY, blockDimZ},
        .shared = sharedMemBytes,
        .parameters = kernelParams,
        .extra = extra,
    });
}

CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                   unsigned int gridDimZ, unsigned int blockDimX,
                                   unsigned int blockDimY, unsigned int blockDimZ,
                                   unsigned int sharedMemBytes, CUstream hStream,
                                   void **kernelParams) {
    CUresult code = stream_enter(hStream);
    if (code != CUDA_SUCCESS)
        return code;
    return launch(&(struct launch){
        .function = f,
        .grid = {gridDimX, gridDimY, gridDimZ},
        .block = {blockDimX, blockDimY, blockDimZ},
        .shared = sharedMemBytes,
        .parameters = kernelParams,
        .is_cooperative = true,
    });
}

/* Attributes that only advise are passed over; clusters and the like change what a kernel sees. */
static CUresult take_attribute(const CUlaunchAttribute *attribute, struct launch *launch) {
    switch ((int)attribute->id) {
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
        launch->is_cooperative = attribute->value.cooperative != 0;
        return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
        return attribute->value.clusterDim.x * attribute->value.clusterDim.y *
                           attribute->value.clusterDim.z <= 1
                   ? CUDA_SUCCESS
                   : CUDA_ERROR_NOT_SUPPORTED;
    default:
        return CUDA_SUCCESS;
    }
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **kernelParams,
                          void **extra) {
    if (config == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult code = stream_enter(config->hStream);
    struct launch asked = {
        .function = f,
        .grid = {config->gridDimX, config->gridDimY, config->gridDimZ},
        .block = {config->blockDimX, config->blockDimY, config->blockDimZ},
        .shared = config->sharedMemBytes,
        .parameters = kernelParams,
        .extra = extra,
    };
    for (unsigned i = 0; code == CUDA_SUCCESS && i < config->numAttrs; i++)
        code = take_attribute(&config->attrs[i], &asked);
    return code == CUDA_SUCCESS ? launch(&asked) : code;
}
