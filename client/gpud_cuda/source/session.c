#include "session.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "arena.h"
#include "failure.h"
#include "jobs.h"
#include "lane.h"
#include "settings.h"

enum { UNSTARTED, STARTED, FAILED, FORKED };

static struct session session;
static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(int) state;
static CUresult refusal;
static uint64_t last_job;

const struct session *session_get(void) {
    return &session;
}

CUresult session_check(void) {
    int now = atomic_load_explicit(&state, memory_order_acquire);
    return now == STARTED ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

uint64_t session_next_job(void) {
    return ++last_job;
}

/* ---- replies ---- */

CUresult session_expect(const char *what, const struct reply *reply, unsigned code) {
    if (reply->code == code)
        return CUDA_SUCCESS;
    if (reply->code == 0)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED; /* why was said when it was lost */
    struct reader reader = reader_of(reply_bytes(reply));
    struct wire_failed failed;
    if (reply->code == WIRE_FAILED && wire_read_failed(&reader, &failed))
        return failure_said(what, failed.error, CUDA_ERROR_INVALID_VALUE);
    say("%s: the daemon gave an answer that this library does not know", what);
    return CUDA_ERROR_UNKNOWN;
}

CUresult session_answer(const char *what, const struct reply *reply, struct wire_answer *answer) {
    CUresult code = session_expect(what, reply, WIRE_ANSWER);
    struct reader reader = reader_of(reply_bytes(reply));
    if (code == CUDA_SUCCESS && !wire_read_answer(&reader, answer))
        code = CUDA_ERROR_UNKNOWN;
    return code;
}

/* ---- starting ---- */

static void on_lost(const char *why) {
    if (atomic_load(&state) == STARTED)
        say("the connection to the daemon is lost: %s", why);
    lane_on_lost();
    jobs_on_lost();
}

static void on_finished(const struct wire_finished *message) {
    if (!jobs_on_finished(message))
        lane_on_finished(message);
}

static const struct receiver receiver = {
    .arena = arena_on_announced,
    .lane_opened = lane_on_opened,
    .launch_ended = lane_on_launch_ended,
    .finished = on_finished,
    .lost = on_lost,
};

static uint64_t number_in(struct bytes map, const char *key) {
    struct reader value = map_value(map, key);
    return read_uint(&value);
}

static void text_in(struct bytes map, const char *key, char *text, size_t room) {
    struct reader value = map_value(map, key);
    struct bytes found = read_bytes(&value);
    snprintf(text, room, "%.*s", (int)found.size, found.data ? (const char *)found.data : "");
}

static void take_device(struct bytes row) {
    struct device *device = &session.device;
    char kind[16], arrays[16];
    text_in(row, "kind", kind, sizeof kind);
    text_in(row, "arrays", arrays, sizeof arrays);
    text_in(row, "name", device->name, sizeof device->name);
    text_in(row, "uuid", device->uuid, sizeof device->uuid);
    device->is_cpu = strcmp(kind, "cpu") == 0;
    device->is_copied = strcmp(arrays, "copied") == 0;
    char *capability = strstr(device->name, " of compute capability");
    if (device->is_cpu && capability != NULL)
        *capability = 0; /* of its SMs' limits; programs are told another one below */
    device->sms = (uint32_t)number_in(row, "sms");
    device->memory_bytes = number_in(row, "memory_bytes");
    /* From 9.0 on compilers use instructions that only such a GPU has. */
    device->capability = device->is_cpu ? 86 : (uint32_t)number_in(row, "capability");
}

/* Finds the device with an index among the rows of `Welcome`. */
static bool find_device(struct bytes rows, uint32_t index) {
    struct reader reader = reader_of(rows);
    uint32_t count = read_array(&reader);
    for (uint32_t i = 0; i < count; i++) {
        struct bytes row = read_packed(&reader);
        if (i == index && !reader.failed) {
            session.device.index = index;
            take_device(row);
            return session.device.sms > 0;
        }
    }
    say("the daemon has %u devices, and none with the index %u that GPUD_DEVICE asks for", count,
        index);
    return false;
}

/* The program and its arguments, as gpuctl shows them. */
static void program_name(char *name, size_t room) {
    size_t size = 0;
    int file = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        ssize_t got = read(file, name, room - 1);
        size = got > 0 ? (size_t)got : 0;
        close(file);
    }
    while (size > 0 && name[size - 1] == 0)
        size--;
    name[size] = 0;
    char *base = strrchr(name, '/'); /* of the first argument, where the text still ends */
    if (base != NULL) {
        size -= (size_t)(base + 1 - name);
        memmove(name, base + 1, size + 1);
    }
    for (size_t i = 0; i < size; i++)
        if (name[i] == 0 || (unsigned char)name[i] >= 0x80 || name[i] < 0x20)
            name[i] = name[i] == 0 ? ' ' : '?';
}

static CUresult greet(const struct settings *settings) {
    char name[256];
    struct request request;
    struct writer frame = {0};
    program_name(name, sizeof name);
    request_open(&request);
    struct wire_hello hello = {request.number, WIRE_VERSION, bytes_of(name)};
    wire_write_hello(&frame, &hello);
    connection_ask(&request, &frame);
    CUresult code = session_expect("the daemon", &request.reply, WIRE_WELCOME);
    struct reader reader = reader_of(reply_bytes(&request.reply));
    struct wire_welcome welcome;
    if (code == CUDA_SUCCESS && !wire_read_welcome(&reader, &welcome))
        code = CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
    if (code == CUDA_SUCCESS && !find_device(welcome.devices, settings->device))
        code = CUDA_ERROR_NO_DEVICE;
    reply_free(&request.reply);
    return code;
}

static CUresult start(void) {
    struct settings settings;
    if (!settings_read(&settings))
        return CUDA_ERROR_NO_DEVICE;
    int error = connection_open(settings.socket, &receiver);
    if (error != 0) {
        say("no daemon answers at %s (%s); start one with `gpud serve`, say where it is with "
            "GPUD_SOCKET, or use a private one: gpuctl exec --local cpu -- ...",
            settings.socket, strerror(error));
        return CUDA_ERROR_NO_DEVICE;
    }
    CUresult code = greet(&settings);
    if (code == CUDA_SUCCESS && !settings_share(&session))
        code = CUDA_ERROR_NO_DEVICE;
    return code;
}

/* A child has neither the reader's thread nor a session of its own: as with CUDA, it cannot go on. */
static void in_child(void) {
    if (atomic_load(&state) != UNSTARTED)
        atomic_store(&state, FORKED);
}

CUresult session_start(void) {
    int now = atomic_load_explicit(&state, memory_order_acquire);
    if (now == STARTED)
        return CUDA_SUCCESS;
    if (now == FORKED)
        return CUDA_ERROR_NOT_INITIALIZED;
    pthread_mutex_lock(&starting);
    if (atomic_load(&state) == UNSTARTED) {
        pthread_atfork(NULL, NULL, in_child);
        refusal = start();
        atomic_store_explicit(&state, refusal == CUDA_SUCCESS ? STARTED : FAILED,
                              memory_order_release);
    }
    pthread_mutex_unlock(&starting);
    return refusal;
}
