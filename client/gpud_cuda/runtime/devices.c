/* Devices and contexts: each thread has a current device, whose primary context it uses. */
#include <pthread.h>
#include <string.h>

#include "runtime.h"

enum { VERSION = CUDART_VERSION, MOST_DEVICES = 64 };

static _Thread_local int current_device;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CUcontext primary[MOST_DEVICES];
static pthread_once_t once = PTHREAD_ONCE_INIT;
static CUresult init_code;

static void init(void) {
    init_code = cuInit(0);
}

static CUresult use_primary(int index) {
    CUresult code = CUDA_SUCCESS;
    CUdevice device;
    pthread_mutex_lock(&lock);
    if (primary[index] == NULL) {
        code = cuDeviceGet(&device, index);
        if (code == CUDA_SUCCESS)
            code = cuDevicePrimaryCtxRetain(&primary[index], device);
    }
    CUcontext context = primary[index];
    pthread_mutex_unlock(&lock);
    return code ? code : cuCtxSetCurrent(context);
}

CUresult runtime_enter(void) {
    static _Thread_local bool has_context;
    CUcontext context = NULL;
    if (has_context)
        return CUDA_SUCCESS;
    pthread_once(&once, init);
    if (init_code != CUDA_SUCCESS)
        return init_code;
    CUresult code = cuCtxGetCurrent(&context);
    if (code == CUDA_SUCCESS && context == NULL)
        code = use_primary(current_device);
    has_context = code == CUDA_SUCCESS;
    return code;
}

static CUresult enter_driver(void) {
    pthread_once(&once, init);
    return init_code;
}

cudaError_t cudaGetDeviceCount(int *count) {
    CUresult code = enter_driver();
    return runtime_done(code ? code : cuDeviceGetCount(count));
}

cudaError_t cudaGetDevice(int *device) {
    if (device == NULL)
        return runtime_done(cudaErrorInvalidValue);
    *device = current_device;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
    int count = 0;
    CUresult code = enter_driver();
    if (code == CUDA_SUCCESS)
        code = cuDeviceGetCount(&count);
    if (code == CUDA_SUCCESS && (device < 0 || device >= count || device >= MOST_DEVICES))
        code = CUDA_ERROR_INVALID_DEVICE;
    if (code == CUDA_SUCCESS)
        code = use_primary(device);
    if (code == CUDA_SUCCESS)
        current_device = device;
    return runtime_done(code);
}

cudaError_t cudaInitDevice(int device, unsigned int device_flags, unsigned int flags) {
    (void)device_flags, (void)flags;
    int before = current_device;
    cudaError_t code = cudaSetDevice(device);
    return code ? code : cudaSetDevice(before);
}

cudaError_t cudaSetDeviceFlags(unsigned int flags) {
    (void)flags; /* how a thread waits is gpud's matter */
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void) {
    WITH_CONTEXT(cuCtxSynchronize());
}

cudaError_t cudaDeviceReset(void) {
    CUdevice device;
    CUresult code = runtime_enter();
    if (code == CUDA_SUCCESS)
        code = cuCtxSynchronize();
    if (code == CUDA_SUCCESS)
        code = cuDeviceGet(&device, current_device);
    return runtime_done(code);
}

cudaError_t cudaDeviceGetLimit(size_t *value, enum cudaLimit limit) {
    WITH_CONTEXT(cuCtxGetLimit(value, (CUlimit)limit));
}

cudaError_t cudaDeviceSetLimit(enum cudaLimit limit, size_t value) {
    WITH_CONTEXT(cuCtxSetLimit((CUlimit)limit, value));
}

cudaError_t cudaDeviceSetCacheConfig(enum cudaFuncCache config) {
    WITH_CONTEXT(cuCtxSetCacheConfig((CUfunc_cache)config));
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    WITH_CONTEXT(cuCtxGetStreamPriorityRange(least, greatest));
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    CUresult code = enter_driver();
    return runtime_done(code ? code : cuDeviceCanAccessPeer(can, device, peer));
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int size, int device) {
    CUresult code = enter_driver();
    return runtime_done(code ? code : cuDeviceGetPCIBusId(text, size, device));
}

cudaError_t cudaDriverGetVersion(int *version) {
    return runtime_done(cuDriverGetVersion(version));
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    if (version == NULL)
        return runtime_done(cudaErrorInvalidValue);
    *version = VERSION;
    return cudaSuccess;
}

cudaError_t cudaProfilerStart(void) {
    WITH_CONTEXT(cuProfilerStart());
}

cudaError_t cudaProfilerStop(void) {
    WITH_CONTEXT(cuProfilerStop());
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    CUresult code = enter_driver();
    return runtime_done(
        code ? code : cuDeviceGetAttribute(value, (CUdevice_attribute)attribute, device));
}

/* ---- properties ---- */

static int attribute(CUdevice device, enum cudaDeviceAttr which) {
    int value = 0;
    cuDeviceGetAttribute(&value, (CUdevice_attribute)which, device);
    return value;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *made, int index) {
    CUdevice device;
    CUuuid uuid;
    CUresult code = enter_driver();
    if (code == CUDA_SUCCESS)
        code = made ? cuDeviceGet(&device, index) : CUDA_ERROR_INVALID_VALUE;
    if (code != CUDA_SUCCESS)
        return runtime_done(code);
    memset(made, 0, sizeof *made);
    cuDeviceGetName(made->name, sizeof made->name, device);
    cuDeviceTotalMem(&made->totalGlobalMem, device);
    if (cuDeviceGetUuid(&uuid, device) == CUDA_SUCCESS)
        memcpy(&made->uuid, &uuid, sizeof made->uuid);
    made->sharedMemPerBlock = (size_t)attribute(device, cudaDevAttrMaxSharedMemoryPerBlock);
    made->regsPerBlock = attribute(device, cudaDevAttrMaxRegistersPerBlock);
    made->warpSize = attribute(device, cudaDevAttrWarpSize);
    made->memPitch = (size_t)attribute(device, cudaDevAttrMaxPitch);
    made->maxThreadsPerBlock = attribute(device, cudaDevAttrMaxThreadsPerBlock);
    made->maxThreadsDim[0] = attribute(device, cudaDevAttrMaxBlockDimX);
    made->maxThreadsDim[1] = attribute(device, cudaDevAttrMaxBlockDimY);
    made->maxThreadsDim[2] = attribute(device, cudaDevAttrMaxBlockDimZ);
    made->maxGridSize[0] = attribute(device, cudaDevAttrMaxGridDimX);
    made->maxGridSize[1] = attribute(device, cudaDevAttrMaxGridDimY);
    made->maxGridSize[2] = attribute(device, cudaDevAttrMaxGridDimZ);
    made->totalConstMem = (size_t)attribute(device, cudaDevAttrTotalConstantMemory);
    made->major = attribute(device, cudaDevAttrComputeCapabilityMajor);
    made->minor = attribute(device, cudaDevAttrComputeCapabilityMinor);
    made->textureAlignment = (size_t)attribute(device, cudaDevAttrTextureAlignment);
    made->multiProcessorCount = attribute(device, cudaDevAttrMultiProcessorCount);
    made->integrated = attribute(device, cudaDevAttrIntegrated);
    made->canMapHostMemory = attribute(device, cudaDevAttrCanMapHostMemory);
    made->concurrentKernels = attribute(device, cudaDevAttrConcurrentKernels);
    made->ECCEnabled = attribute(device, cudaDevAttrEccEnabled);
    made->pciBusID = attribute(device, cudaDevAttrPciBusId);
    made->pciDeviceID = attribute(device, cudaDevAttrPciDeviceId);
    made->pciDomainID = attribute(device, cudaDevAttrPciDomainId);
    made->asyncEngineCount = attribute(device, cudaDevAttrAsyncEngineCount);
    made->unifiedAddressing = attribute(device, cudaDevAttrUnifiedAddressing);
    made->memoryBusWidth = attribute(device, cudaDevAttrGlobalMemoryBusWidth);
    made->l2CacheSize = attribute(device, cudaDevAttrL2CacheSize);
    made->maxThreadsPerMultiProcessor =
        attribute(device, cudaDevAttrMaxThreadsPerMultiProcessor);
    made->streamPrioritiesSupported = attribute(device, cudaDevAttrStreamPrioritiesSupported);
    made->sharedMemPerMultiprocessor =
        (size_t)attribute(device, cudaDevAttrMaxSharedMemoryPerMultiprocessor);
    made->regsPerMultiprocessor = attribute(device, cudaDevAttrMaxRegistersPerMultiprocessor);
    made->managedMemory = attribute(device, cudaDevAttrManagedMemory);
    made->pageableMemoryAccess = attribute(device, cudaDevAttrPageableMemoryAccess);
    made->concurrentManagedAccess = attribute(device, cudaDevAttrConcurrentManagedAccess);
    made->cooperativeLaunch = attribute(device, cudaDevAttrCooperativeLaunch);
    made->sharedMemPerBlockOptin =
        (size_t)attribute(device, cudaDevAttrMaxSharedMemoryPerBlockOptin);
    made->maxBlocksPerMultiProcessor = attribute(device, cudaDevAttrMaxBlocksPerMultiprocessor);
    made->memoryPoolsSupported = attribute(device, cudaDevAttrMemoryPoolsSupported);
    return cudaSuccess;
}
