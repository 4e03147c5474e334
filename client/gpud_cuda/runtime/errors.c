#include "runtime.h"

static _Thread_local int last_error;

cudaError_t runtime_done(int code) {
    if (code != cudaSuccess && code != cudaErrorNotReady)
        last_error = code;
    return (cudaError_t)code;
}

cudaError_t cudaGetLastError(void) {
    int code = last_error;
    last_error = cudaSuccess;
    return (cudaError_t)code;
}

cudaError_t cudaPeekAtLastError(void) {
    return (cudaError_t)last_error;
}

const char *cudaGetErrorName(cudaError_t error) {
    for (size_t i = 0; i < runtime_error_count; i++)
        if (runtime_errors[i].code == (int)error)
            return runtime_errors[i].name;
    return "unrecognized error code";
}

/* What only the runtime says; all else the driver library has words for. */
const char *cudaGetErrorString(cudaError_t error) {
    const char *text = NULL;
    switch (error) {
    case cudaErrorInvalidConfiguration:
        return "invalid configuration argument";
    case cudaErrorInvalidSymbol:
        return "invalid device symbol";
    case cudaErrorInvalidMemcpyDirection:
        return "invalid copy direction for memcpy";
    case cudaErrorInvalidDeviceFunction:
        return "invalid device function";
    case cudaErrorMissingConfiguration:
        return "__global__ function call is not configured";
    default:
        return cuGetErrorString((CUresult)error, &text) == CUDA_SUCCESS && text
                   ? text
                   : cudaGetErrorName(error);
    }
}
