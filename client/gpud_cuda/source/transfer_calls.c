/* Copies and memsets.
 *
 * Compiled twice, for the names of both default streams; see stream_calls.c. */
#include "transfers.h"

#include "contexts.h"
#include "streams.h"

/* Each side of a copy, as the three kinds of calls name it. */
#define DEVICE(address) ((struct side){SIDE_DEVICE, (address), NULL, 0, 0})
#define HOST(pointer) ((struct side){SIDE_HOST, 0, (void *)(uintptr_t)(pointer), 0, 0})
#define EITHER(address) ((struct side){SIDE_UNIFIED, (address), NULL, 0, 0})

static CUresult copy_line(struct side to, struct side from, size_t size) {
    CUresult code = context_enter();
    return code == CUDA_SUCCESS ? transfer_copy(to, from, (struct extent){size, 1, 1}, false) : code;
}

static CUresult copy_line_async(struct side to, struct side from, size_t size, CUstream stream) {
    CUresult code = stream_enter(stream);
    return code == CUDA_SUCCESS ? transfer_copy(to, from, (struct extent){size, 1, 1}, true) : code;
}

CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount) {
    return copy_line(EITHER(dst), EITHER(src), ByteCount);
}

CUresult cuMemcpyHtoD(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount) {
    return copy_line(DEVICE(dstDevice), HOST(srcHost), ByteCount);
}

CUresult cuMemcpyDtoH(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount) {
    return copy_line(HOST(dstHost), DEVICE(srcDevice), ByteCount);
}

CUresult cuMemcpyDtoD(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount) {
    return copy_line(DEVICE(dstDevice), DEVICE(srcDevice), ByteCount);
}

/* All contexts of a program have the same memory. */
CUresult cuMemcpyPeer(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                      CUcontext srcContext, size_t ByteCount) {
    (void)dstContext, (void)srcContext;
    return copy_line(DEVICE(dstDevice), DEVICE(srcDevice), ByteCount);
}

CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream) {
    return copy_line_async(EITHER(dst), EITHER(src), ByteCount, hStream);
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount,
                           CUstream hStream) {
    return copy_line_async(DEVICE(dstDevice), HOST(srcHost), ByteCount, hStream);
}

CUresult cuMemcpyDtoHAsync(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount,
                           CUstream hStream) {
    return copy_line_async(HOST(dstHost), DEVICE(srcDevice), ByteCount, hStream);
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount,
                           CUstream hStream) {
    return copy_line_async(DEVICE(dstDevice), DEVICE(srcDevice), ByteCount, hStream);
}

CUresult cuMemcpyPeerAsync(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                           CUcontext srcContext, size_t ByteCount, CUstream hStream) {
    (void)dstContext, (void)srcContext;
    return copy_line_async(DEVICE(dstDevice), DEVICE(srcDevice), ByteCount, hStream);
}

/* ---- in two and three dimensions ---- */

static CUresult copy_area(const CUDA_MEMCPY3D *area, bool async) {
    struct side to, from;
    if (area == NULL || !transfer_side(area, true, &to) || !transfer_side(area, false, &from))
        return CUDA_ERROR_INVALID_VALUE;
    struct extent extent = {area->WidthInBytes, area->Height, area->Depth};
    return transfer_copy(to, from, extent, async);
}

static CUresult copy_area_2d(const CUDA_MEMCPY2D *area, bool async) {
    if (area == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_MEMCPY3D whole = {
        .srcXInBytes = area->srcXInBytes,
        .srcY = area->srcY,
        .srcMemoryType = area->srcMemoryType,
        .srcHost = area->srcHost,
        .srcDevice = area->srcDevice,
        .srcPitch = area->srcPitch,
        .dstXInBytes = area->dstXInBytes,
        .dstY = area->dstY,
        .dstMemoryType = area->dstMemoryType,
        .dstHost = area->dstHost,
        .dstDevice = area->dstDevice,
        .dstPitch = area->dstPitch,
        .WidthInBytes = area->WidthInBytes,
        .Height = area->Height,
        .Depth = 1,
    };
    return copy_area(&whole, async);
}

CUresult cuMemcpy2D(const CUDA_MEMCPY2D *pCopy) {
    CUresult code = context_enter();
    return code == CUDA_SUCCESS ? copy_area_2d(pCopy, false) : code;
}

CUresult cuMemcpy2DUnaligned(const CUDA_MEMCPY2D *pCopy) {
    return cuMemcpy2D(pCopy);
}

CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D *pCopy, CUstream hStream) {
    CUresult code = stream_enter(hStream);
    return code == CUDA_SUCCESS ? copy_area_2d(pCopy, true) : code;
}

CUresult cuMemcpy3D(const CUDA_MEMCPY3D *pCopy) {
    CUresult code = context_enter();
    return code == CUDA_SUCCESS ? copy_area(pCopy, false) : code;
}

CUresult cuMemcpy3DAsync(const CUDA_MEMCPY3D *pCopy, CUstream hStream) {
    CUresult code = stream_enter(hStream);
    return code == CUDA_SUCCESS ? copy_area(pCopy, true) : code;
}

/* ---- memsets ---- */

static CUresult fill(CUdeviceptr to, size_t pitch, struct pattern pattern, size_t width,
                     size_t height) {
    CUresult code = context_enter();
    return code == CUDA_SUCCESS ? transfer_fill(to, pitch, pattern, width, height, false) : code;
}

static CUresult fill_async(CUdeviceptr to, size_t pitch, struct pattern pattern, size_t width,
                           size_t height, CUstream stream) {
    CUresult code = stream_enter(stream);
    return code == CUDA_SUCCESS ? transfer_fill(to, pitch, pattern, width, height, true) : code;
}

CUresult cuMemsetD8(CUdeviceptr dstDevice, unsigned char uc, size_t N) {
    return fill(dstDevice, 0, (struct pattern){uc, 1}, N, 1);
}

CUresult cuMemsetD16(CUdeviceptr dstDevice, unsigned short us, size_t N) {
    return fill(dstDevice, 0, (struct pattern){us, 2}, N, 1);
}

CUresult cuMemsetD32(CUdeviceptr dstDevice, unsigned int ui, size_t N) {
    return fill(dstDevice, 0, (struct pattern){ui, 4}, N, 1);
}

CUresult cuMemsetD2D8(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc, size_t Width,
                      size_t Height) {
    return fill(dstDevice, dstPitch, (struct pattern){uc, 1}, Width, Height);
}

CUresult cuMemsetD2D16(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us, size_t Width,
                       size_t Height) {
    return fill(dstDevice, dstPitch, (struct pattern){us, 2}, Width, Height);
}

CUresult cuMemsetD2D32(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui, size_t Width,
                       size_t Height) {
    return fill(dstDevice, dstPitch, (struct pattern){ui, 4}, Width, Height);
}

CUresult cuMemsetD8Async(CUdeviceptr dstDevice, unsigned char uc, size_t N, CUstream hStream) {
    return fill_async(dstDevice, 0, (struct pattern){uc, 1}, N, 1, hStream);
}

CUresult cuMemsetD16Async(CUdeviceptr dstDevice, unsigned short us, size_t N, CUstream hStream) {
    return fill_async(dstDevice, 0, (struct pattern){us, 2}, N, 1, hStream);
}

CUresult cuMemsetD32Async(CUdeviceptr dstDevice, unsigned int ui, size_t N, CUstream hStream) {
    return fill_async(dstDevice, 0, (struct pattern){ui, 4}, N, 1, hStream);
}

CUresult cuMemsetD2D8Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc, size_t Width,
                           size_t Height, CUstream hStream) {
    return fill_async(dstDevice, dstPitch, (struct pattern){uc, 1}, Width, Height, hStream);
}

CUresult cuMemsetD2D16Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us,
                            size_t Width, size_t Height, CUstream hStream) {
    return fill_async(dstDevice, dstPitch, (struct pattern){us, 2}, Width, Height, hStream);
}

CUresult cuMemsetD2D32Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui, size_t Width,
                            size_t Height, CUstream hStream) {
    return fill_async(dstDevice, dstPitch, (struct pattern){ui, 4}, Width, Height, hStream);
}
