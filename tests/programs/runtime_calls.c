/* What a compiler makes of a program with <<<>>>: it registers a fat binary, and launches stubs. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "image.h" /* generated: `container`, a fat binary with the kernels add and mark */

struct wrapper {
    uint32_t magic, version;
    const void *data;
    const void *const *prelinked;
};

void **__cudaRegisterFatBinary(void *);
void __cudaRegisterFatBinaryEnd(void **);
void __cudaUnregisterFatBinary(void **);
void __cudaRegisterFunction(void **, const void *, char *, const char *, int, void *, void *,
                            void *, void *, int *);
void __cudaRegisterVar(void **, void *, char *, const char *, int, size_t, int, int);
unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, cudaStream_t);
cudaError_t __cudaPopCallConfiguration(dim3 *, dim3 *, size_t *, void *);

static int by; /* the shadow of a __device__ variable */

static void add_stub(int *x) {
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
    void *args[] = {&x};
    if (__cudaPopCallConfiguration(&grid, &block, &shared, &stream) == cudaSuccess)
        cudaLaunchKernel((const void *)add_stub, grid, block, args, shared, stream);
}

static void missing_stub(void) {
}

/* add<<<grid, block>>>(x) */
static void add(unsigned grid, unsigned block, int *x) {
    if (__cudaPushCallConfiguration((dim3){grid, 1, 1}, (dim3){block, 1, 1}, 0, NULL) == 0)
        add_stub(x);
}

static void say(const char *what) {
    printf("%s: %s\n", what, cudaGetErrorName(cudaGetLastError()));
}

int main(void) {
    static struct wrapper wrapper = {0x466243b1, 1, container, NULL};
    void **handle = __cudaRegisterFatBinary(&wrapper);
    __cudaRegisterFunction(handle, (const void *)add_stub, "add", "add", -1, 0, 0, 0, 0, 0);
    __cudaRegisterFunction(handle, (const void *)missing_stub, "no", "no", -1, 0, 0, 0, 0, 0);
    __cudaRegisterVar(handle, &by, "by", "by", 0, sizeof by, 0, 0);
    __cudaRegisterFatBinaryEnd(handle);

    struct cudaDeviceProp properties;
    struct cudaPointerAttributes pointer;
    struct cudaFuncAttributes function;
    int host[64], *x = NULL, value = 5, blocks = 0;
    memset(host, 0, sizeof host);
    cudaGetDeviceProperties(&properties, 0);
    printf("device: %d SMs, warps of %d\n", properties.multiProcessorCount, properties.warpSize);
    cudaMalloc((void **)&x, sizeof host);
    cudaPointerGetAttributes(&pointer, x);
    printf("memory: %d %d\n", pointer.type == cudaMemoryTypeDevice, pointer.devicePointer == x);
    cudaPointerGetAttributes(&pointer, host);
    printf("host: %d\n", pointer.type == cudaMemoryTypeUnregistered);
    cudaMemcpy(x, host, sizeof host, cudaMemcpyHostToDevice);
    cudaMemcpyToSymbol(&by, &value, sizeof value, 0, cudaMemcpyHostToDevice);
    say("setup");
    add(2, 32, x);
    say("launch");
    cudaMemcpy(host, x, sizeof host, cudaMemcpyDeviceToHost);
    printf("values: %d %d\n", host[0], host[63]);
    cudaMemcpyFromSymbol(&value, &by, sizeof value, 0, cudaMemcpyDeviceToHost);
    printf("variable: %d\n", value);
    cudaFuncGetAttributes(&function, (const void *)add_stub);
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, (const void *)add_stub, 32, 0);
    printf("kernel: %d %d\n", function.maxThreadsPerBlock > 0, blocks > 0);
    say("questions");

    add(1, 4096, x);
    say("too many threads");
    cudaLaunchKernel((const void *)missing_stub, (dim3){1, 1, 1}, (dim3){1, 1, 1}, NULL, 0, NULL);
    say("no such kernel");
    cudaLaunchKernel((const void *)main, (dim3){1, 1, 1}, (dim3){1, 1, 1}, NULL, 0, NULL);
    say("not registered");
    cudaMemcpyToSymbol(&value, &value, sizeof value, 0, cudaMemcpyHostToDevice);
    say("no such variable");
    cudaMemcpyToSymbol(&by, host, sizeof by, 1, cudaMemcpyHostToDevice);
    say("beyond the variable");
    cudaMemcpy(x, host, 4, (enum cudaMemcpyKind)77);
    say("direction");
    cudaSetDevice(99);
    say("no such device");
    printf("text: %s\n", cudaGetErrorString(cudaErrorInvalidConfiguration));
    cudaGraphCreate(NULL, 0);
    say("not supported");
    add(1, 1, x);
    cudaFree(x);
    printf("end: %d\n", cudaDeviceSynchronize());
    __cudaUnregisterFatBinary(handle);
    return 0;
}
