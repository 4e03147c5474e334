/* Functions by name and version, as cuGetProcAddress finds them; the table is generated. */
#ifndef GPUD_LOOKUP_H
#define GPUD_LOOKUP_H

#include <stddef.h>

struct driver_function {
    const char *name;
    int version;    /* of CUDA, from which on the name means this function */
    int per_thread; /* for the per-thread default stream */
    void (*function)(void);
};

extern const struct driver_function driver_functions[]; /* sorted by name */
extern const size_t driver_function_count;

#endif
