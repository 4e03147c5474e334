/* cuLink*: the inputs are kept, and sent together when the result is loaded.
 *
 * The driver's linker makes machine code, which is then loaded as a module. Here the "machine code"
 * is all inputs in one piece that only this library reads: they are linked by the daemon. */
#include <stdlib.h>
#include <string.h>

#include "contexts.h"
#include "handles.h"
#include "modules.h"

struct link {
    struct images images;
    struct writer result;
};

CUresult cuLinkCreate(unsigned int numOptions, CUjit_option *options, void **optionValues,
                      CUlinkState *stateOut) {
    CUresult code = context_enter();
    if (code != CUDA_SUCCESS)
        return code;
    if (stateOut == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    struct link *link = calloc(1, sizeof *link);
    if (link == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    images_take_options(&link->images, numOptions, options, optionValues);
    *stateOut = handle_new(HANDLE_LINK, link);
    return *stateOut ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuLinkAddData(CUlinkState state, CUjitInputType type, void *data, size_t size,
                       const char *name, unsigned int numOptions, CUjit_option *options,
                       void **optionValues) {
    (void)type, (void)name, (void)numOptions, (void)options, (void)optionValues;
    CUresult code = context_enter();
    if (code != CUDA_SUCCESS)
        return code;
    struct link *link = handle_get(HANDLE_LINK, state);
    if (link == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    return size ? images_add(&link->images, data, size) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuLinkAddFile(CUlinkState state, CUjitInputType type, const char *path,
                       unsigned int numOptions, CUjit_option *options, void **optionValues) {
    size_t size = 0;
    char *data = images_read_file(path, &size);
    if (data == NULL)
        return CUDA_ERROR_FILE_NOT_FOUND;
    CUresult code = cuLinkAddData(state, type, data, size, path, numOptions, options, optionValues);
    free(data);
    return code;
}

CUresult cuLinkComplete(CUlinkState state, void **cubinOut, size_t *sizeOut) {
    struct module *module;
    CUresult code = context_enter();
    if (code != CUDA_SUCCESS)
        return code;
    struct link *link = handle_get(HANDLE_LINK, state);
    if (link == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (cubinOut == NULL || sizeOut == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    /* Compiled now, as errors belong here; the daemon keeps what it has compiled. */
    code = module_load(&link->images, &module);
    if (code != CUDA_SUCCESS)
        return code;
    cuModuleUnload(module->handle);
    writer_free(&link->result);
    images_write_linked(&link->images, &link->result);
    *cubinOut = link->result.data;
    *sizeOut = link->result.size;
    return link->result.failed ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult cuLinkDestroy(CUlinkState state) {
    struct link *link = handle_take(HANDLE_LINK, state);
    if (link == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    images_free(&link->images);
    writer_free(&link->result);
    free(link);
    return CUDA_SUCCESS;
}
