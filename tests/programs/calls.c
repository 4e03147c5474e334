/* Calls of the CUDA driver API, right ones and wrong ones, from several threads; for sanitizers. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cuda.h>

enum { THREADS = 4, ROUNDS = 50, COUNT = 4096 };

#define EXPECT(code, call)                                                                         \
    do {                                                                                           \
        CUresult got = (call);                                                                     \
        if (got != (code)) {                                                                       \
            fprintf(stderr, "line %d: %s gives %d, not %d\n", __LINE__, #call, got, code);         \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
#define RIGHT(call) EXPECT(CUDA_SUCCESS, call)
#define CHECK(is_so)                                                                               \
    do {                                                                                           \
        if (!(is_so)) {                                                                            \
            fprintf(stderr, "line %d: not %s\n", __LINE__, #is_so);                                \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static const char ptx[] =
    ".version 7.0\n.target sm_52\n.address_size 64\n"
    ".visible .entry add_to(.param .u64 to, .param .u32 value, .param .u32 n) {\n"
    "  .reg .pred %p; .reg .b32 %r<8>; .reg .b64 %d<4>;\n"
    "  ld.param.u64 %d1, [to]; ld.param.u32 %r1, [value]; ld.param.u32 %r2, [n];\n"
    "  mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ntid.x; mov.u32 %r5, %tid.x;\n"
    "  mad.lo.s32 %r6, %r3, %r4, %r5; setp.ge.s32 %p, %r6, %r2; @%p bra DONE;\n"
    "  mul.wide.s32 %d2, %r6, 4; add.s64 %d3, %d1, %d2;\n"
    "  ld.global.u32 %r7, [%d3]; add.u32 %r7, %r7, %r1; st.global.u32 [%d3], %r7;\n"
    "DONE: ret;\n}\n";

static CUcontext context;
static CUmodule module;
static CUfunction add_to;

static void launch(CUdeviceptr to, unsigned value, CUstream stream) {
    unsigned n = COUNT;
    void *parameters[] = {&to, &value, &n};
    RIGHT(cuLaunchKernel(add_to, COUNT / 128, 1, 1, 128, 1, 1, 0, stream, parameters, NULL));
}

static void CUDA_CB count_call(void *argument) {
    ++*(int *)argument;
}

/* A stream's work in order: set, add, copy within the device, add, copy out. */
static void *run_stream(void *number) {
    CUstream stream;
    CUevent start, end;
    CUdeviceptr a, b;
    unsigned *host, first = 10 * (unsigned)(uintptr_t)number;
    int calls = 0;
    float elapsed_ms;
    RIGHT(cuCtxSetCurrent(context));
    RIGHT(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    RIGHT(cuEventCreate(&start, CU_EVENT_DEFAULT));
    RIGHT(cuEventCreate(&end, CU_EVENT_DEFAULT));
    RIGHT(cuMemAlloc(&a, COUNT * 4));
    RIGHT(cuMemAlloc(&b, COUNT * 4));
    RIGHT(cuMemHostAlloc((void **)&host, COUNT * 4, 0));
    for (int round = 0; round < ROUNDS; round++) {
        RIGHT(cuEventRecord(start, stream));
        RIGHT(cuMemsetD32Async(a, first, COUNT, stream));
        launch(a, 1, stream);
        RIGHT(cuMemcpyDtoDAsync(b, a, COUNT * 4, stream));
        RIGHT(cuLaunchHostFunc(stream, count_call, &calls));
        launch(b, 2, stream);
        RIGHT(cuMemcpyDtoHAsync(host, b, COUNT * 4, stream));
        RIGHT(cuEventRecord(end, stream));
        RIGHT(cuEventSynchronize(end));
        CHECK(host[0] == first + 3 && host[COUNT - 1] == first + 3);
        RIGHT(cuEventElapsedTime(&elapsed_ms, start, end));
        CHECK(elapsed_ms >= 0);
    }
    RIGHT(cuStreamSynchronize(stream));
    CHECK(calls == ROUNDS);
    RIGHT(cuMemFreeHost(host));
    RIGHT(cuMemFree(b));
    RIGHT(cuMemFreeAsync(a, stream));
    RIGHT(cuEventDestroy(start));
    RIGHT(cuEventDestroy(end));
    RIGHT(cuStreamDestroy(stream));
    return NULL;
}

static void run_threads(void) {
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, run_stream, (void *)i) == 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

/* Waiting while launches end: a wait must end with the last one, however the looks at it fall. */
static void wait_often(void) {
    enum { WAITS = 300, LAUNCHES = 100 };
    CUdeviceptr device;
    RIGHT(cuMemAlloc(&device, COUNT * 4));
    for (int i = 0; i < WAITS; i++) {
        for (int j = 0; j < LAUNCHES; j++)
            launch(device, 1, NULL);
        RIGHT(cuCtxSynchronize());
    }
    RIGHT(cuMemFree(device));
}

/* A tile of a matrix, out of one and into another. */
static void copy_areas(void) {
    CUdeviceptr device;
    size_t pitch;
    unsigned char from[16][32], to[16][32] = {{0}};
    for (int y = 0; y < 16; y++)
        for (int x = 0; x < 32; x++)
            from[y][x] = (unsigned char)(32 * y + x);
    RIGHT(cuMemAllocPitch(&device, &pitch, 32, 16, 4));
    CUDA_MEMCPY2D in = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = from, .srcPitch = 32,
                        .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = device,
                        .dstPitch = pitch, .WidthInBytes = 32, .Height = 16};
    RIGHT(cuMemcpy2D(&in));
    CUDA_MEMCPY3D out = {.srcXInBytes = 4, .srcY = 2, .srcMemoryType = CU_MEMORYTYPE_DEVICE,
                         .srcDevice = device, .srcPitch = pitch, .srcHeight = 16,
                         .dstXInBytes = 1, .dstY = 3, .dstMemoryType = CU_MEMORYTYPE_HOST,
                         .dstHost = to, .dstPitch = 32, .dstHeight = 16, .WidthInBytes = 8,
                         .Height = 5, .Depth = 1};
    RIGHT(cuMemcpy3D(&out));
    for (int y = 0; y < 16; y++)
        for (int x = 0; x < 32; x++) {
            int inside = y >= 3 && y < 8 && x >= 1 && x < 9;
            CHECK(to[y][x] == (inside ? from[y - 1][x + 3] : 0));
        }
    in.srcPitch = 16;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D(&in));
    RIGHT(cuMemFree(device));
}

static void make_mistakes(void) {
    CUdeviceptr device, freed;
    CUmodule none = (CUmodule)0x1234;
    CUfunction missing;
    CUstream stream;
    unsigned value = 0;
    void *parameters[] = {&device, &value, &value};
    RIGHT(cuMemAlloc(&device, 1000));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAlloc(&freed, 0));
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&freed, (size_t)1 << 50));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(device, ptx, 1001));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(device - 4096, ptx, 1));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemsetD32(device + 1, 0, 1));
    freed = device;
    RIGHT(cuMemFree(device));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree(freed));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(freed, ptx, 1));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuModuleGetFunction(&missing, none, "add_to"));
    EXPECT(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&missing, module, "missing"));
    EXPECT(CUDA_ERROR_INVALID_PTX, cuModuleLoadData(&none, ".version 7.0\n.target sm_52\nnonsense"));
    EXPECT(CUDA_ERROR_INVALID_HANDLE,
           cuLaunchKernel((CUfunction)7, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           cuLaunchKernel(add_to, 0, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           cuLaunchKernel(add_to, 1, 1, 1, 1025, 1, 1, 0, NULL, parameters, NULL));
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           cuLaunchKernel(add_to, 1, 1, 1, 1, 1, 1, 1 << 20, NULL, parameters, NULL));
    RIGHT(cuStreamCreate(&stream, 0));
    RIGHT(cuStreamDestroy(stream));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuStreamDestroy(stream));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuStreamSynchronize(stream));
}

/* A child has no session: error 3, as with CUDA. */
static void fork_once(void) {
    pid_t child = fork();
    if (child == 0) {
        CUdeviceptr device;
        EXPECT(CUDA_ERROR_NOT_INITIALIZED, cuMemAlloc(&device, 4));
        EXPECT(CUDA_ERROR_NOT_INITIALIZED, cuInit(0));
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(void) {
    CUcontext other;
    CUdeviceptr device;
    EXPECT(CUDA_ERROR_NOT_INITIALIZED, cuMemAlloc(&device, 4));
    RIGHT(cuInit(0));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc(&device, 4));
    RIGHT(cuDevicePrimaryCtxRetain(&context, 0));
    RIGHT(cuCtxSetCurrent(context));
    RIGHT(cuModuleLoadData(&module, ptx));
    RIGHT(cuModuleGetFunction(&add_to, module, "add_to"));
    run_threads();
    wait_often();
    copy_areas();
    make_mistakes();
    fork_once();
    RIGHT(cuCtxCreate(&other, NULL, 0, 0));
    RIGHT(cuCtxDestroy(other));
    RIGHT(cuCtxPushCurrent(context));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxSetCurrent(other));
    RIGHT(cuModuleUnload(module));
    puts("right");
    return 0;
}
