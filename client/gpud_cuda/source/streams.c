#include "streams.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "contexts.h"
#include "handles.h"
#include "lane.h"
#include "work.h"

/* ---- streams ---- */

struct stream {
    unsigned flags;
    int priority;
    unsigned long long id;
};

static _Atomic(unsigned long long) last_stream = 2; /* after the two default streams */

static bool is_default(CUstream stream) {
    return stream == NULL || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

CUresult stream_enter(CUstream stream) {
    CUresult code = context_enter();
    if (code == CUDA_SUCCESS && !is_default(stream) && !handle_get(HANDLE_STREAM, stream))
        code = CUDA_ERROR_INVALID_HANDLE;
    return code;
}

CUresult cuStreamCreateWithPriority(CUstream *phStream, unsigned int flags, int priority) {
    CUresult code = context_enter();
    if (code != CUDA_SUCCESS)
        return code;
    if (phStream == NULL || flags > CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    struct stream *stream = malloc(sizeof *stream);
    if (stream == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    (void)priority; /* there is one priority, 0, to which others are clamped */
    *stream = (struct stream){flags, 0, atomic_fetch_add(&last_stream, 1) + 1};
    *phStream = handle_new(HANDLE_STREAM, stream);
    return *phStream ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuStreamCreate(CUstream *phStream, unsigned int Flags) {
    return cuStreamCreateWithPriority(phStream, Flags, 0);
}

/* What it was asked to do is done nevertheless. */
CUresult cuStreamDestroy(CUstream hStream) {
    CUresult code = context_enter();
    if (code != CUDA_SUCCESS)
        return code;
    struct stream *stream = handle_take(HANDLE_STREAM, hStream);
    free(stream);
    return stream ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* ---- events ---- */

struct event {
    pthread_mutex_t lock;
    unsigned flags;
    unsigned users; /* the handle, and each recording that has not been reached */
    bool is_recorded, is_posted;
    struct mark mark;
};

/* A recording of an event behind work that is not done. */
struct recording {
    struct work work;
    struct event *event;
};

static void event_release(struct event *event) {
    pthread_mutex_lock(&event->lock);
    bool last = --event->users == 0;
    pthread_mutex_unlock(&event->lock);
    if (last && lane_mark_reached(&event->mark))
        free(event);
    /* One that was destroyed before it was reached is in the lane's list, and so it stays: an event
     * is small, and few programs do that. */
}

CUresult cuEventCreate(CUevent *phEvent, unsigned int Flags) {
    const unsigned known =
        CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    CUresult code = context_enter();
    if (code != CUDA_SUCCESS)
        return code;
    if (phEvent == NULL || Flags & ~known)
        return CUDA_ERROR_INVALID_VALUE;
    struct event *event = calloc(1, sizeof *event);
    if (event == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_init(&event->lock, NULL);
    event->flags = Flags;
    event->users = 1;
    event->mark.reached = true;
    *phEvent = handle_new(HANDLE_EVENT, event);
    return *phEvent ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuEventDestroy(CUevent hEvent) {
    CUresult code = context_enter();
    if (code != CUDA_SUCCESS)
        return code;
    struct event *event = handle_take(HANDLE_EVENT, hEvent);
    if (event == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    event_release(event);
    return CUDA_SUCCESS;
}

static void record_after_work(struct work *work) {
    struct recording *recording = (struct recording *)work;
    struct event *event = recording->event;
    pthread_mutex_lock(&event->lock);
    if (lane_mark_reached(&event->mark))
        lane_mark(&event->mark);
    event->is_posted = false;
    pthread_mutex_unlock(&event->lock);
    event_release(event);
    free(recording);
}

/* With the event's lock. One that is recorded again before it was reached waits for the first. */
static CUresult record(struct event *event) {
    if (!work_is_pending() && !event->is_posted) {
        if (!lane_mark_reached(&event->mark))
            lane_wait(event->mark.count);
        lane_mark(&event->mark);
        return CUDA_SUCCESS;
    }
    struct recording *recording = malloc(sizeof *recording);
    if (recording == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *recording = (struct recording){{record_after_work, NULL}, event};
    event->users++;
    event->is_posted = true;
    work_post(&recording->work);
    return CUDA_SUCCESS;
}

CUresult event_record(CUevent handle) {
    struct event *event = handle_get(HANDLE_EVENT, handle);
    if (event == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&event->lock);
    CUresult code = record(event);
    event->is_recorded = true;
    pthread_mutex_unlock(&event->lock);
    return code;
}

/* Whether it is reached; one that was never recorded is. */
static bool is_reached(struct event *event) {
    pthread_mutex_lock(&event->lock);
    bool reached = !event->is_posted && lane_mark_reached(&event->mark);
    pthread_mutex_unlock(&event->lock);
    return reached;
}

static void wait_if_posted(struct event *event) {
    pthread_mutex_lock(&event->lock);
    bool is_posted = event->is_posted;
    pthread_mutex_unlock(&event->lock);
    if (is_posted)
        work_wait();
}

static uint64_t mark_count(struct event *event) {
    pthread_mutex_lock(&event->lock);
    uint64_t count = event->mark.count;
    pthread_mutex_unlock(&event->lock);
    return count;
}

CUresult cuEventQuery(CUevent hEvent) {
    CUresult code = context_enter();
    if (code != CUDA_SUCCESS)
        return code;
    struct event *event = handle_get(HANDLE_EVENT, hEvent);
    if (event == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!is_reached(event))
        return CUDA_ERROR_NOT_READY;
    return lane_failure();
}

CUresult cuEventSynchronize(CUevent hEvent) {
    CUresult code = context_enter();
    if (code != CUDA_SUCCESS)
        return code;
    struct event *event = handle_get(HANDLE_EVENT, hEvent);
    if (event == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!is_reached(event)) {
        wait_if_posted(event);
        lane_wait(mark_count(event));
    }
    return lane_failure();
}

CUresult cuEventElapsedTime(float *pMilliseconds, CUevent hStart, CUevent hEnd) {
    CUresult code = context_enter();
    if (code != CUDA_SUCCESS)
        return code;
    struct event *start = handle_get(HANDLE_EVENT, hStart), *end = handle_get(HANDLE_EVENT, hEnd);
    if (start == NULL || end == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (pMilliseconds == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING || !start->is_recorded ||
        !end->is_recorded)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!is_reached(start) || !is_reached(end))
        return CUDA_ERROR_NOT_READY;
    int64_t elapsed_ns = (int64_t)(end->mark.time_ns - start->mark.time_ns);
    *pMilliseconds = (float)((double)elapsed_ns / 1e6);
    return CUDA_SUCCESS;
}

EXPORTED CUresult older_cuEventElapsedTime(float *pMilliseconds, CUevent hStart, CUevent hEnd)
    __asm__("cuEventElapsedTime");
CUresult older_cuEventElapsedTime(float *pMilliseconds, CUevent hStart, CUevent hEnd) {
    return cuEventElapsedTime(pMilliseconds, hStart, hEnd);
}
