/* Contexts: each thread has a stack of them; all of a program's share its memory and its work. */
#ifndef GPUD_CONTEXTS_H
#define GPUD_CONTEXTS_H

#include "cuda_api.h"

/* What calls begin with that need a context: the errors that CUDA documents for all of them.
 *   CUDA_ERROR_NOT_INITIALIZED  before cuInit, in a forked child
 *   CUDA_ERROR_INVALID_CONTEXT  the thread has none
 *   CUDA_ERROR_CONTEXT_IS_DESTROYED  it has, but no more
 *   what has ended the program's work, from then on for good */
CUresult context_enter(void);

/* The thread's current context; NULL if it has none. */
CUcontext context_current(void);

#endif
