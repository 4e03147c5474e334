/* The program's lane: launches into shared memory, in one order, and their ends out of it.
 *
 * The layout of the ring and the rules for its words are in gpud/wire/lane_ring.py. */
#ifndef GPUD_LANE_H
#define GPUD_LANE_H

#include "cuda_api.h"
#include "messages.h"

/* A point between two launches; events are such. */
struct mark {
    uint64_t count;   /* launches before it */
    uint64_t time_ns; /* when the last of them had ended, monotonic */
    bool reached;
    struct mark *next;
};

/* Opens the lane if it is not; waits until it has its share. */
CUresult lane_open(void);

/* Makes a launch site, for lane_launch, with the number of one that is used no more, unless
 * `replaces` is RING_MOST_SITES. `refused`: no lane launches this kernel. See sites.h. */
CUresult lane_prepare(uint64_t module, uint64_t kernel, const uint64_t block[3], uint64_t shared,
                      uint32_t replaces, uint32_t *number, bool *refused);

/* Writes a launch; waits while the ring is full. The lane must be open. */
void lane_launch(uint32_t site, const uint32_t grid[3], const void *parameters, uint32_t size);

/* How many launches were written; waits until so many have ended. */
uint64_t lane_written(void);
void lane_wait(uint64_t count);
bool lane_reached(uint64_t count);

/* Puts a mark behind all that was written; it stays where it is until it is reached. */
void lane_mark(struct mark *mark);
bool lane_mark_reached(struct mark *mark); /* without waiting */

/* The error that ended the program's work, for good; CUDA_SUCCESS: none has. */
CUresult lane_failure(void);
void lane_fail(CUresult code);

/* From the reader. */
void lane_on_opened(const struct wire_lane_opened *message, int descriptor);
void lane_on_launch_ended(const struct wire_launch_ended *message);
void lane_on_finished(const struct wire_finished *message);
void lane_on_lost(void);

#endif
