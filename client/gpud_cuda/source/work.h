/* Work between launches: copies, memsets, host functions, launches that a lane refuses.
 *
 * All of a program's work is in one order, that of its calls: a launch may be written into the lane
 * at once only if no other work is before it. Such work is done by one thread, which waits for the
 * launches before it; a launch that is asked for meanwhile is work, too. */
#ifndef GPUD_WORK_H
#define GPUD_WORK_H

#include "cuda_api.h"

/* Embedded in what is to be done; `run` frees it. */
struct work {
    void (*run)(struct work *work);
    struct work *next;
};

void work_post(struct work *work);

/* Whether there is work that is not done. */
bool work_is_pending(void);

/* Waits for all work and launches that were asked for before. */
void work_wait(void);

/* Whether all that was asked for is done. */
bool work_is_over(void);

/* Waits for the launches before this work; called by `run`. */
void work_wait_for_launches(void);

#endif
