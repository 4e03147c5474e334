#include "work.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "lane.h"

static struct {
    pthread_mutex_t lock;
    pthread_cond_t posted_more, done_more;
    struct work *first, **last;
    bool has_thread;
    _Atomic(uint64_t) posted, done;
} queue = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .posted_more = PTHREAD_COND_INITIALIZER,
    .done_more = PTHREAD_COND_INITIALIZER,
    .last = &queue.first,
};

static __thread bool is_worker;

static void *do_work(void *unused) {
    (void)unused;
    is_worker = true;
    pthread_mutex_lock(&queue.lock);
    for (;;) {
        while (queue.first == NULL)
            pthread_cond_wait(&queue.posted_more, &queue.lock);
        struct work *work = queue.first;
        queue.first = work->next;
        if (queue.first == NULL)
            queue.last = &queue.first;
        pthread_mutex_unlock(&queue.lock);
        work->run(work);
        pthread_mutex_lock(&queue.lock);
        /* Release: who sees that it is done sees what it has done. */
        atomic_fetch_add_explicit(&queue.done, 1, memory_order_release);
        pthread_cond_broadcast(&queue.done_more);
    }
    return NULL;
}

/* With the lock. The program's signals are not for this thread. */
static bool start_thread(void) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t thread;
    bool started = pthread_create(&thread, NULL, do_work, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started)
        pthread_detach(thread);
    return started;
}

void work_post(struct work *work) {
    work->next = NULL;
    pthread_mutex_lock(&queue.lock);
    if (!queue.has_thread)
        queue.has_thread = start_thread();
    if (!queue.has_thread)
        abort(); /* the work would never be done, and be waited for */
    *queue.last = work;
    queue.last = &work->next;
    atomic_fetch_add_explicit(&queue.posted, 1, memory_order_relaxed);
    pthread_cond_signal(&queue.posted_more);
    pthread_mutex_unlock(&queue.lock);
}

bool work_is_pending(void) {
    uint64_t posted = atomic_load_explicit(&queue.posted, memory_order_relaxed);
    return atomic_load_explicit(&queue.done, memory_order_acquire) < posted;
}

void work_wait_for_launches(void) {
    lane_wait(lane_written());
}

void work_wait(void) {
    if (!is_worker && work_is_pending()) { /* a host function may not wait for itself */
        pthread_mutex_lock(&queue.lock);
        uint64_t posted = atomic_load_explicit(&queue.posted, memory_order_relaxed);
        while (atomic_load_explicit(&queue.done, memory_order_acquire) < posted)
            pthread_cond_wait(&queue.done_more, &queue.lock);
        pthread_mutex_unlock(&queue.lock);
    }
    work_wait_for_launches();
}

bool work_is_over(void) {
    return !work_is_pending() && lane_reached(lane_written());
}
