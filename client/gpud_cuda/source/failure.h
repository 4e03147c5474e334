/* What went wrong: CUDA's codes for gpud's errors, and sentences for people. */
#ifndef GPUD_FAILURE_H
#define GPUD_FAILURE_H

#include "cuda_api.h"
#include "msgpack.h"

struct error_name {
    CUresult code;
    const char *name;
};
extern const struct error_name error_names[]; /* sorted by code */
extern const size_t error_name_count;

/* Writes one line to stderr, with the name of this library before it. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The code for an error as it is on the wire, a map; `otherwise` if its kind has none of its own. */
CUresult failure_code(struct bytes error, CUresult otherwise);

/* Its message, to be freed. */
char *failure_message(struct bytes error);

/* Says on stderr what the daemon said of a failed request, and returns its code. */
CUresult failure_said(const char *what, struct bytes error, CUresult otherwise);

#endif
