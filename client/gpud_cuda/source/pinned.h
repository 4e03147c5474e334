/* Host memory that a program has registered, or has allocated as such: copies from and to it may be
 * done after the call that asks for them has returned. */
#ifndef GPUD_PINNED_H
#define GPUD_PINNED_H

#include "cuda_api.h"

CUresult pinned_add(const void *begin, size_t size);
CUresult pinned_remove(const void *begin);
bool pinned_has(const void *begin, size_t size);

#endif
