/* Memory in the order of streams. */
#ifndef GPUD_POOLS_H
#define GPUD_POOLS_H

#include "cuda_api.h"

bool pool_is_valid(CUmemoryPool pool);

/* Frees memory once all that was asked for before is done; the caller need not wait. */
CUresult pool_free_later(CUdeviceptr address);

#endif
