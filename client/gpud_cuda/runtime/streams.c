/* Streams and events, which are the driver's. */
#include "runtime.h"

cudaError_t cudaStreamCreate(cudaStream_t *made) {
    WITH_CONTEXT(cuStreamCreate(made, CU_STREAM_DEFAULT));
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *made, unsigned int flags) {
    WITH_CONTEXT(cuStreamCreate(made, flags));
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *made, unsigned int flags, int priority) {
    WITH_CONTEXT(cuStreamCreateWithPriority(made, flags, priority));
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
    WITH_CONTEXT(cuStreamGetPriority(stream, priority));
}

cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned int *flags) {
    WITH_CONTEXT(cuStreamGetFlags(stream, flags));
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    WITH_CONTEXT(cuStreamDestroy(stream));
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    WITH_CONTEXT(cuStreamSynchronize(stream));
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    WITH_CONTEXT(cuStreamQuery(stream));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags) {
    WITH_CONTEXT(cuStreamWaitEvent(stream, event, flags));
}

cudaError_t cudaEventCreate(cudaEvent_t *made) {
    WITH_CONTEXT(cuEventCreate(made, CU_EVENT_DEFAULT));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *made, unsigned int flags) {
    WITH_CONTEXT(cuEventCreate(made, flags));
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    WITH_CONTEXT(cuEventRecord(event, stream));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    WITH_CONTEXT(cuEventSynchronize(event));
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    WITH_CONTEXT(cuEventQuery(event));
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) {
    WITH_CONTEXT(cuEventElapsedTime(ms, start, end));
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    WITH_CONTEXT(cuEventDestroy(event));
}
