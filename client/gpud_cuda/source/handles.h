/* Handles: what programs hold instead of pointers to our objects.
 *
 * A program may pass any value where a handle belongs: one that was destroyed, one of another kind,
 * or none at all. So handles are never followed. They say where in a table to look, and a number
 * there, changed at each use of the place, tells whether it is still the same object. */
#ifndef GPUD_HANDLES_H
#define GPUD_HANDLES_H

enum handle_kind {
    HANDLE_CONTEXT = 1,
    HANDLE_STREAM,
    HANDLE_EVENT,
    HANDLE_MODULE,
    HANDLE_KERNEL,
    HANDLE_LINK,
    HANDLE_POOL,
};

/* A handle for an object; NULL if there are too many. */
void *handle_new(enum handle_kind kind, void *object);

/* The object, or NULL if this is no valid handle of that kind. */
void *handle_get(enum handle_kind kind, const void *handle);

/* The same, and from now on the handle is invalid. Only one caller gets the object. */
void *handle_take(enum handle_kind kind, const void *handle);

#endif
