/* The program's session with the daemon: what cuInit makes, once in a process. */
#ifndef GPUD_SESSION_H
#define GPUD_SESSION_H

#include "connection.h"
#include "cuda_api.h"

/* The one device that the program sees. */
struct device {
    uint32_t index; /* at the daemon */
    bool is_cpu;
    bool is_copied; /* its memory is reached through messages only */
    uint32_t sms;
    uint32_t capability; /* times ten, as programs are told */
    uint64_t memory_bytes;
    char name[256];
    char uuid[64];
};

/* The share that its work has, in SMs. */
struct share {
    enum { SHARE_NONE, SHARE_RESERVATION, SHARE_QUOTA } kind;
    uint64_t numerator, denominator;
};

struct session {
    struct device device;
    struct share share;
    uint32_t weight;
    uint64_t limit_bytes; /* of memory, 0: none of its own */
};

/* Connects, once; every thread gets the same result. */
CUresult session_start(void);

/* What every call begins with: CUDA_ERROR_NOT_INITIALIZED before cuInit and in a forked child. */
CUresult session_check(void);

const struct session *session_get(void);

/* The number of the next job; with the connection's lock, as they are sent in this order. */
uint64_t session_next_job(void);

/* The code of a reply that should be an `Answer`. What the daemon says against it is said on. */
CUresult session_answer(const char *what, const struct reply *reply, struct wire_answer *answer);

/* The same for any other reply: success if it has this code. */
CUresult session_expect(const char *what, const struct reply *reply, unsigned code);

#endif
