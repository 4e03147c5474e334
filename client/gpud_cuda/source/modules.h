/* Modules and their kernels. A library is a module, a CUkernel a CUfunction: with one context for
 * all there is no difference. */
#ifndef GPUD_MODULES_H
#define GPUD_MODULES_H

#include <pthread.h>

#include "connection.h"
#include "cuda_api.h"
#include "report.h"
#include "sites.h"

struct parameter {
    uint32_t offset, size;
};

/* A kernel with a block shape and dynamic shared memory, as it was prepared. */
struct site {
    uint64_t block[3], shared;
    struct lane_site place;
    uint32_t occupancy; /* blocks on an SM */
    bool is_job;        /* the lane refuses it: each launch is submitted as a job */
    enum form form;
    bool is_measured, is_prepared;
};

struct kernel {
    struct module *module;
    CUfunction handle;
    char *name;
    uint32_t index; /* in the module */
    uint32_t parameter_count, parameter_bytes;
    struct parameter *parameters;
    uint32_t shared_bytes, max_threads;
    bool is_cooperative;
    int dynamic_shared_limit;

    pthread_mutex_t lock; /* of the sites */
    struct site *sites;
    size_t site_count;
};

struct module {
    CUmodule handle;
    uint64_t number; /* at the daemon */
    struct reply reply;
    struct wire_compiled compiled; /* refers to the reply */

    pthread_mutex_t lock; /* of the kernels */
    struct kernel **kernels;
    size_t kernel_count;
};

/* Images for one program, and what was asked to be told about compiling it. */
struct images {
    struct writer list; /* msgpack of the array's items */
    uint32_t count;
    char *error_log;
    size_t error_log_room;
    void **error_log_size; /* where the size of the log goes, as an option's value */
};

/* Takes the options that are about logs. */
void images_take_options(struct images *images, unsigned count, const CUjit_option *options,
                         void **values);

/* Adds an image of any kind; `size` 0: as large as it says itself. */
CUresult images_add(struct images *images, const void *image, size_t size);
void images_free(struct images *images);

/* What cuLinkComplete hands out: all images in one, which images_add takes again. */
void images_write_linked(const struct images *images, struct writer *linked);

/* Reads a whole file, with zeros behind it; NULL if that is not possible. */
char *images_read_file(const char *path, size_t *size);

CUresult module_load(struct images *images, struct module **module);
struct module *module_get(const void *handle);
struct kernel *kernel_get(const void *handle);

/* The site of a kernel with a block shape: measured, and with `in_lane` prepared for launches, too.
 * Then its place in the lane is pinned, unless it `is_job`. */
CUresult kernel_site(struct kernel *kernel, const uint64_t block[3], uint64_t shared, bool in_lane,
                     struct site *site);
void kernel_release_site(const struct site *site);

#endif
