/* Launching kernels. */
#ifndef GPUD_LAUNCHES_H
#define GPUD_LAUNCHES_H

#include "cuda_api.h"

struct launch {
    CUfunction function;
    unsigned grid[3], block[3];
    unsigned shared;
    void **parameters; /* where each is, or NULL */
    void **extra;      /* else the whole buffer, as cuLaunchKernel documents it */
    bool is_cooperative;
};

CUresult launch(const struct launch *launch);

#endif
