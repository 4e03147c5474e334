/* Fat binaries, and the kernels and variables in them, which compiled programs register as they
 * start. A fat binary is loaded when something of it is first used. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

enum { BUCKETS = 1024, PRELINKED_VERSION = 2 };

struct wrapper {
    uint32_t magic, version;
    const void *data;
    const void *const *prelinked; /* version 2: further containers, with NULL behind the last */
};

struct fat_header {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t bytes;
};

struct binary {
    const struct wrapper *wrapper;
    CUmodule module;
    CUresult code; /* why it could not be loaded */
    bool is_loaded;
};

struct entry {
    const void *host; /* the stub of a kernel, or the shadow of a variable */
    struct binary *binary;
    const char *name; /* the program's */
    CUfunction function;
    CUdeviceptr address;
    size_t size;
    struct entry *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct entry *buckets[BUCKETS];

static struct entry **bucket_of(const void *host) {
    return &buckets[((uintptr_t)host >> 4) % BUCKETS];
}

/* With the lock. */
static struct entry *find(const void *host) {
    struct entry *entry = *bucket_of(host);
    while (entry != NULL && entry->host != host)
        entry = entry->next;
    return entry;
}

static void add(void **handle, const void *host, const char *name) {
    struct entry *entry = calloc(1, sizeof *entry);
    if (entry == NULL)
        return; /* it is not found later: an error that the program sees */
    *entry = (struct entry){.host = host, .binary = (struct binary *)handle, .name = name};
    pthread_mutex_lock(&lock);
    struct entry **bucket = bucket_of(host);
    entry->next = *bucket;
    *bucket = entry;
    pthread_mutex_unlock(&lock);
}

static CUresult add_to_link(CUlinkState link, const void *container) {
    struct fat_header header;
    memcpy(&header, container, sizeof header);
    return cuLinkAddData(link, CU_JIT_INPUT_FATBINARY, (void *)container,
                         header.header_bytes + header.bytes, "registered", 0, NULL, NULL);
}

/* Links what was compiled separately. */
static CUresult load_linked(struct binary *binary) {
    CUlinkState link;
    void *image;
    size_t size;
    CUresult code = cuLinkCreate(0, NULL, NULL, &link);
    if (code != CUDA_SUCCESS)
        return code;
    for (const void *const *one = binary->wrapper->prelinked; code == CUDA_SUCCESS && *one; one++)
        code = add_to_link(link, *one);
    if (code == CUDA_SUCCESS)
        code = cuLinkComplete(link, &image, &size);
    if (code == CUDA_SUCCESS)
        code = cuModuleLoadData(&binary->module, image);
    cuLinkDestroy(link);
    return code;
}

/* With the lock. */
static CUresult load(struct binary *binary) {
    if (binary->is_loaded)
        return binary->code;
    bool linked = binary->wrapper->version == PRELINKED_VERSION && binary->wrapper->prelinked;
    binary->code = linked ? load_linked(binary)
                          : cuModuleLoadData(&binary->module, binary->wrapper->data);
    binary->is_loaded = true;
    return binary->code;
}

CUresult find_function(const void *stub, CUfunction *function) {
    CUresult code = runtime_enter();
    if (code != CUDA_SUCCESS)
        return code;
    pthread_mutex_lock(&lock);
    struct entry *entry = find(stub);
    code = entry ? load(entry->binary) : (CUresult)cudaErrorInvalidDeviceFunction;
    if (code == CUDA_SUCCESS && entry->function == NULL) {
        code = cuModuleGetFunction(&entry->function, entry->binary->module, entry->name);
        if (code == CUDA_ERROR_NOT_FOUND)
            code = (CUresult)cudaErrorInvalidDeviceFunction;
    }
    if (code == CUDA_SUCCESS)
        *function = entry->function;
    pthread_mutex_unlock(&lock);
    return code;
}

CUresult find_variable(const void *shadow, CUdeviceptr *address, size_t *size) {
    CUresult code = runtime_enter();
    if (code != CUDA_SUCCESS)
        return code;
    pthread_mutex_lock(&lock);
    struct entry *entry = find(shadow);
    code = entry ? load(entry->binary) : (CUresult)cudaErrorInvalidSymbol;
    if (code == CUDA_SUCCESS && entry->address == 0) {
        code = cuModuleGetGlobal(&entry->address, &entry->size, entry->binary->module, entry->name);
        if (code == CUDA_ERROR_NOT_FOUND)
            code = (CUresult)cudaErrorInvalidSymbol;
    }
    if (code == CUDA_SUCCESS) {
        *address = entry->address;
        *size = entry->size;
    }
    pthread_mutex_unlock(&lock);
    return code;
}

/* ---- what the compiler's code calls ---- */

EXPORTED void **__cudaRegisterFatBinary(void *wrapper);
EXPORTED void __cudaRegisterFatBinaryEnd(void **handle);
EXPORTED void __cudaUnregisterFatBinary(void **handle);
EXPORTED char __cudaInitModule(void **handle);
EXPORTED void __cudaRegisterFunction(void **handle, const char *stub, char *device_function,
                                     const char *name, int thread_limit, uint3 *tid, uint3 *bid,
                                     dim3 *block, dim3 *grid, int *warp_size);
EXPORTED void __cudaRegisterVar(void **handle, char *shadow, char *device_address,
                                const char *name, int is_extern, size_t size, int is_constant,
                                int is_global);
EXPORTED void __cudaRegisterManagedVar(void **handle, void **shadow, char *device_address,
                                       const char *name, int is_extern, size_t size,
                                       int is_constant, int is_global);
EXPORTED cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *stub);

void **__cudaRegisterFatBinary(void *wrapper) {
    struct binary *binary = calloc(1, sizeof *binary);
    if (binary == NULL)
        abort();
    binary->wrapper = wrapper;
    return (void **)binary;
}

void __cudaRegisterFatBinaryEnd(void **handle) {
    (void)handle;
}

/* As the program ends, or unloads a library. */
void __cudaUnregisterFatBinary(void **handle) {
    struct binary *binary = (struct binary *)handle;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < BUCKETS; i++) {
        for (struct entry **at = &buckets[i]; *at != NULL;) {
            struct entry *entry = *at;
            if (entry->binary != binary) {
                at = &entry->next;
                continue;
            }
            *at = entry->next;
            free(entry);
        }
    }
    pthread_mutex_unlock(&lock);
    free(binary);
}

char __cudaInitModule(void **handle) {
    (void)handle;
    return 1;
}

void __cudaRegisterFunction(void **handle, const char *stub, char *device_function,
                            const char *name, int thread_limit, uint3 *tid, uint3 *bid,
                            dim3 *block, dim3 *grid, int *warp_size) {
    (void)device_function, (void)thread_limit, (void)tid, (void)bid, (void)block, (void)grid;
    (void)warp_size;
    add(handle, stub, name);
}

void __cudaRegisterVar(void **handle, char *shadow, char *device_address, const char *name,
                       int is_extern, size_t size, int is_constant, int is_global) {
    (void)device_address, (void)is_extern, (void)size, (void)is_constant, (void)is_global;
    add(handle, shadow, name);
}

/* The host reads and writes it through `shadow`: its address is needed before main. */
void __cudaRegisterManagedVar(void **handle, void **shadow, char *device_address,
                              const char *name, int is_extern, size_t size, int is_constant,
                              int is_global) {
    CUdeviceptr address;
    (void)device_address, (void)is_extern, (void)is_constant, (void)is_global;
    add(handle, shadow, name);
    if (find_variable(shadow, &address, &size) == CUDA_SUCCESS)
        *shadow = (void *)address;
}

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *stub) {
    CUfunction function = NULL;
    CUresult code = find_function(stub, &function);
    *kernel = (cudaKernel_t)function;
    return runtime_done(code);
}

cudaError_t cudaGetFuncBySymbol(cudaFunction_t *function, const void *symbol) {
    return runtime_done(find_function(symbol, (CUfunction *)function));
}

cudaError_t cudaGetSymbolAddress(void **address, const void *symbol) {
    size_t size;
    return runtime_done(find_variable(symbol, (CUdeviceptr *)address, &size));
}

cudaError_t cudaGetSymbolSize(size_t *size, const void *symbol) {
    CUdeviceptr address;
    return runtime_done(find_variable(symbol, &address, size));
}
