/* NVIDIA's declarations of the driver API, with which every definition here is checked. */
#ifndef GPUD_CUDA_API_H
#define GPUD_CUDA_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CUDA_ENABLE_DEPRECATED            /* old names are to be defined, too */
#define __CUDA_API_PUSH_VISIBILITY_DEFAULT /* only these names are exported */
#include <cuda.h>

/* Of names that cuda.h declares only for the driver itself. */
#define EXPORTED __attribute__((visibility("default")))

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

#endif
