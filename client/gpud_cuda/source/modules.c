#include "modules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arena.h"
#include "contexts.h"
#include "failure.h"
#include "handles.h"
#include "lane.h"
#include "session.h"
#include "work.h"

/* ---- loading ---- */

static void write_log(const struct images *images, const struct reply *reply) {
    struct reader reader = reader_of(reply_bytes(reply));
    struct wire_failed failed;
    if (images->error_log_size != NULL)
        *images->error_log_size = NULL;
    if (images->error_log == NULL || images->error_log_room == 0 || reply->code != WIRE_FAILED ||
        !wire_read_failed(&reader, &failed))
        return;
    char *message = failure_message(failed.error);
    int size = snprintf(images->error_log, images->error_log_room, "%s", message ? message : "");
    if (images->error_log_size != NULL)
        *images->error_log_size = (void *)(uintptr_t)(size + 1);
    free(message);
}

static CUresult compile(struct images *images, struct reply *reply) {
    struct request request;
    struct writer frame = {0}, list = {0};
    write_array(&list, images->count);
    write_raw(&list, (struct bytes){images->list.data, images->list.size});
    request_open(&request);
    struct wire_compile message = {
        .request = request.number,
        .device = session_get()->device.index,
        .source = {"", 0},
        .images = {list.data, list.size},
    };
    wire_write_compile(&frame, &message);
    writer_free(&list);
    connection_ask(&request, &frame);
    *reply = request.reply;
    CUresult code = session_expect("a module", reply, WIRE_COMPILED);
    if (code != CUDA_SUCCESS)
        write_log(images, reply);
    return code == CUDA_ERROR_INVALID_VALUE ? CUDA_ERROR_INVALID_IMAGE : code;
}

static CUresult read_kernels(struct module *module);

CUresult module_load(struct images *images, struct module **loaded) {
    struct module *module = calloc(1, sizeof *module);
    if (module == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_init(&module->lock, NULL);
    CUresult code = compile(images, &module->reply);
    struct reader reader = reader_of(reply_bytes(&module->reply));
    if (code == CUDA_SUCCESS && !wire_read_compiled(&reader, &module->compiled))
        code = CUDA_ERROR_UNKNOWN;
    if (code == CUDA_SUCCESS) {
        module->number = module->compiled.module;
        code = read_kernels(module);
    }
    if (code == CUDA_SUCCESS && (module->handle = handle_new(HANDLE_MODULE, module)) == NULL)
        code = CUDA_ERROR_OUT_OF_MEMORY;
    if (code != CUDA_SUCCESS) {
        reply_free(&module->reply);
        free(module);
        return code;
    }
    *loaded = module;
    return CUDA_SUCCESS;
}

struct module *module_get(const void *handle) {
    return handle_get(HANDLE_MODULE, handle);
}

static void free_kernel(struct kernel *kernel) {
    handle_take(HANDLE_KERNEL, kernel->handle);
    for (size_t i = 0; i < kernel->site_count; i++)
        if (kernel->sites[i].is_prepared && !kernel->sites[i].is_job)
            sites_free(&kernel->sites[i].place);
    free(kernel->parameters);
    free(kernel->sites);
    free(kernel->name);
    free(kernel);
}

static CUresult unload(const void *handle) {
    struct writer frame = {0};
    CUresult code = session_check();
    if (code != CUDA_SUCCESS)
        return code;
    if (module_get(handle) == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    work_wait();
    struct module *module = handle_take(HANDLE_MODULE, handle);
    if (module == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    for (size_t i = 0; i < module->kernel_count; i++)
        free_kernel(module->kernels[i]);
    struct wire_unload message = {module->number};
    wire_write_unload(&frame, &message);
    connection_send(&frame);
    reply_free(&module->reply);
    free(module->kernels);
    free(module);
    return CUDA_SUCCESS;
}

/* ---- kernels, as `Compiled` lists them ---- */

static uint32_t number_of(struct bytes row, const char *key) {
    struct reader value = map_value(row, key);
    return (uint32_t)read_uint(&value);
}

static bool flag_of(struct bytes row, const char *key) {
    struct reader value = map_value(row, key);
    return read_flag(&value);
}

static char *text_of(struct bytes row, const char *key) {
    struct reader value = map_value(row, key);
    struct bytes text = read_bytes(&value);
    char *copy = malloc(text.size + 1);
    if (copy != NULL && text.size > 0)
        memcpy(copy, text.data, text.size);
    if (copy != NULL)
        copy[text.size] = 0;
    return copy;
}

/* Each is a list: name, kind, size, alignment, offset. */
static bool read_parameters(struct kernel *kernel, struct bytes row) {
    struct reader list = map_value(row, "parameters");
    kernel->parameter_count = read_array(&list);
    kernel->parameters = calloc(kernel->parameter_count + 1, sizeof *kernel->parameters);
    for (uint32_t i = 0; kernel->parameters != NULL && i < kernel->parameter_count; i++) {
        struct parameter *one = &kernel->parameters[i];
        read_array(&list);
        read_bytes(&list);
        read_bytes(&list);
        one->size = (uint32_t)read_uint(&list);
        read_uint(&list);
        one->offset = (uint32_t)read_uint(&list);
        if (one->offset + one->size > kernel->parameter_bytes)
            kernel->parameter_bytes = one->offset + one->size;
    }
    return kernel->parameters != NULL && !list.failed;
}

static struct kernel *read_kernel(struct module *module, uint32_t index, struct bytes row) {
    struct kernel *kernel = calloc(1, sizeof *kernel);
    if (kernel == NULL)
        return NULL;
    pthread_mutex_init(&kernel->lock, NULL);
    kernel->module = module;
    kernel->index = index;
    kernel->name = text_of(row, "entry");
    kernel->shared_bytes = number_of(row, "shared_bytes");
    kernel->max_threads = number_of(row, "max_threads");
    kernel->is_cooperative = flag_of(row, "cooperative");
    kernel->dynamic_shared_limit = (48 << 10) - (int)kernel->shared_bytes;
    kernel->handle = handle_new(HANDLE_KERNEL, kernel);
    if (kernel->name == NULL || kernel->handle == NULL || !read_parameters(kernel, row)) {
        free_kernel(kernel);
        return NULL;
    }
    return kernel;
}

static CUresult read_kernels(struct module *module) {
    struct reader list = reader_of(module->compiled.kernels);
    uint32_t count = read_array(&list);
    module->kernels = calloc(count + 1, sizeof *module->kernels);
    if (module->kernels == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (uint32_t i = 0; i < count; i++) {
        struct bytes row = read_packed(&list);
        struct kernel *kernel = list.failed ? NULL : read_kernel(module, i, row);
        if (kernel == NULL)
            return CUDA_ERROR_OUT_OF_MEMORY;
        module->kernels[module->kernel_count++] = kernel;
    }
    return CUDA_SUCCESS;
}

/* Why gpud cannot run a kernel is said when the program asks for it. */
static CUresult check_rejection(const struct kernel *kernel) {
    struct reader list = reader_of(kernel->module->compiled.kernels);
    read_array(&list);
    for (uint32_t i = 0; i < kernel->index; i++)
        read_packed(&list);
    struct reader value = map_value(read_packed(&list), "rejected");
    if (value.failed || read_nil(&value))
        return CUDA_SUCCESS;
    return failure_said(kernel->name, read_packed(&value), CUDA_ERROR_NOT_SUPPORTED);
}

static CUresult find_kernel(const void *handle, const char *name, CUfunction *found) {
    CUresult code = context_enter();
    if (code != CUDA_SUCCESS)
        return code;
    struct module *module = module_get(handle);
    if (module == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (found == NULL || name == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < module->kernel_count; i++) {
        struct kernel *kernel = module->kernels[i];
        if (strcmp(kernel->name, name) != 0)
            continue;
        code = check_rejection(kernel);
        if (code == CUDA_SUCCESS)
            *found = kernel->handle;
        return code;
    }
    return CUDA_ERROR_NOT_FOUND;
}

static CUresult list_kernels(const void *handle, CUfunction *kernels, unsigned count) {
    struct module *module = module_get(handle);
    if (module == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (kernels == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < module->kernel_count && i < count; i++)
        kernels[i] = module->kernels[i]->handle;
    return CUDA_SUCCESS;
}

static CUresult count_kernels(const void *handle, unsigned *count) {
    struct module *module = module_get(handle);
    if (module == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (count == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *count = (unsigned)module->kernel_count;
    return CUDA_SUCCESS;
}

/* ---- variables ---- */

static CUresult find_variable(const void *handle, const char *name, CUdeviceptr *address,
                              size_t *bytes) {
    CUresult code = context_enter();
    if (code != CUDA_SUCCESS)
        return code;
    const struct module *module = module_get(handle);
    if (module == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (name == NULL || (address == NULL && bytes == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    struct reader place = map_value(module->compiled.addresses, name);
    struct reader size = map_value(module->compiled.symbols, name);
    CUdeviceptr found = read_uint(&place);
    size_t found_bytes = read_uint(&size);
    if (place.failed || size.failed)
        return CUDA_ERROR_NOT_FOUND;
    arena_note_foreign(found, found_bytes);
    if (address != NULL)
        *address = found;
    if (bytes != NULL)
        *bytes = found_bytes;
    return CUDA_SUCCESS;
}

/* ---- cuModule*, cuLibrary* ---- */

static CUresult load(void **handle, const void *image, unsigned count, CUjit_option *options,
                     void **values) {
    struct images images = {0};
    struct module *module;
    CUresult code = context_enter();
    if (code != CUDA_SUCCESS)
        return code;
    if (handle == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    images_take_options(&images, count, options, values);
    code = images_add(&images, image, 0);
    if (code == CUDA_SUCCESS)
        code = module_load(&images, &module);
    if (code == CUDA_SUCCESS)
        *handle = module->handle;
    images_free(&images);
    return code;
}

static CUresult load_file(void **handle, const char *path, unsigned count, CUjit_option *options,
                          void **values) {
    size_t size = 0;
    CUresult code = context_enter();
    if (code != CUDA_SUCCESS)
        return code;
    char *data = images_read_file(path, &size);
    if (data == NULL)
        return CUDA_ERROR_FILE_NOT_FOUND;
    code = load(handle, data, count, options, values);
    free(data);
    return code;
}

CUresult cuModuleLoad(CUmodule *module, const char *fname) {
    return load_file((void **)module, fname, 0, NULL, NULL);
}

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    return load((void **)module, image, 0, NULL, NULL);
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int numOptions,
                            CUjit_option *options, void **optionValues) {
    return load((void **)module, image, numOptions, options, optionValues);
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *fatCubin) {
    return load((void **)module, fatCubin, 0, NULL, NULL);
}

CUresult cuModuleUnload(CUmodule hmod) {
    return unload(hmod);
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode) {
    if (mode == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *mode = CU_MODULE_EAGER_LOADING;
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *hfunc, CUmodule hmod, const char *name) {
    return find_kernel(hmod, name, hfunc);
}

CUresult cuModuleGetFunctionCount(unsigned int *count, CUmodule mod) {
    return count_kernels(mod, count);
}

CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned int numFunctions,
                                    CUmodule mod) {
    return list_kernels(mod, functions, numFunctions);
}

CUresult cuModuleGetGlobal(CUdeviceptr *dptr, size_t *bytes, CUmodule hmod, const char *name) {
    return find_variable(hmod, name, dptr, bytes);
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jitOptions,
                           void **jitOptionsValues, unsigned int numJitOptions,
                           CUlibraryOption *libraryOptions, void **libraryOptionValues,
                           unsigned int numLibraryOptions) {
    (void)libraryOptions, (void)libraryOptionValues, (void)numLibraryOptions;
    return load((void **)library, code, numJitOptions, jitOptions, jitOptionsValues);
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *fileName, CUjit_option *jitOptions,
                               void **jitOptionsValues, unsigned int numJitOptions,
                               CUlibraryOption *libraryOptions, void **libraryOptionValues,
                               unsigned int numLibraryOptions) {
    (void)libraryOptions, (void)libraryOptionValues, (void)numLibraryOptions;
    return load_file((void **)library, fileName, numJitOptions, jitOptions, jitOptionsValues);
}

CUresult cuLibraryUnload(CUlibrary library) {
    return unload(library);
}

CUresult cuLibraryGetKernel(CUkernel *pKernel, CUlibrary library, const char *name) {
    return find_kernel(library, name, (CUfunction *)pKernel);
}

CUresult cuLibraryGetKernelCount(unsigned int *count, CUlibrary lib) {
    return count_kernels(lib, count);
}

CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int numKernels, CUlibrary lib) {
    return list_kernels(lib, (CUfunction *)kernels, numKernels);
}

CUresult cuLibraryGetModule(CUmodule *pMod, CUlibrary library) {
    if (module_get(library) == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (pMod == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *pMod = (CUmodule)library;
    return CUDA_SUCCESS;
}

CUresult cuLibraryGetGlobal(CUdeviceptr *dptr, size_t *bytes, CUlibrary library,
                            const char *name) {
    return find_variable(library, name, dptr, bytes);
}

CUresult cuLibraryGetManaged(CUdeviceptr *dptr, size_t *bytes, CUlibrary library,
                             const char *name) {
    return find_variable(library, name, dptr, bytes);
}

CUresult cuKernelGetFunction(CUfunction *pFunc, CUkernel kernel) {
    if (kernel_get(kernel) == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (pFunc == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *pFunc = (CUfunction)kernel;
    return CUDA_SUCCESS;
}

CUresult cuKernelGetLibrary(CUlibrary *pLib, CUkernel kernel) {
    const struct kernel *found = kernel_get(kernel);
    if (found == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (pLib == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *pLib = (CUlibrary)found->module->handle;
    return CUDA_SUCCESS;
}

CUresult cuFuncGetModule(CUmodule *hmod, CUfunction hfunc) {
    return cuKernelGetLibrary((CUlibrary *)hmod, (CUkernel)hfunc);
}
