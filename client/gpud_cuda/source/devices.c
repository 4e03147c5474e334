/* The device, as programs ask for it. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arena.h"
#include "contexts.h"
#include "failure.h"
#include "session.h"

CUresult cuInit(unsigned int Flags) {
    if (Flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    return session_start();
}

/* May be called before cuInit. */
CUresult cuDriverGetVersion(int *driverVersion) {
    if (driverVersion == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *driverVersion = CUDA_VERSION;
    return CUDA_SUCCESS;
}

static CUresult check(CUdevice device) {
    CUresult code = session_check();
    if (code == CUDA_SUCCESS && device != 0)
        code = CUDA_ERROR_INVALID_DEVICE;
    return code;
}

CUresult cuDeviceGetCount(int *count) {
    CUresult code = session_check();
    if (code == CUDA_SUCCESS && count == NULL)
        code = CUDA_ERROR_INVALID_VALUE;
    if (code == CUDA_SUCCESS)
        *count = 1;
    return code;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    CUresult code = check(ordinal);
    if (code == CUDA_SUCCESS && device == NULL)
        code = CUDA_ERROR_INVALID_VALUE;
    if (code == CUDA_SUCCESS)
        *device = 0;
    return code;
}

CUresult cuDeviceGetName(char *name, int len, CUdevice dev) {
    CUresult code = check(dev);
    if (code == CUDA_SUCCESS && (name == NULL || len <= 0))
        code = CUDA_ERROR_INVALID_VALUE;
    if (code == CUDA_SUCCESS)
        snprintf(name, (size_t)len, "%s", session_get()->device.name);
    return code;
}

/* Reads "GPU-" and 32 digits with dashes between them; returns whether that is all there is. */
static bool read_uuid(const char *text, unsigned char bytes[16]) {
    unsigned digits = 0;
    const char *at = strchr(text, '-');
    for (; at != NULL && *at; at++) {
        char digit[2] = {*at, 0}, *end;
        unsigned long value = strtoul(digit, &end, 16);
        if (end == digit)
            continue;
        if (digits == 32)
            return false;
        bytes[digits / 2] = (unsigned char)(bytes[digits / 2] << 4 | value);
        digits++;
    }
    return digits == 32;
}

/* A GPU's own; of a CPU device one that is the same for the same device of a daemon. */
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice dev) {
    CUresult code = check(dev);
    if (code != CUDA_SUCCESS)
        return code;
    if (uuid == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    const struct device *device = &session_get()->device;
    unsigned char bytes[16] = {0};
    if (!read_uuid(device->uuid, bytes)) {
        memcpy(bytes, "gpud CPU device", sizeof bytes);
        bytes[15] = (unsigned char)device->index;
    }
    memcpy(uuid->bytes, bytes, sizeof bytes);
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(size_t *bytes, CUdevice dev) {
    CUresult code = check(dev);
    if (code == CUDA_SUCCESS && bytes == NULL)
        code = CUDA_ERROR_INVALID_VALUE;
    if (code == CUDA_SUCCESS)
        *bytes = arena_limit_bytes();
    return code;
}

CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice dev) {
    CUresult code = check(dev);
    if (code == CUDA_SUCCESS && (major == NULL || minor == NULL))
        code = CUDA_ERROR_INVALID_VALUE;
    if (code == CUDA_SUCCESS) {
        *major = (int)session_get()->device.capability / 10;
        *minor = (int)session_get()->device.capability % 10;
    }
    return code;
}

CUresult cuDeviceGetPCIBusId(char *pciBusId, int len, CUdevice dev) {
    CUresult code = check(dev);
    if (code == CUDA_SUCCESS && (pciBusId == NULL || len < 13))
        code = CUDA_ERROR_INVALID_VALUE;
    if (code == CUDA_SUCCESS)
        snprintf(pciBusId, (size_t)len, "0000:00:%02x.0", session_get()->device.index);
    return code;
}

CUresult cuDeviceGetByPCIBusId(CUdevice *dev, const char *pciBusId) {
    char own[16];
    CUresult code = cuDeviceGetPCIBusId(own, sizeof own, 0);
    if (code != CUDA_SUCCESS)
        return code;
    if (dev == NULL || pciBusId == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (strcmp(own, pciBusId) != 0)
        return CUDA_ERROR_INVALID_DEVICE;
    *dev = 0;
    return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int *canAccessPeer, CUdevice dev, CUdevice peerDev) {
    CUresult code = check(dev);
    if (code == CUDA_SUCCESS)
        code = check(peerDev);
    if (code == CUDA_SUCCESS && canAccessPeer == NULL)
        code = CUDA_ERROR_INVALID_VALUE;
    if (code == CUDA_SUCCESS)
        *canAccessPeer = 0; /* there is one device */
    return code;
}

/* ---- attributes ---- */

/* What does not depend on the device. A program that asks for more gets 0: it is not there. */
static const struct {
    CUdevice_attribute attribute;
    int value;
} constants[] = {
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, INT_MAX},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 48 << 10},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 99 << 10},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 100 << 10},
    {CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, 1 << 10},
    {CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 64 << 10},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
    {CU_DEVICE_ATTRIBUTE_MAX_PITCH, INT_MAX},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 64 << 10},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 64 << 10},
    {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1000000},
    {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 1000000},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512},
    {CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT, 512},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT, 32},
    {CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1},
    {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 64},
    {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 4 << 20},
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 1536},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 16},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1},
    {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO, 2},
};

/* Whether programs and the device share memory at the same addresses. */
static bool is_shared(const struct device *device) {
    return !device->is_copied && device->is_cpu;
}

CUresult cuDeviceGetAttribute(int *pi, CUdevice_attribute attrib, CUdevice dev) {
    CUresult code = check(dev);
    if (code != CUDA_SUCCESS)
        return code;
    if (pi == NULL || (int)attrib < 1 || attrib >= CU_DEVICE_ATTRIBUTE_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    const struct device *device = &session_get()->device;
    *pi = 0;
    for (size_t i = 0; i < COUNT_OF(constants); i++)
        if (constants[i].attribute == attrib)
            *pi = constants[i].value;
    switch (attrib) {
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        *pi = (int)device->sms;
        break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *pi = (int)device->capability / 10;
        break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        *pi = (int)device->capability % 10;
        break;
    case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID:
        *pi = (int)device->index;
        break;
    case CU_DEVICE_ATTRIBUTE_INTEGRATED:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
    case CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST:
        *pi = is_shared(device);
        break;
    default:
        break;
    }
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetProperties(CUdevprop *prop, CUdevice dev) {
    CUresult code = check(dev);
    if (code != CUDA_SUCCESS)
        return code;
    if (prop == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *prop = (CUdevprop){
        .maxThreadsPerBlock = 1024,
        .maxThreadsDim = {1024, 1024, 64},
        .maxGridSize = {INT_MAX, 65535, 65535},
        .sharedMemPerBlock = 48 << 10,
        .totalConstantMemory = 64 << 10,
        .SIMDWidth = 32,
        .memPitch = INT_MAX,
        .regsPerBlock = 64 << 10,
        .clockRate = 1000000,
        .textureAlign = 512,
    };
    return CUDA_SUCCESS;
}

/* ---- profilers: there is none that could be switched ---- */

EXPORTED CUresult cuProfilerStart(void);
CUresult cuProfilerStart(void) {
    return context_enter();
}

EXPORTED CUresult cuProfilerStop(void);
CUresult cuProfilerStop(void) {
    return context_enter();
}
