/* A libcuda of our own for the real bindings: does what cuda.h says, in host memory.
 *
 * Work on a stream is done at once, but for kernels whose names begin with "slow": these run
 * in a thread, claim a task block every 50 us, and events recorded behind them wait for them. As
 * was seen on a GPU, a load waits until no kernel runs, and blocks all other calls.
 */
#define _GNU_SOURCE
#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SMS = 8, PAGE = 1 << 21 };
enum { NEXT = 0, TOTAL = 1, DONE = 14 };  /* words of the job record, */
enum { SM = 2 };                         /* of the status record, */
enum { STATUS = 1, STAYS = 6 };          /* and of the launch record, the first in pairs */

typedef struct { int sms[SMS], count; } Places;
typedef struct Node { char name[64]; unsigned blocks; void **values, *to; CUdeviceptr from; size_t size;
                      struct Node *next; } Node;
typedef struct { Node *first, **last; } Graph;
typedef struct { Places *places; volatile int busy; CUhostFn then; void *with; Graph *captured; } Stream;
typedef struct { Stream *stream; } Event;
typedef struct { char name[64]; } Function;
typedef struct { Stream *stream; volatile uint32_t *control, *status, *job; unsigned blocks; } Slow;

static pthread_mutex_t calls = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t ends = PTHREAD_MUTEX_INITIALIZER;  /* busy, then and with of all streams */
static volatile int running;
static __thread int entered;
static Places everywhere = {{0, 1, 2, 3, 4, 5, 6, 7}, SMS};
static Stream null_stream = {&everywhere};

#define ENTER                                               \
    if (!entered) return CUDA_ERROR_INVALID_CONTEXT;        \
    pthread_mutex_lock(&calls);                             \
    pthread_mutex_unlock(&calls)
#define CALL(name, ...) CUresult CUDAAPI name(__VA_ARGS__)
#define DONE_OK { return CUDA_SUCCESS; }

static Stream *of(CUstream stream) { return stream ? (Stream *)stream : &null_stream; }
static void *memory(size_t size) { return aligned_alloc(4096, (size + 4095) / 4096 * 4096); }

CALL(cuInit, unsigned flags) DONE_OK
CALL(cuDriverGetVersion, int *version) { *version = CUDA_VERSION; return CUDA_SUCCESS; }
CALL(cuDeviceGetCount, int *count) { *count = 1; return CUDA_SUCCESS; }
CALL(cuDeviceGet, CUdevice *device, int index) { *device = index; return CUDA_SUCCESS; }
CALL(cuDeviceGetName, char *name, int size, CUdevice device) {
    snprintf(name, size, "Model");
    return CUDA_SUCCESS;
}
CALL(cuDeviceGetUuid, CUuuid *uuid, CUdevice device) {
    for (int i = 0; i < 16; i++) uuid->bytes[i] = (char)(17 * i);
    return CUDA_SUCCESS;
}
CALL(cuDeviceTotalMem, size_t *size, CUdevice device) { *size = 1ull << 36; return CUDA_SUCCESS; }
CALL(cuDeviceGetAttribute, int *value, CUdevice_attribute which, CUdevice device) {
    *value = which == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT ? SMS
           : which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? 9
           : which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR ? 0
           : which == CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN ? 232448
           : which == CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR ? 2048 : 1;
    return CUDA_SUCCESS;
}

CALL(cuDevicePrimaryCtxSetFlags, CUdevice device, unsigned flags) DONE_OK
CALL(cuDevicePrimaryCtxRetain, CUcontext *context, CUdevice device) {
    *context = (CUcontext)16;
    return CUDA_SUCCESS;
}
CALL(cuDevicePrimaryCtxRelease, CUdevice device) DONE_OK
CALL(cuCtxSetCurrent, CUcontext context) { entered = 1; return CUDA_SUCCESS; }
CALL(cuCtxSetLimit, CUlimit which, size_t value) DONE_OK
CALL(cuCtxGetStreamPriorityRange, int *least, int *most) {
    *least = 0, *most = -5;
    return CUDA_SUCCESS;
}
CALL(cuCtxSynchronize, void) { while (running) usleep(50); return CUDA_SUCCESS; }
CALL(cuMemGetInfo, size_t *left, size_t *all) { *left = *all = 1ull << 36; return CUDA_SUCCESS; }

CALL(cuMemHostAlloc, void **at, size_t size, unsigned flags) {
    *at = memory(size);
    return CUDA_SUCCESS;
}
CALL(cuMemFreeHost, void *at) { free(at); return CUDA_SUCCESS; }
CALL(cuMemAlloc, CUdeviceptr *at, size_t size) {
    *at = (CUdeviceptr)memory(size);
    return CUDA_SUCCESS;
}
CALL(cuMemFree, CUdeviceptr at) { free((void *)at); return CUDA_SUCCESS; }
CALL(cuMemcpyHtoD, CUdeviceptr to, const void *from, size_t size) {
    ENTER;
    memcpy((void *)to, from, size);
    return CUDA_SUCCESS;
}
CALL(cuMemcpyDtoH, void *to, CUdeviceptr from, size_t size) {
    ENTER;
    memcpy(to, (void *)from, size);
    return CUDA_SUCCESS;
}
CALL(cuMemcpyHtoDAsync, CUdeviceptr to, const void *from, size_t size, CUstream stream) {
    return cuMemcpyHtoD(to, from, size);
}
static CUresult captured(Stream *stream, Node node) {
    *stream->captured->last = memcpy(malloc(sizeof node), &node, sizeof node);
    stream->captured->last = &(*stream->captured->last)->next;
    return CUDA_SUCCESS;
}
CALL(cuMemcpyDtoHAsync, void *to, CUdeviceptr from, size_t size, CUstream stream) {
    if (of(stream)->captured)
        return captured(of(stream), (Node){.to = to, .from = from, .size = size});
    return cuMemcpyDtoH(to, from, size);
}
CALL(cuMemsetD8, CUdeviceptr at, unsigned char value, size_t size) {
    memset((void *)at, value, size);
    return CUDA_SUCCESS;
}
CALL(cuMemsetD32Async, CUdeviceptr at, unsigned value, size_t count, CUstream stream) {
    while (count--) ((uint32_t *)at)[count] = value;
    return CUDA_SUCCESS;
}
CALL(cuStreamWriteValue32, CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned flags) {
    *(volatile uint32_t *)at = value;
    return CUDA_SUCCESS;
}

CALL(cuMemGetAllocationGranularity, size_t *size, const CUmemAllocationProp *wanted,
     CUmemAllocationGranularity_flags which) {
    *size = PAGE;
    return CUDA_SUCCESS;
}
CALL(cuMemAddressReserve, CUdeviceptr *at, size_t size, size_t align, CUdeviceptr wanted,
     unsigned long long flags) {
    *at = (CUdeviceptr)aligned_alloc(PAGE, size);
    return CUDA_SUCCESS;
}
CALL(cuMemAddressFree, CUdeviceptr at, size_t size) { free((void *)at); return CUDA_SUCCESS; }
CALL(cuMemCreate, CUmemGenericAllocationHandle *handle, size_t size,
     const CUmemAllocationProp *wanted, unsigned long long flags) {
    *handle = 1;
    return wanted->type == CU_MEM_ALLOCATION_TYPE_PINNED
        && wanted->location.type == CU_MEM_LOCATION_TYPE_DEVICE
        && wanted->location.id == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CALL(cuMemRelease, CUmemGenericAllocationHandle handle) DONE_OK
CALL(cuMemMap, CUdeviceptr at, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
     unsigned long long flags) DONE_OK
CALL(cuMemUnmap, CUdeviceptr at, size_t size) DONE_OK
CALL(cuMemSetAccess, CUdeviceptr at, size_t size, const CUmemAccessDesc *access, size_t count) {
    return count == 1 && access->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        && access->location.type == CU_MEM_LOCATION_TYPE_DEVICE
        ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Programs are their text, and so is their machine code. */
CALL(cuLinkCreate, unsigned count, CUjit_option *options, void **values, CUlinkState *state) {
    *state = calloc(1, sizeof(char *));
    return CUDA_SUCCESS;
}
CALL(cuLinkAddData, CUlinkState state, CUjitInputType kind, void *text, size_t size,
     const char *name, unsigned count, CUjit_option *options, void **values) {
    if (kind != CU_JIT_INPUT_PTX || strlen(text) + 1 != size) return CUDA_ERROR_INVALID_VALUE;
    if (strstr(text, "refuse_me")) return CUDA_ERROR_INVALID_PTX;
    *(char **)state = strdup(text);
    return CUDA_SUCCESS;
}
CALL(cuLinkComplete, CUlinkState state, void **code, size_t *size) {
    *code = *(char **)state;
    *size = strlen(*code) + 1;
    return CUDA_SUCCESS;
}
CALL(cuLinkDestroy, CUlinkState state) {
    free(*(char **)state);
    free(state);
    return CUDA_SUCCESS;
}
CALL(cuModuleLoadDataEx, CUmodule *module, const void *code, unsigned count, CUjit_option *options,
     void **values) {
    if (!entered) return CUDA_ERROR_INVALID_CONTEXT;
    for (unsigned i = 0; i < count && strstr(code, "refuse_me"); i++)
        if (options[i] == CU_JIT_ERROR_LOG_BUFFER) {
            strcpy(values[i], "ptxas fatal: refused");
            return CUDA_ERROR_INVALID_PTX;
        }
    pthread_mutex_lock(&calls);
    while (running) usleep(50);
    pthread_mutex_unlock(&calls);
    *module = (CUmodule)strdup(code);
    return CUDA_SUCCESS;
}
CALL(cuModuleUnload, CUmodule module) { free(module); return CUDA_SUCCESS; }
CALL(cuModuleGetFunction, CUfunction *function, CUmodule module, const char *name) {
    Function *made = calloc(1, sizeof *made);
    snprintf(made->name, sizeof made->name, "%s", name);
    *function = (CUfunction)made;
    return strstr((char *)module, name) ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
CALL(cuModuleGetGlobal, CUdeviceptr *at, size_t *size, CUmodule module, const char *name) {
    *at = (CUdeviceptr)memory(*size = 4096);
    return strstr((char *)module, name) ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
CALL(cuFuncGetAttribute, int *value, CUfunction_attribute which, CUfunction function) {
    *value = which == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
    return CUDA_SUCCESS;
}
CALL(cuFuncSetAttribute, CUfunction function, CUfunction_attribute which, int value) DONE_OK
CALL(cuOccupancyMaxActiveBlocksPerMultiprocessor, int *blocks, CUfunction function, int threads,
     size_t shared) {
    *blocks = 2;
    return CUDA_SUCCESS;
}

static Stream *made_stream(Places *places) {
    Stream *stream = calloc(1, sizeof *stream);
    stream->places = places;
    return stream;
}
CALL(cuStreamCreateWithPriority, CUstream *stream, unsigned flags, int priority) {
    *stream = (CUstream)made_stream(&everywhere);
    return flags == CU_STREAM_NON_BLOCKING ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CALL(cuStreamDestroy, CUstream stream) { free(stream); return CUDA_SUCCESS; }
CALL(cuStreamSynchronize, CUstream stream) {
    ENTER;
    while (of(stream)->busy) usleep(50);
    return CUDA_SUCCESS;
}
CALL(cuStreamWaitEvent, CUstream stream, CUevent event, unsigned flags) DONE_OK
CALL(cuEventCreate, CUevent *event, unsigned flags) {
    *event = calloc(1, sizeof(Event));
    return CUDA_SUCCESS;
}
CALL(cuEventDestroy, CUevent event) { free(event); return CUDA_SUCCESS; }
CALL(cuEventRecord, CUevent event, CUstream stream) {
    ENTER;
    ((Event *)event)->stream = of(stream)->busy ? of(stream) : NULL;
    return CUDA_SUCCESS;
}
CALL(cuEventQuery, CUevent event) {
    ENTER;
    Stream *stream = ((Event *)event)->stream;
    return stream && stream->busy ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}
CALL(cuEventSynchronize, CUevent event) {
    while (cuEventQuery(event) == CUDA_ERROR_NOT_READY) usleep(50);
    return CUDA_SUCCESS;
}
CALL(cuLaunchHostFunc, CUstream stream, CUhostFn function, void *with) {
    ENTER;
    Stream *on = of(stream);
    pthread_mutex_lock(&ends);
    int busy = on->busy;
    if (busy) on->with = with, on->then = function;
    pthread_mutex_unlock(&ends);
    if (!busy) function(with);
    return CUDA_SUCCESS;
}

static void *run_slowly(void *given) {
    Slow *slow = given;
    slow->status[SM] = 1;
    while (slow->control[STAYS] && slow->job[NEXT] < slow->job[TOTAL]) {
        slow->job[NEXT]++;
        usleep(50);
        slow->job[DONE]++;
    }
    memset((char *)(slow->status + SM) + 2 * slow->blocks, 1, slow->blocks);  /* they have left */
    Stream *stream = slow->stream;
    pthread_mutex_lock(&ends);
    void *with = stream->with;
    CUhostFn then = stream->then;
    stream->then = NULL;
    stream->busy = 0;  /* from here on the stream may be destroyed */
    pthread_mutex_unlock(&ends);
    if (then) then(with);
    __sync_fetch_and_sub(&running, 1);
    free(slow);
    return NULL;
}

static CUresult launched(const char *name, unsigned blocks, Stream *stream, void **values) {
    if (stream->captured) {  /* whoever captures it keeps the values */
        Node node = {.blocks = blocks, .values = values};
        strcpy(node.name, name);
        return captured(stream, node);
    }
    uint64_t first = *(uint64_t *)values[0];
    if (!strcmp(name, "gpud_gate")) {
        uint32_t *before = *(uint32_t **)values[1], *words = *(uint32_t **)values[2];
        if (before && before[DONE] != before[TOTAL]) return CUDA_SUCCESS;
        *(uint32_t *)first = 0;
        *words = *(uint32_t *)values[3];
    } else if (!strcmp(name, "gpud_probe")) {
        for (int i = 0; i < stream->places->count; i++)
            ((uint32_t *)(first + 64))[stream->places->sms[i]] = 1;
    } else if (!strncmp(name, "slow", 4) || !strncmp(name, "persistent", 10)) {
        uint32_t *control = *(uint32_t **)values[2];  /* values[1]: what is passed by value */
        Slow *slow = malloc(sizeof *slow);
        uint32_t **records = (uint32_t **)control;
        *slow = (Slow){stream, control, records[STATUS], records[0], blocks};
        stream->busy = 1;
        __sync_fetch_and_add(&running, 1);
        if (*name == 'p') {
            slow->job[DONE] = slow->job[NEXT] = slow->job[TOTAL];
            run_slowly(slow);
        } else {
            pthread_t thread;
            pthread_create(&thread, NULL, run_slowly, slow);
            pthread_detach(thread);
        }
    }
    return CUDA_SUCCESS;
}
CALL(cuLaunchKernel, CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
     unsigned by, unsigned bz, unsigned shared, CUstream stream, void **values, void **extra) {
    ENTER;
    return launched(((Function *)function)->name, gx, of(stream), values);
}

/* A graph is launched as its nodes one after the other. */
CALL(cuStreamBeginCapture, CUstream stream, CUstreamCaptureMode mode) {
    Graph *graph = of(stream)->captured = calloc(1, sizeof *graph);
    graph->last = &graph->first;
    return CUDA_SUCCESS;
}
CALL(cuStreamEndCapture, CUstream stream, CUgraph *graph) {
    *graph = (CUgraph)of(stream)->captured;
    of(stream)->captured = NULL;
    return *graph ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_STATE;
}
CALL(cuGraphInstantiate, CUgraphExec *made, CUgraph graph, unsigned long long flags) {
    *made = memcpy(malloc(sizeof(Graph)), graph, sizeof(Graph));
    return CUDA_SUCCESS;
}
CALL(cuGraphDestroy, CUgraph graph) { free(graph); return CUDA_SUCCESS; }
CALL(cuGraphExecDestroy, CUgraphExec graph) { free(graph); return CUDA_SUCCESS; }
CALL(cuGraphLaunch, CUgraphExec graph, CUstream stream) {
    ENTER;
    for (Node *node = ((Graph *)graph)->first; node; node = node->next)
        if (node->to) memcpy(node->to, (void *)node->from, node->size);
        else launched(node->name, node->blocks, of(stream), node->values);
    return CUDA_SUCCESS;
}

CALL(cuLaunchCooperativeKernel, CUfunction function, unsigned gx, unsigned gy, unsigned gz,
     unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream stream, void **values) {
    ENTER;
    return launched(((Function *)function)->name, gx, of(stream), values);
}

/* A resource of SMs has their bits in its padding, as the driver keeps what it knows there. */
CALL(cuDeviceGetDevResource, CUdevice device, CUdevResource *all, CUdevResourceType kind) {
    memset(all, 0, sizeof *all);
    all->type = kind;
    all->sm.smCount = SMS;
#if CUDA_VERSION >= 13000
    all->sm.minSmPartitionSize = all->sm.smCoscheduledAlignment = 2;
#endif
    all->_internal_padding[0] = (unsigned char)((1 << SMS) - 1);
    return CUDA_SUCCESS;
}
CALL(cuDevSmResourceSplitByCount, CUdevResource *groups, unsigned *count,
     const CUdevResource *all, CUdevResource *rest, unsigned flags, unsigned least) {
    unsigned most = all->sm.smCount / least;
    if (*count > most) *count = most;
    for (unsigned i = 0; i < *count; i++) {
        groups[i] = *all;
        groups[i].sm.smCount = least;
        groups[i]._internal_padding[0] = (unsigned char)(((1 << least) - 1) << i * least);
    }
    *rest = *all;
    rest->sm.smCount = all->sm.smCount - *count * least;
    rest->_internal_padding[0] = 0;
    return CUDA_SUCCESS;
}
CALL(cuDevResourceGenerateDesc, CUdevResourceDesc *described, CUdevResource *some, unsigned count) {
    Places *places = calloc(1, sizeof *places);
    for (unsigned i = 0; i < count; i++)
        for (int sm = 0; sm < SMS; sm++)
            if (some[i]._internal_padding[0] >> sm & 1) places->sms[places->count++] = sm;
    *described = (CUdevResourceDesc)places;
    return CUDA_SUCCESS;
}
CALL(cuGreenCtxCreate, CUgreenCtx *green, CUdevResourceDesc described, CUdevice device,
     unsigned flags) {
    *green = (CUgreenCtx)described;
    return CUDA_SUCCESS;
}
CALL(cuGreenCtxDestroy, CUgreenCtx green) { free(green); return CUDA_SUCCESS; }
CALL(cuGreenCtxStreamCreate, CUstream *stream, CUgreenCtx green, unsigned flags, int priority) {
    *stream = (CUstream)made_stream((Places *)green);
    return CUDA_SUCCESS;
}

/* The bindings find all other functions by this; cuda.h may rename one to a version. */
CALL(cuGetProcAddress_v2, const char *name, void **found, int version, cuuint64_t flags,
     CUdriverProcAddressQueryResult *status) {
    static const char *const tails[] = {"", "_v2", "_v3", "WithFlags"};
    Dl_info here;
    dladdr((void *)made_stream, &here);
    void *self = dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    *found = NULL;
    for (int i = 0; i < 4 && !*found; i++) {
        char full[128];
        snprintf(full, sizeof full, "%s%s", name, tails[i]);
        *found = dlsym(self, full);
    }
    if (status) *status = *found ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return CUDA_SUCCESS;
}
