/* What calls of the CUDA driver API cost a program: prints JSON, nanoseconds of each call, p50 and
 * p99 of so many rounds. With a second argument it launches and waits for so many seconds,
 * and prints how often it could. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cuda.h>

enum { MOST_ROUNDS = 20000, BATCH = 100, COPY_BYTES = 64 << 20, SMALL_BYTES = 4096 };

static const char ptx[] = ".version 7.0\n.target sm_52\n.address_size 64\n"
                          ".visible .entry nothing() { ret; }\n"
                          ".visible .entry work(.param .u64 out) {\n"
                          "  .reg .pred %p<3>; .reg .b32 %r<3>; .reg .b64 %d;\n"
                          "  ld.param.u64 %d, [out]; mov.u32 %r1, 0; mov.u32 %r2, %tid.x;\n"
                          "MORE: mad.lo.u32 %r2, %r2, 1664525, 1013904223;\n"
                          "  add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 2000; @%p1 bra MORE;\n"
                          "  setp.eq.u32 %p2, %r2, 0; @%p2 st.global.u32 [%d], %r2;\n"
                          "  ret;\n}\n";
static double times_ns[MOST_ROUNDS];

static int rounds;

static double now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e9 * (double)now.tv_sec + (double)now.tv_nsec;
}

static void check(CUresult code, const char *what) {
    if (code != CUDA_SUCCESS) {
        fprintf(stderr, "%s: %d\n", what, code);
        exit(1);
    }
}

#define CHECK(call) check(call, #call)

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print(const char *name, int count) {
    qsort(times_ns, (size_t)count, sizeof *times_ns, compare);
    printf("\"%s\": {\"p50_ns\": %.1f, \"p99_ns\": %.1f}, ", name, times_ns[count / 2],
           times_ns[count * 99 / 100]);
}

static void launch(CUfunction nothing) {
    CHECK(cuLaunchKernel(nothing, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
}

static void time_launches(CUfunction nothing) {
    for (int i = 0; i < rounds; i++) {
        double begin = now_ns();
        launch(nothing);
        times_ns[i] = now_ns() - begin;
        if (i % BATCH == BATCH - 1)
            CHECK(cuCtxSynchronize());
    }
    print("launch", rounds);
    for (int i = 0; i < rounds; i++) {
        double begin = now_ns();
        launch(nothing);
        CHECK(cuCtxSynchronize());
        times_ns[i] = now_ns() - begin;
    }
    print("launch_and_synchronise", rounds);
    double begin = now_ns();
    for (int i = 0; i < rounds; i++)
        launch(nothing);
    CHECK(cuCtxSynchronize());
    printf("\"launches_a_second\": %.0f, ", rounds / (now_ns() - begin) * 1e9);
}

static void time_memory(void) {
    CUdeviceptr device;
    for (int i = 0; i < rounds; i++) {
        double begin = now_ns();
        CHECK(cuMemAlloc(&device, SMALL_BYTES));
        CHECK(cuMemFree(device));
        times_ns[i] = now_ns() - begin;
    }
    print("allocate_and_free", rounds);
    char *host = malloc(COPY_BYTES), *other = malloc(COPY_BYTES);
    memset(host, 1, COPY_BYTES);
    CHECK(cuMemAlloc(&device, COPY_BYTES));
    double copy_ns = 1e300, floor_ns = 1e300;
    for (int i = 0; i < 10; i++) {
        double begin = now_ns();
        CHECK(cuMemcpyHtoD(device, host, COPY_BYTES));
        double middle = now_ns();
        memcpy(other, host, COPY_BYTES);
        double end = now_ns();
        copy_ns = middle - begin < copy_ns ? middle - begin : copy_ns;
        floor_ns = end - middle < floor_ns ? end - middle : floor_ns;
    }
    CHECK(cuMemFree(device));
    printf("\"copy_gb_s\": %.2f, \"memcpy_gb_s\": %.2f", COPY_BYTES / copy_ns,
           COPY_BYTES / floor_ns);
}

/* Of 64 task blocks, some hundred microseconds each, so that the share and not the call decides. */
static void count_launches(CUmodule module, double seconds) {
    CUfunction work;
    CUdeviceptr out;
    void *parameters[] = {&out};
    long launches = 0;
    CHECK(cuModuleGetFunction(&work, module, "work"));
    CHECK(cuMemAlloc(&out, SMALL_BYTES));
    for (double end = now_ns() + 1e9 * seconds; now_ns() < end; launches++) {
        CHECK(cuLaunchKernel(work, 64, 1, 1, 256, 1, 1, 0, NULL, parameters, NULL));
        CHECK(cuCtxSynchronize());
    }
    printf("{\"launches\": %ld}\n", launches);
}

int main(int count, char **arguments) {
    CUcontext context;
    CUmodule module;
    CUfunction nothing;
    double begin = now_ns();
    rounds = count > 1 ? atoi(arguments[1]) : 0;
    if (rounds < 1 || rounds > MOST_ROUNDS) {
        fprintf(stderr, "usage: program_costs ROUNDS [SECONDS]\n");
        return 2;
    }
    CHECK(cuInit(0));
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuModuleLoadData(&module, ptx));
    CHECK(cuModuleGetFunction(&nothing, module, "nothing"));
    launch(nothing);
    CHECK(cuCtxSynchronize());
    if (count > 2) {
        count_launches(module, atof(arguments[2]));
        return 0;
    }
    printf("{\"first_launch_ms\": %.1f, ", (now_ns() - begin) / 1e6);
    time_launches(nothing);
    time_memory();
    printf("}\n");
    return 0;
}
