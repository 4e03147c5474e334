/* Copies between host and device, and memsets, in the order of the program's other work. */
#ifndef GPUD_TRANSFERS_H
#define GPUD_TRANSFERS_H

#include "cuda_api.h"

/* One side of a copy; `pitch` bytes lie between rows, `slice` between planes (0: they follow). */
struct side {
    enum { SIDE_DEVICE, SIDE_HOST, SIDE_UNIFIED } kind;
    CUdeviceptr address; /* of the device, or of either */
    void *host;
    size_t pitch, slice;
};

struct extent {
    size_t width; /* bytes */
    size_t height, depth;
};

struct pattern {
    unsigned value;
    unsigned size; /* bytes: 1, 2 or 4 */
};

/* One side of a three-dimensional copy; returns whether it is valid. */
bool transfer_side(const CUDA_MEMCPY3D *area, bool is_target, struct side *side);

/* Copies; `async`: the caller need not wait, if the memory allows that. */
CUresult transfer_copy(struct side to, struct side from, struct extent extent, bool async);

/* Fills `height` rows of `width` elements. */
CUresult transfer_fill(CUdeviceptr to, size_t pitch, struct pattern pattern, size_t width,
                       size_t height, bool async);

#endif
