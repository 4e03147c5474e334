#include "lane.h"

#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "connection.h"
#include "failure.h"
#include "ring_layout.h"
#include "session.h"

/* How a launch ended that was not simply done, until its completion is seen. */
struct told {
    uint32_t launch;
    CUresult failure;
    struct told *next;
};

/* Who sleeps until `count` launches have ended. */
struct waiter {
    uint64_t count;
    struct waiter *next;
};

static struct {
    pthread_mutex_t lock; /* of all that follows; the reader takes it, too */
    pthread_cond_t changed;
    enum { UNOPENED, OPENING, OPEN, OVER } state;
    CUresult refusal; /* why it could not be opened */
    uint64_t number;  /* the job's */

    char *ring;
    uint32_t head;    /* slots written */
    uint64_t written; /* launches */
    uint64_t seen;    /* launches whose ends are known here */
    struct told *told;
    struct waiter *waiters;
    struct mark *first_mark, **last_mark;
    int patience; /* see spin() */
} lane = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .changed = PTHREAD_COND_INITIALIZER,
    .last_mark = &lane.first_mark,
};

static _Atomic(CUresult) failure;

CUresult lane_failure(void) {
    return atomic_load_explicit(&failure, memory_order_relaxed);
}

void lane_fail(CUresult code) {
    CUresult none = CUDA_SUCCESS;
    atomic_compare_exchange_strong(&failure, &none, code);
}

/* ---- the ring's words ---- */

static _Atomic(uint32_t) *word(int offset) {
    return (_Atomic(uint32_t) *)(void *)(lane.ring + offset);
}

static void futex_wait(_Atomic(uint32_t) *at, uint32_t seen, long limit_ns) {
    struct timespec limit = {0, limit_ns};
    syscall(SYS_futex, at, FUTEX_WAIT, seen, &limit, NULL, 0);
}

static uint64_t completed(void) {
    /* Acquire: the device has written the completions before it counted them, and its `tail`
     * before it ran them. */
    uint32_t count = atomic_load_explicit(word(RING_COMPLETED), memory_order_acquire);
    uint64_t all = lane.seen + (uint32_t)(count - (uint32_t)lane.seen);
    return all > lane.written ? lane.seen : all; /* beyond what was written is nonsense */
}

/* ---- ends of launches ---- */

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void reach_marks(uint64_t time_ns) {
    while (lane.first_mark != NULL && lane.first_mark->count <= lane.seen) {
        struct mark *mark = lane.first_mark;
        lane.first_mark = mark->next;
        if (lane.first_mark == NULL)
            lane.last_mark = &lane.first_mark;
        mark->time_ns = time_ns;
        mark->reached = true;
    }
}

/* Takes what was told about a launch; returns whether there is something. */
static bool take_told(uint32_t launch) {
    for (struct told **place = &lane.told; *place != NULL; place = &(*place)->next) {
        struct told *one = *place;
        if (one->launch != launch)
            continue;
        if (one->failure != CUDA_SUCCESS)
            lane_fail(one->failure);
        *place = one->next;
        free(one);
        return true;
    }
    return false;
}

/* Sees the launches that have ended, in order. With the lock. Returns whether it has stopped at one
 * of which more is to be told, and that has not come yet. */
static bool harvest(void) {
    if (lane.ring == NULL)
        return false;
    for (uint64_t end = completed(); lane.seen < end;) {
        const char *at = lane.ring + RING_COMPLETIONS_AT +
                         lane.seen % RING_SLOTS * RING_COMPLETION_BYTES;
        uint64_t ended_ns;
        memcpy(&ended_ns, at + 24, sizeof ended_ns);
        if (at[4] != RING_DONE && !take_told((uint32_t)lane.seen))
            return true;
        lane.seen++;
        reach_marks(ended_ns);
    }
    return false;
}

/* When no more launches will end: all waits end, and all marks are reached. With the lock. */
static void end_lane(CUresult code) {
    if (lane.state == OVER)
        return;
    harvest();
    if (lane.state == OPEN && lane.seen < lane.written)
        lane_fail(code);
    lane.state = OVER;
    lane.refusal = code;
    lane.seen = lane.written;
    reach_marks(now_ns());
    pthread_cond_broadcast(&lane.changed);
    if (lane.ring != NULL)
        syscall(SYS_futex, word(RING_COMPLETED), FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

/* ---- waiting ---- */

/* Waking a thread takes longer than many launches: look a while before sleeping. If that was in
 * vain some times, look less: the device may need this processor. */
static bool spin(uint64_t count) {
    enum { PATIENCE = 3, LOOKS = 2000, FEW_LOOKS = 50 };
    int looks = lane.patience < PATIENCE ? LOOKS : FEW_LOOKS;
    for (int i = 0; i < looks; i++) {
        uint32_t now = atomic_load_explicit(word(RING_COMPLETED), memory_order_acquire);
        if ((int32_t)(now - (uint32_t)count) >= 0) {
            lane.patience = 0;
            return true;
        }
        __builtin_ia32_pause();
    }
    lane.patience = (lane.patience + 1) % 32; /* now and then the long look is tried again */
    return false;
}

/* Sleeps until `count` launches may have ended; the lock is released meanwhile. */
static void sleep_until(uint64_t count) {
    struct waiter self = {count, lane.waiters};
    lane.waiters = &self;
    uint64_t nearest = count;
    for (struct waiter *one = lane.waiters; one != NULL; one = one->next)
        if (one->count > lane.seen && one->count < nearest)
            nearest = one->count;
    /* Sequentially consistent, then the load below: the device stores `completed` and then loads
     * `wanted` the same way, so that it sees this, or this sees that. */
    atomic_store(word(RING_WANTED), (uint32_t)nearest);
    uint32_t now = atomic_load(word(RING_COMPLETED));
    pthread_mutex_unlock(&lane.lock);
    if ((int32_t)(now - (uint32_t)count) < 0)
        futex_wait(word(RING_COMPLETED), now, 100000000);
    pthread_mutex_lock(&lane.lock);
    struct waiter **place = &lane.waiters;
    while (*place != &self)
        place = &(*place)->next;
    *place = self.next;
}

/* Waits until `count` launches have been seen. With the lock, which is released meanwhile. */
static void wait_seen(uint64_t count) {
    for (bool looked = false;;) {
        bool is_untold = harvest();
        if (lane.seen >= count || lane.state != OPEN)
            return;
        if (is_untold) {
            pthread_cond_wait(&lane.changed, &lane.lock);
        } else if (looked) {
            sleep_until(count);
        } else {
            pthread_mutex_unlock(&lane.lock);
            looked = !spin(count);
            pthread_mutex_lock(&lane.lock);
        }
    }
}

void lane_wait(uint64_t count) {
    pthread_mutex_lock(&lane.lock);
    wait_seen(count);
    pthread_mutex_unlock(&lane.lock);
}

bool lane_reached(uint64_t count) {
    pthread_mutex_lock(&lane.lock);
    harvest();
    bool reached = lane.seen >= count;
    pthread_mutex_unlock(&lane.lock);
    return reached;
}

uint64_t lane_written(void) {
    pthread_mutex_lock(&lane.lock);
    uint64_t written = lane.written;
    pthread_mutex_unlock(&lane.lock);
    return written;
}

void lane_mark(struct mark *mark) {
    pthread_mutex_lock(&lane.lock);
    harvest();
    *mark = (struct mark){.count = lane.written};
    if (lane.seen >= lane.written) {
        mark->time_ns = now_ns();
        mark->reached = true;
    } else {
        *lane.last_mark = mark;
        lane.last_mark = &mark->next;
    }
    pthread_mutex_unlock(&lane.lock);
}

bool lane_mark_reached(struct mark *mark) {
    pthread_mutex_lock(&lane.lock);
    harvest();
    bool reached = mark->reached;
    pthread_mutex_unlock(&lane.lock);
    return reached;
}

/* ---- launches ---- */

static char *slot(uint32_t index) {
    return lane.ring + RING_SLOTS_AT + index % RING_SLOTS * RING_SLOT_BYTES;
}

static uint32_t slots_of(uint32_t size) {
    if (size <= RING_INLINE_BYTES)
        return 1;
    return 1 + (size - RING_INLINE_BYTES + RING_SLOT_BYTES - 1) / RING_SLOT_BYTES;
}

/* Waits until there are free slots, and room for another completion. With the lock. */
static bool find_room(uint32_t slots) {
    while (lane.state == OPEN) {
        /* Acquire: the device has copied the slots that it gives back. */
        uint32_t tail = atomic_load_explicit(word(RING_TAIL), memory_order_acquire);
        bool slots_free = RING_SLOTS - (lane.head - tail) >= slots;
        if (slots_free && lane.written - lane.seen < RING_SLOTS)
            return true;
        harvest();
        if (slots_free && lane.written - lane.seen < RING_SLOTS)
            return true;
        /* A good part of them: to be woken for each would cost more than the launch. */
        uint64_t unseen = lane.written - lane.seen;
        wait_seen(lane.seen + (unseen > 2 ? unseen / 2 : 1));
    }
    return false;
}

static void put(uint32_t site, const uint32_t grid[3], const void *parameters, uint32_t size,
                uint32_t slots) {
    char *at = slot(lane.head);
    uint32_t record[8] = {(uint32_t)lane.written, site, grid[0], grid[1], grid[2], size};
    memcpy(at, record, sizeof record);
    memcpy(at + RING_INLINE_AT, parameters, size < RING_INLINE_BYTES ? size : RING_INLINE_BYTES);
    for (uint32_t i = 1; i < slots; i++) {
        uint32_t begin = RING_INLINE_BYTES + (i - 1) * RING_SLOT_BYTES;
        uint32_t rest = size - begin;
        memcpy(slot(lane.head + i), (const char *)parameters + begin,
               rest < RING_SLOT_BYTES ? rest : RING_SLOT_BYTES);
    }
}

void lane_launch(uint32_t site, const uint32_t grid[3], const void *parameters, uint32_t size) {
    uint32_t slots = slots_of(size);
    pthread_mutex_lock(&lane.lock);
    if (!find_room(slots)) {
        pthread_mutex_unlock(&lane.lock);
        return; /* the lane is over, and the failure is known */
    }
    put(site, grid, parameters, size, slots);
    lane.head += slots;
    lane.written++;
    /* Sequentially consistent, and so is the load below: the device stores `listening` and then
     * loads `head` the same way before it sleeps, so that it sees this, or this sees that. It also
     * releases the slots that were written above, for the device's acquire of `head`. */
    atomic_store(word(RING_HEAD), lane.head);
    bool listening = atomic_load(word(RING_LISTENING)) != 0;
    pthread_mutex_unlock(&lane.lock);
    if (listening)
        syscall(SYS_futex, word(RING_HEAD), FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* ---- opening, and launch sites ---- */

static void send_opening(void) {
    const struct session *session = session_get();
    struct wire_open_lane message = {
        .device = session->device.index,
        .has_reservation = session->share.kind == SHARE_RESERVATION,
        .reservation = {session->share.numerator, session->share.denominator},
        .has_quota = session->share.kind == SHARE_QUOTA,
        .quota = {session->share.numerator, session->share.denominator},
        .weight = session->weight,
    };
    struct writer frame = {0};
    connection_lock(); /* jobs are sent in the order of their numbers */
    lane.number = message.number = session_next_job();
    wire_write_open_lane(&frame, &message);
    connection_put(&frame);
    connection_unlock();
}

CUresult lane_open(void) {
    pthread_mutex_lock(&lane.lock);
    if (lane.state == UNOPENED) {
        lane.state = OPENING;
        send_opening();
    }
    while (lane.state == OPENING)
        pthread_cond_wait(&lane.changed, &lane.lock);
    CUresult code = lane.state == OPEN ? CUDA_SUCCESS : lane.refusal;
    pthread_mutex_unlock(&lane.lock);
    return code;
}

static bool is_refusal(const struct reply *reply) {
    struct reader reader = reader_of(reply_bytes(reply));
    struct wire_failed failed;
    if (reply->code != WIRE_FAILED || !wire_read_failed(&reader, &failed))
        return false;
    struct reader code = map_value(failed.error, "code");
    return bytes_equal(read_bytes(&code), "lane-refused");
}

CUresult lane_prepare(uint64_t module, uint64_t kernel, const uint64_t block[3], uint64_t shared,
                      uint32_t replaces, uint32_t *number, bool *refused) {
    struct request request;
    struct writer frame = {0};
    request_open(&request);
    struct wire_prepare_launch message = {
        .request = request.number,
        .lane = lane.number,
        .module = module,
        .kernel = kernel,
        .block = {block[0], block[1], block[2]},
        .shared = shared,
        .has_replaces = replaces != RING_MOST_SITES,
        .replaces = replaces,
    };
    wire_write_prepare_launch(&frame, &message);
    connection_ask(&request, &frame);
    *refused = is_refusal(&request.reply);
    struct wire_answer answer = {0};
    CUresult code = CUDA_SUCCESS;
    if (!*refused)
        code = session_answer("a launch", &request.reply, &answer);
    struct reader value = reader_of(answer.value);
    if (code == CUDA_SUCCESS && !*refused)
        *number = (uint32_t)read_uint(&value);
    reply_free(&request.reply);
    return code;
}

/* ---- from the reader ---- */

void lane_on_opened(const struct wire_lane_opened *message, int descriptor) {
    void *ring = mmap(NULL, message->size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    close(descriptor);
    pthread_mutex_lock(&lane.lock);
    if (ring == MAP_FAILED) {
        say("the lane's ring cannot be mapped");
        end_lane(CUDA_ERROR_OUT_OF_MEMORY);
    } else {
        lane.ring = ring;
        lane.state = OPEN;
    }
    pthread_cond_broadcast(&lane.changed);
    pthread_mutex_unlock(&lane.lock);
}

static void print(struct bytes output) {
    if (output.size > 0) {
        fwrite(output.data, 1, output.size, stdout);
        fflush(stdout);
    }
}

void lane_on_launch_ended(const struct wire_launch_ended *message) {
    print(message->output);
    struct told *told = malloc(sizeof *told);
    if (told == NULL)
        abort(); /* it would be waited for for ever */
    *told = (struct told){.launch = (uint32_t)message->launch};
    if (!bytes_equal(message->state, "done"))
        told->failure = failure_said("a kernel failed", message->error, CUDA_ERROR_LAUNCH_FAILED);
    pthread_mutex_lock(&lane.lock);
    told->next = lane.told;
    lane.told = told;
    pthread_cond_broadcast(&lane.changed);
    pthread_mutex_unlock(&lane.lock);
}

void lane_on_finished(const struct wire_finished *message) {
    CUresult code = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (!bytes_equal(message->state, "done"))
        code = failure_said("the program's lane has ended", message->error, code);
    pthread_mutex_lock(&lane.lock);
    if (message->number == lane.number) {
        if (lane.state == OPEN)
            lane_fail(code);
        end_lane(code);
    }
    pthread_mutex_unlock(&lane.lock);
}

void lane_on_lost(void) {
    lane_fail(CUDA_ERROR_CONTEXT_IS_DESTROYED);
    pthread_mutex_lock(&lane.lock);
    end_lane(CUDA_ERROR_CONTEXT_IS_DESTROYED);
    pthread_mutex_unlock(&lane.lock);
}
