#include "jobs.h"

#include <pthread.h>
#include <stdio.h>

#include "connection.h"
#include "failure.h"
#include "session.h"

/* The one that is waited for. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t ended;
    uint64_t number; /* 0: there is none */
    bool lost;
    CUresult code;
} current = {.lock = PTHREAD_MUTEX_INITIALIZER, .ended = PTHREAD_COND_INITIALIZER};

static void send_launch(const struct wire_launch_record *launch) {
    const struct session *session = session_get();
    struct writer frame = {0}, launches = {0};
    write_array(&launches, 1);
    wire_write_launch_record(&launches, launch);
    struct wire_submit message = {
        .device = session->device.index,
        .launches = {launches.data, launches.size},
        .has_reservation = session->share.kind == SHARE_RESERVATION,
        .reservation = {session->share.numerator, session->share.denominator},
        .has_quota = session->share.kind == SHARE_QUOTA,
        .quota = {session->share.numerator, session->share.denominator},
        .weight = session->weight,
    };
    connection_lock(); /* jobs are sent in the order of their numbers */
    pthread_mutex_lock(&current.lock);
    current.number = message.number = session_next_job();
    pthread_mutex_unlock(&current.lock);
    wire_write_submit(&frame, &message);
    connection_put(&frame);
    connection_unlock();
    writer_free(&launches);
}

CUresult jobs_run(const struct wire_launch_record *launch) {
    static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&one_at_a_time);
    current.code = CUDA_SUCCESS;
    send_launch(launch);
    pthread_mutex_lock(&current.lock);
    while (current.number != 0 && !current.lost)
        pthread_cond_wait(&current.ended, &current.lock);
    CUresult code = current.lost ? CUDA_ERROR_CONTEXT_IS_DESTROYED : current.code;
    pthread_mutex_unlock(&current.lock);
    pthread_mutex_unlock(&one_at_a_time);
    return code;
}

bool jobs_on_finished(const struct wire_finished *message) {
    pthread_mutex_lock(&current.lock);
    bool ours = message->number == current.number && current.number != 0;
    if (ours) {
        if (message->output.size > 0) {
            fwrite(message->output.data, 1, message->output.size, stdout);
            fflush(stdout);
        }
        if (!bytes_equal(message->state, "done"))
            current.code = failure_said("a kernel failed", message->error, CUDA_ERROR_LAUNCH_FAILED);
        current.number = 0;
        pthread_cond_broadcast(&current.ended);
    }
    pthread_mutex_unlock(&current.lock);
    return ours;
}

void jobs_on_lost(void) {
    pthread_mutex_lock(&current.lock);
    current.lost = true;
    pthread_cond_broadcast(&current.ended);
    pthread_mutex_unlock(&current.lock);
}
