#include "launches.h"

#include <stdlib.h>
#include <string.h>

#include "jobs.h"
#include "lane.h"
#include "modules.h"
#include "session.h"
#include "work.h"

enum { MOST_PARAMETER_BYTES = 32764 };

/* ---- parameters ---- */

/* Finds the buffer among `extra`, pairs of a key and a value. */
static CUresult find_buffer(void **extra, const void **buffer, size_t *size) {
    *buffer = NULL;
    *size = 0;
    for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
        if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER)
            *buffer = extra[1];
        else if (extra[0] == CU_LAUNCH_PARAM_BUFFER_SIZE)
            *size = extra[1] ? *(size_t *)extra[1] : 0;
        else
            return CUDA_ERROR_INVALID_VALUE;
    }
    return *buffer || !*size ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult pack(const struct kernel *kernel, const struct launch *launch, char *packed) {
    memset(packed, 0, kernel->parameter_bytes);
    if (launch->parameters != NULL) {
        for (uint32_t i = 0; i < kernel->parameter_count; i++) {
            if (launch->parameters[i] == NULL)
                return CUDA_ERROR_INVALID_VALUE;
            const struct parameter *one = &kernel->parameters[i];
            memcpy(packed + one->offset, launch->parameters[i], one->size);
        }
        return CUDA_SUCCESS;
    }
    if (launch->extra == NULL)
        return kernel->parameter_count ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    const void *buffer;
    size_t size;
    CUresult code = find_buffer(launch->extra, &buffer, &size);
    if (code != CUDA_SUCCESS || size < kernel->parameter_bytes)
        return code != CUDA_SUCCESS ? code : CUDA_ERROR_INVALID_VALUE;
    memcpy(packed, buffer, kernel->parameter_bytes);
    return CUDA_SUCCESS;
}

/* ---- launches that have to wait for other work, or that the lane refuses ---- */

struct later {
    struct work work;
    const struct kernel *kernel; /* a module is unloaded after its launches */
    struct site site;
    uint32_t grid[3];
    char parameters[];
};

static void write_later(struct work *work) {
    struct later *later = (struct later *)work;
    if (lane_failure() == CUDA_SUCCESS)
        lane_launch(later->site.place.number, later->grid, later->parameters,
                    later->kernel->parameter_bytes);
    kernel_release_site(&later->site);
    free(later);
}

static void submit_later(struct work *work) {
    struct later *later = (struct later *)work;
    const struct kernel *kernel = later->kernel;
    work_wait_for_launches();
    if (lane_failure() == CUDA_SUCCESS) {
        struct wire_launch_record record = {
            .module = kernel->module->number,
            .kernel = kernel->index,
            .grid = {later->grid[0], later->grid[1], later->grid[2]},
            .block = {later->site.block[0], later->site.block[1], later->site.block[2]},
            .shared = later->site.shared,
            .parameters = {later->parameters, kernel->parameter_bytes},
        };
        CUresult code = jobs_run(&record);
        if (code != CUDA_SUCCESS)
            lane_fail(code);
    }
    free(later);
}

static CUresult post(const struct kernel *kernel, const struct site *site, const unsigned grid[3],
                     const char *parameters) {
    struct later *later = malloc(sizeof *later + kernel->parameter_bytes);
    if (later == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    later->work.run = site->is_job ? submit_later : write_later;
    later->kernel = kernel;
    later->site = *site;
    memcpy(later->grid, grid, sizeof later->grid);
    memcpy(later->parameters, parameters, kernel->parameter_bytes);
    work_post(&later->work);
    return CUDA_SUCCESS;
}

/* ---- launching ---- */

static CUresult check_sizes(const struct launch *launch, const struct kernel *kernel) {
    const unsigned *grid = launch->grid, *block = launch->block;
    if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0 || grid[0] > INT32_MAX || grid[1] > 65535 ||
        grid[2] > 65535)
        return CUDA_ERROR_INVALID_VALUE;
    if (block[0] == 0 || block[1] == 0 || block[2] == 0 || block[0] > 1024 || block[1] > 1024 ||
        block[2] > 64 || block[0] * block[1] * block[2] > 1024)
        return CUDA_ERROR_INVALID_VALUE;
    if (kernel->max_threads && block[0] * block[1] * block[2] > kernel->max_threads)
        return CUDA_ERROR_INVALID_VALUE;
    if (launch->shared > (unsigned)kernel->dynamic_shared_limit)
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

/* A cooperative launch must be resident as a whole. */
static CUresult check_cooperative(const struct launch *launch, const struct site *site) {
    uint64_t blocks = (uint64_t)launch->grid[0] * launch->grid[1] * launch->grid[2];
    if (launch->is_cooperative && blocks > (uint64_t)site->occupancy * session_get()->device.sms)
        return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    return CUDA_SUCCESS;
}

CUresult launch(const struct launch *launch) {
    struct kernel *kernel = kernel_get(launch->function);
    if (kernel == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult code = check_sizes(launch, kernel);
    if (code != CUDA_SUCCESS)
        return code;
    if (kernel->parameter_bytes > MOST_PARAMETER_BYTES)
        return CUDA_ERROR_INVALID_VALUE;
    char parameters[kernel->parameter_bytes + 1];
    code = pack(kernel, launch, parameters);
    if (code != CUDA_SUCCESS)
        return code;
    struct site site;
    uint64_t block[3] = {launch->block[0], launch->block[1], launch->block[2]};
    code = kernel_site(kernel, block, launch->shared, true, &site);
    if (code != CUDA_SUCCESS)
        return code;
    code = check_cooperative(launch, &site);
    if (code == CUDA_SUCCESS && (site.is_job || work_is_pending())) {
        code = post(kernel, &site, launch->grid, parameters);
        if (code == CUDA_SUCCESS) {
            report_launch(site.form);
            return code; /* the site is released when the launch is written */
        }
    } else if (code == CUDA_SUCCESS) {
        report_launch(site.form);
        lane_launch(site.place.number, launch->grid, parameters, kernel->parameter_bytes);
    }
    kernel_release_site(&site);
    return code;
}
