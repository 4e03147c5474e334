/* gpud's own CUDA runtime: the calls of programs that link libcudart dynamically, made as calls of
 * the driver library. Streams, events, arrays and error codes are the driver's own. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(default)
#include <cuda.h>
#include <cuda_runtime_api.h>
CUresult cuProfilerStart(void); /* their header is not in every wheel */
CUresult cuProfilerStop(void);
cudaError_t cudaProfilerStart(void);
cudaError_t cudaProfilerStop(void);
#pragma GCC visibility pop

#define EXPORTED __attribute__((visibility("default")))

struct error_text {
    int code;
    const char *name;
};

/* Generated from the headers. */
extern const struct error_text runtime_errors[];
extern const size_t runtime_error_count;

/* Keeps an error for cudaGetLastError, and returns it. The driver's codes are the runtime's, too. */
cudaError_t runtime_done(int code);

/* Makes the calling thread have a context: its device's primary one, if it has none. */
CUresult runtime_enter(void);

/* Finds what was registered: the kernel of a stub, or the variable of its shadow. */
CUresult find_function(const void *stub, CUfunction *function);
CUresult find_variable(const void *shadow, CUdeviceptr *address, size_t *size);

/* Returns from a call of the API with the code of a driver call, once there is a context. */
#define WITH_CONTEXT(call)                                                                         \
    do {                                                                                           \
        CUresult code_ = runtime_enter();                                                          \
        return runtime_done(code_ ? code_ : (call));                                               \
    } while (0)
