#include "pinned.h"

#include <pthread.h>
#include <stdlib.h>

#include "arena.h"

struct pinned {
    const char *begin;
    size_t size;
    struct pinned *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pinned *all;

static bool overlaps(const struct pinned *one, const char *begin, size_t size) {
    return begin < one->begin + one->size && one->begin < begin + size;
}

CUresult pinned_add(const void *begin, size_t size) {
    CUresult code = CUDA_SUCCESS;
    struct pinned *added = malloc(sizeof *added);
    if (added == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    for (const struct pinned *one = all; one != NULL; one = one->next)
        if (overlaps(one, begin, size))
            code = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    if (code == CUDA_SUCCESS) {
        *added = (struct pinned){begin, size, all};
        all = added;
    }
    pthread_mutex_unlock(&lock);
    if (code != CUDA_SUCCESS)
        free(added);
    return code;
}

CUresult pinned_remove(const void *begin) {
    struct pinned *found = NULL;
    pthread_mutex_lock(&lock);
    struct pinned **place = &all;
    while (*place != NULL && (*place)->begin != begin)
        place = &(*place)->next;
    if (*place != NULL) {
        found = *place;
        *place = found->next;
    }
    pthread_mutex_unlock(&lock);
    free(found);
    return found ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

bool pinned_has(const void *begin, size_t size) {
    if (arena_device(begin) != 0)
        return true;
    bool has = false;
    const char *from = begin;
    pthread_mutex_lock(&lock);
    for (const struct pinned *one = all; one != NULL; one = one->next)
        has |= from >= one->begin && from + size <= one->begin + one->size;
    pthread_mutex_unlock(&lock);
    return has;
}
