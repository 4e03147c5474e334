#include "lookup.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "cuda_api.h"
#include "failure.h"
#include "report.h"

/* The first function with a name; driver_function_count if there is none. */
static size_t find_name(const char *name) {
    size_t low = 0, high = driver_function_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (strcmp(driver_functions[middle].name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    bool found = low < driver_function_count && strcmp(driver_functions[low].name, name) == 0;
    return found ? low : driver_function_count;
}

/* The newest one of at most a version. */
static const struct driver_function *find(const char *name, int version, bool per_thread) {
    const struct driver_function *found = NULL;
    size_t i = find_name(name);
    for (; i < driver_function_count && strcmp(driver_functions[i].name, name) == 0; i++) {
        const struct driver_function *one = &driver_functions[i];
        if (one->version <= version && one->per_thread == (int)per_thread &&
            (found == NULL || one->version > found->version))
            found = one;
    }
    return found;
}

static CUresult look_up(const char *symbol, void **pfn, int version, cuuint64_t flags,
                        CUdriverProcAddressQueryResult *status) {
    if (symbol == NULL || pfn == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    bool per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    const struct driver_function *found = per_thread ? find(symbol, version, true) : NULL;
    if (found == NULL) /* most functions have nothing to do with streams */
        found = find(symbol, version, false);
    *pfn = NULL;
    if (found != NULL)
        memcpy(pfn, &found->function, sizeof *pfn);
    bool is_newer = found == NULL && find_name(symbol) < driver_function_count;
    if (status != NULL)
        *status = found      ? CU_GET_PROC_ADDRESS_SUCCESS
                  : is_newer ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                             : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return found ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
                          CUdriverProcAddressQueryResult *symbolStatus) {
    return look_up(symbol, pfn, cudaVersion, flags, symbolStatus);
}

EXPORTED CUresult older_cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion,
                                         cuuint64_t flags) __asm__("cuGetProcAddress");
CUresult older_cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion,
                                cuuint64_t flags) {
    return look_up(symbol, pfn, cudaVersion, flags, NULL);
}

/* NVIDIA's runtime asks here for tables that are not documented, among them one with which it finds
 * out whether the driver is NVIDIA's. This one is not. Programs that only have that runtime inside
 * and do without it run nevertheless, so what to do is said at the end of those that ran nothing. */
CUresult cuGetExportTable(const void **ppExportTable, const CUuuid *pExportTableId) {
    (void)pExportTableId;
    if (ppExportTable != NULL)
        *ppExportTable = NULL;
    report_runtime();
    return CUDA_ERROR_NOT_FOUND;
}

/* ---- what is not supported ---- */

int unsupported(const char *name);

/* Called by the generated functions; each name is said once. */
int unsupported(const char *name) {
    enum { MOST_NAMES = 64 };
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static const char *said[MOST_NAMES];
    bool is_new = true;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < MOST_NAMES; i++) {
        if (said[i] == name) {
            is_new = false;
            break;
        }
        if (said[i] == NULL) {
            said[i] = name;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    report_refusal(name);
    if (is_new)
        say("%s is not supported", name);
    return CUDA_ERROR_NOT_SUPPORTED;
}
