/* Names that have a newer version with the same parameters.
 *
 * cuda.h gives programs the newer names; these are for those that were built long ago, or look them
 * up by name. Others, with device addresses of 32 bits, are not supported. */
#include "cuda_api.h"

#define OLDER(name, parameters, arguments)                                                         \
    EXPORTED CUresult older_##name parameters __asm__(#name);                                      \
    CUresult older_##name parameters {                                                             \
        return name arguments;                                                                     \
    }

OLDER(cuCtxDestroy, (CUcontext ctx), (ctx))
OLDER(cuCtxPushCurrent, (CUcontext ctx), (ctx))
OLDER(cuCtxPopCurrent, (CUcontext *pctx), (pctx))
OLDER(cuStreamDestroy, (CUstream stream), (stream))
OLDER(cuEventDestroy, (CUevent event), (event))
OLDER(cuDevicePrimaryCtxRelease, (CUdevice device), (device))
OLDER(cuDevicePrimaryCtxReset, (CUdevice device), (device))
OLDER(cuDevicePrimaryCtxSetFlags, (CUdevice device, unsigned flags), (device, flags))
OLDER(cuDeviceGetUuid, (CUuuid *uuid, CUdevice device), (uuid, device))
OLDER(cuMemHostRegister, (void *p, size_t bytes, unsigned flags), (p, bytes, flags))
