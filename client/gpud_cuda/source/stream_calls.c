/* The calls that take a stream, or wait in the default one.
 *
 * Compiled twice, as programs are that may use either default stream: cuda.h gives the names of the
 * per-thread one a suffix. So there is nothing in this file but definitions of such calls. */
#include <stdlib.h>

#include "contexts.h"
#include "handles.h"
#include "lane.h"
#include "streams.h"
#include "work.h"

CUresult cuStreamSynchronize(CUstream hStream) {
    CUresult code = stream_enter(hStream);
    if (code != CUDA_SUCCESS)
        return code;
    work_wait();
    return lane_failure();
}

CUresult cuStreamQuery(CUstream hStream) {
    CUresult code = stream_enter(hStream);
    if (code != CUDA_SUCCESS)
        return code;
    if (!work_is_over())
        return CUDA_ERROR_NOT_READY;
    return lane_failure();
}

CUresult cuStreamGetPriority(CUstream hStream, int *priority) {
    CUresult code = stream_enter(hStream);
    if (code == CUDA_SUCCESS && priority == NULL)
        code = CUDA_ERROR_INVALID_VALUE;
    if (code == CUDA_SUCCESS)
        *priority = 0;
    return code;
}

CUresult cuStreamGetFlags(CUstream hStream, unsigned int *flags) {
    CUresult code = stream_enter(hStream);
    if (code == CUDA_SUCCESS && flags == NULL)
        code = CUDA_ERROR_INVALID_VALUE;
    if (code == CUDA_SUCCESS) {
        /* The flags are the first of what a stream has. */
        const unsigned *own = handle_get(HANDLE_STREAM, hStream);
        *flags = own ? *own : CU_STREAM_DEFAULT;
    }
    return code;
}

CUresult cuStreamGetId(CUstream hStream, unsigned long long *streamId) {
    CUresult code = stream_enter(hStream);
    if (code == CUDA_SUCCESS && streamId == NULL)
        code = CUDA_ERROR_INVALID_VALUE;
    if (code == CUDA_SUCCESS)
        *streamId = (unsigned long long)(uintptr_t)hStream;
    return code;
}

CUresult cuStreamGetDevice(CUstream hStream, CUdevice *device) {
    CUresult code = stream_enter(hStream);
    if (code == CUDA_SUCCESS && device == NULL)
        code = CUDA_ERROR_INVALID_VALUE;
    if (code == CUDA_SUCCESS)
        *device = 0;
    return code;
}

CUresult cuStreamGetCtx(CUstream hStream, CUcontext *pctx) {
    CUresult code = stream_enter(hStream);
    if (code == CUDA_SUCCESS && pctx == NULL)
        code = CUDA_ERROR_INVALID_VALUE;
    if (code == CUDA_SUCCESS)
        *pctx = context_current();
    return code;
}

/* What was recorded comes before what follows in every stream. */
CUresult cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags) {
    CUresult code = stream_enter(hStream);
    if (code != CUDA_SUCCESS)
        return code;
    if (!handle_get(HANDLE_EVENT, hEvent))
        return CUDA_ERROR_INVALID_HANDLE;
    return Flags <= CU_EVENT_WAIT_EXTERNAL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuEventRecord(CUevent hEvent, CUstream hStream) {
    CUresult code = stream_enter(hStream);
    return code == CUDA_SUCCESS ? event_record(hEvent) : code;
}

CUresult cuEventRecordWithFlags(CUevent hEvent, CUstream hStream, unsigned int flags) {
    if (flags > CU_EVENT_RECORD_EXTERNAL)
        return CUDA_ERROR_INVALID_VALUE;
    return cuEventRecord(hEvent, hStream);
}

/* ---- host functions ---- */

struct host_call {
    struct work work;
    CUhostFn function;           /* one of these two */
    CUstreamCallback callback;
    CUstream stream;
    void *argument;
};

static void call_host(struct work *work) {
    struct host_call *call = (struct host_call *)work;
    work_wait_for_launches();
    if (call->callback != NULL)
        call->callback(call->stream, lane_failure(), call->argument);
    else if (lane_failure() == CUDA_SUCCESS)
        call->function(call->argument);
    free(call);
}

static CUresult post_host_call(struct host_call call) {
    CUresult code = stream_enter(call.stream);
    if (code != CUDA_SUCCESS)
        return code;
    if (call.function == NULL && call.callback == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    struct host_call *posted = malloc(sizeof *posted);
    if (posted == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *posted = call;
    posted->work.run = call_host;
    work_post(&posted->work);
    return CUDA_SUCCESS;
}

CUresult cuLaunchHostFunc(CUstream hStream, CUhostFn fn, void *userData) {
    return post_host_call(
        (struct host_call){.function = fn, .stream = hStream, .argument = userData});
}

CUresult cuStreamAddCallback(CUstream hStream, CUstreamCallback callback, void *userData,
                             unsigned int flags) {
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    return post_host_call(
        (struct host_call){.callback = callback, .stream = hStream, .argument = userData});
}

/* ---- graphs are not supported: nothing is ever captured ---- */

CUresult cuStreamIsCapturing(CUstream hStream, CUstreamCaptureStatus *captureStatus) {
    CUresult code = stream_enter(hStream);
    if (code == CUDA_SUCCESS && captureStatus == NULL)
        code = CUDA_ERROR_INVALID_VALUE;
    if (code == CUDA_SUCCESS)
        *captureStatus = CU_STREAM_CAPTURE_STATUS_NONE;
    return code;
}

CUresult cuStreamGetCaptureInfo(CUstream hStream, CUstreamCaptureStatus *captureStatus_out,
                                cuuint64_t *id_out, CUgraph *graph_out,
                                const CUgraphNode **dependencies_out,
                                const CUgraphEdgeData **edgeData_out,
                                size_t *numDependencies_out) {
    (void)id_out, (void)graph_out, (void)dependencies_out, (void)edgeData_out;
    if (numDependencies_out != NULL)
        *numDependencies_out = 0;
    return cuStreamIsCapturing(hStream, captureStatus_out);
}
