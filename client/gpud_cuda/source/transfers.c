#include "transfers.h"

#include <stdlib.h>
#include <string.h>

#include "arena.h"
#include "lane.h"
#include "pinned.h"
#include "work.h"

enum { AT_ONCE_BYTES = 1 << 20, STAGED_BYTES = 1 << 20 };

/* ---- what is to be done ---- */

struct copy {
    struct work work;
    char *to;
    const char *from;
    struct extent extent;
    size_t to_pitch, to_slice, from_pitch, from_slice;
    void *staged; /* a copy of the source, to be freed */
};

static void copy_all(const struct copy *copy) {
    for (size_t z = 0; z < copy->extent.depth; z++)
        for (size_t y = 0; y < copy->extent.height; y++)
            memmove(copy->to + z * copy->to_slice + y * copy->to_pitch,
                    copy->from + z * copy->from_slice + y * copy->from_pitch, copy->extent.width);
}

struct fill {
    struct work work;
    char *to;
    size_t pitch, width, height;
    struct pattern pattern;
};

static void fill_row(char *row, size_t width, struct pattern pattern) {
    if (pattern.size == 1) {
        memset(row, (int)pattern.value, width);
        return;
    }
    for (size_t i = 0; i < width; i++)
        memcpy(row + i * pattern.size, &pattern.value, pattern.size); /* little-endian */
}

static void fill_all(const struct fill *fill) {
    for (size_t y = 0; y < fill->height; y++)
        fill_row(fill->to + y * fill->pitch, fill->width, fill->pattern);
}

/* ---- when ---- */

/* After a failure nothing more is done, as on a GPU. */
static bool begin_work(void) {
    work_wait_for_launches();
    return lane_failure() == CUDA_SUCCESS;
}

static void copy_later(struct work *work) {
    struct copy *copy = (struct copy *)work;
    if (begin_work())
        copy_all(copy);
    free(copy->staged);
    free(copy);
}

static void fill_later(struct work *work) {
    if (begin_work())
        fill_all((struct fill *)work);
    free(work);
}

static CUresult copy_now(const struct copy *copy) {
    work_wait();
    if (lane_failure() == CUDA_SUCCESS)
        copy_all(copy);
    return lane_failure();
}

static CUresult post(const void *work, size_t size) {
    struct work *posted = malloc(size);
    if (posted == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(posted, work, size);
    work_post(posted);
    return CUDA_SUCCESS;
}

/* Small copies are done by the caller if nothing is before them: to hand them over takes longer. */
static bool is_to_be_done_at_once(size_t bytes) {
    return bytes <= AT_ONCE_BYTES && work_is_over();
}

/* ---- copies ---- */

/* How many bytes a side spans from its first to its last byte; 0 if that overflows. */
static size_t span(size_t pitch, size_t slice, struct extent extent) {
    size_t rows, planes, all;
    if (__builtin_mul_overflow(extent.height - 1, pitch, &rows) ||
        __builtin_mul_overflow(extent.depth - 1, slice, &planes) ||
        __builtin_add_overflow(rows, planes, &all) ||
        __builtin_add_overflow(all, extent.width, &all))
        return 0;
    return all;
}

/* Fills in what follows from the extent; returns where the side is in this process, NULL if it is
 * not memory of the program. */
static char *place(struct side *side, struct extent extent, bool *is_pageable) {
    if (side->pitch == 0)
        side->pitch = extent.width;
    if (side->slice == 0)
        side->slice = side->pitch * extent.height;
    size_t bytes = span(side->pitch, side->slice, extent);
    if (bytes == 0 || (extent.height > 1 && side->pitch < extent.width))
        return NULL;
    *is_pageable = false;
    if (side->kind != SIDE_HOST) {
        char *host = arena_host(side->address, bytes);
        if (host != NULL || side->kind == SIDE_DEVICE)
            return host;
        side->host = (void *)(uintptr_t)side->address;
    }
    *is_pageable = !pinned_has(side->host, bytes);
    return side->host;
}

/* The source is pageable: the program may change it once the call has returned. */
static CUresult post_staged(struct copy copy) {
    copy.staged = malloc(copy.extent.width);
    if (copy.staged == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(copy.staged, copy.from, copy.extent.width);
    copy.from = copy.staged;
    return post(&copy, sizeof copy);
}

CUresult transfer_copy(struct side to, struct side from, struct extent extent, bool async) {
    bool to_pageable, from_pageable;
    if (extent.width == 0 || extent.height == 0 || extent.depth == 0)
        return CUDA_SUCCESS;
    struct copy copy = {.work.run = copy_later, .extent = extent};
    copy.to = place(&to, extent, &to_pageable);
    copy.from = place(&from, extent, &from_pageable);
    if (copy.to == NULL || copy.from == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    copy.to_pitch = to.pitch;
    copy.to_slice = to.slice;
    copy.from_pitch = from.pitch;
    copy.from_slice = from.slice;
    size_t bytes = extent.width * extent.height * extent.depth;
    if (!async || to_pageable || is_to_be_done_at_once(bytes))
        return copy_now(&copy);
    if (!from_pageable)
        return post(&copy, sizeof copy);
    if (bytes <= STAGED_BYTES && bytes == extent.width)
        return post_staged(copy);
    return copy_now(&copy);
}

/* The offset of the first byte of a side in its memory, and its slices; false if it overflows. */
static bool set_offset(struct side *side, size_t x, size_t y, size_t z, size_t height) {
    size_t rows, offset;
    if (__builtin_mul_overflow(side->pitch, height, &side->slice) ||
        __builtin_mul_overflow(z, side->slice, &offset) ||
        __builtin_mul_overflow(y, side->pitch, &rows) ||
        __builtin_add_overflow(offset, rows, &offset) || __builtin_add_overflow(offset, x, &offset))
        return false;
    side->address += offset;
    side->host = (char *)side->host + offset;
    return true;
}

bool transfer_side(const CUDA_MEMCPY3D *area, bool is_target, struct side *side) {
    CUmemorytype type = is_target ? area->dstMemoryType : area->srcMemoryType;
    *side = (struct side){
        .address = is_target ? area->dstDevice : area->srcDevice,
        .host = is_target ? area->dstHost : (void *)(uintptr_t)area->srcHost,
        .pitch = is_target ? area->dstPitch : area->srcPitch,
    };
    if (side->pitch == 0)
        side->pitch = area->WidthInBytes;
    switch (type) {
    case CU_MEMORYTYPE_HOST:
        side->kind = SIDE_HOST;
        break;
    case CU_MEMORYTYPE_DEVICE:
        side->kind = SIDE_DEVICE;
        break;
    case CU_MEMORYTYPE_UNIFIED:
        side->kind = SIDE_UNIFIED;
        break;
    default: /* arrays, which there are not */
        return false;
    }
    size_t height = is_target ? area->dstHeight : area->srcHeight;
    if (height == 0)
        height = area->Height;
    return set_offset(side, is_target ? area->dstXInBytes : area->srcXInBytes,
                      is_target ? area->dstY : area->srcY, is_target ? area->dstZ : area->srcZ,
                      height);
}

/* ---- memsets ---- */

CUresult transfer_fill(CUdeviceptr to, size_t pitch, struct pattern pattern, size_t width,
                       size_t height, bool async) {
    size_t row;
    if (__builtin_mul_overflow(width, pattern.size, &row) || to % pattern.size != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (row == 0 || height == 0)
        return CUDA_SUCCESS;
    if (pitch == 0)
        pitch = row;
    size_t bytes = span(pitch, 0, (struct extent){row, height, 1});
    struct fill fill = {{fill_later, NULL}, NULL, pitch, width, height, pattern};
    fill.to = bytes ? arena_host(to, bytes) : NULL;
    if (fill.to == NULL || (height > 1 && pitch < row))
        return CUDA_ERROR_INVALID_VALUE;
    if (async && !is_to_be_done_at_once(bytes))
        return post(&fill, sizeof fill);
    work_wait();
    if (lane_failure() == CUDA_SUCCESS)
        fill_all(&fill);
    return lane_failure();
}
