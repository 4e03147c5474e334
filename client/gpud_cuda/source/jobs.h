/* Launches that a lane refuses: submitted as jobs of their own, one at a time. */
#ifndef GPUD_JOBS_H
#define GPUD_JOBS_H

#include "cuda_api.h"
#include "messages.h"

/* Submits a launch with the program's share, and waits until it has ended. */
CUresult jobs_run(const struct wire_launch_record *launch);

/* From the reader. The first returns whether the message is about such a job. */
bool jobs_on_finished(const struct wire_finished *message);
void jobs_on_lost(void);

#endif
