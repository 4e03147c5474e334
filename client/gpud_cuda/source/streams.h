/* Streams and events. The work of all streams is in one order, that of the calls, which CUDA allows;
 * so a stream is little more than its name. */
#ifndef GPUD_STREAMS_H
#define GPUD_STREAMS_H

#include "cuda_api.h"

/* What calls begin with that take a stream: the errors of context_enter(), and
 * CUDA_ERROR_INVALID_HANDLE for what is no stream. NULL and CUDA's two constants are streams. */
CUresult stream_enter(CUstream stream);

/* Has an event reached when all that was asked for before has ended. */
CUresult event_record(CUevent event);

#endif
