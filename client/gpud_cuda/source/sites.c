#include "sites.h"

#include <pthread.h>

#include "lane.h"
#include "ring_layout.h"

struct place {
    uint32_t generation;
    uint32_t pins;
    bool is_used;
    uint64_t last; /* launches of the lane that were written when it was last unpinned */
};

static struct {
    pthread_mutex_t lock;
    struct place places[RING_MOST_SITES];
    uint32_t count; /* numbers that the lane has given */
} sites = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The place to be replaced; RING_MOST_SITES if all are pinned. With the lock. */
static uint32_t find_replaceable(void) {
    uint32_t found = RING_MOST_SITES;
    for (uint32_t i = 0; i < sites.count; i++) {
        const struct place *place = &sites.places[i];
        if (!place->is_used)
            return i;
        if (place->pins == 0 &&
            (found == RING_MOST_SITES || place->last < sites.places[found].last))
            found = i;
    }
    return found;
}

/* Takes a place for a new site, pinned. `replaces` is RING_MOST_SITES if it gets a new number;
 * then the lane says which. */
static bool take_place(uint32_t *replaces, uint64_t *last) {
    pthread_mutex_lock(&sites.lock);
    uint32_t place = sites.count < RING_MOST_SITES ? RING_MOST_SITES : find_replaceable();
    bool taken = sites.count < RING_MOST_SITES || place != RING_MOST_SITES;
    *last = 0;
    if (place != RING_MOST_SITES) {
        *last = sites.places[place].last;
        sites.places[place].generation++;
        sites.places[place].pins = 1;
        sites.places[place].is_used = true;
    }
    *replaces = place;
    pthread_mutex_unlock(&sites.lock);
    return taken;
}

static void keep(uint32_t number, bool is_made, struct lane_site *site) {
    pthread_mutex_lock(&sites.lock);
    struct place *place = &sites.places[number];
    place->is_used = is_made;
    place->pins = is_made ? 1 : 0;
    if (number >= sites.count)
        sites.count = number + 1;
    *site = (struct lane_site){number, place->generation};
    pthread_mutex_unlock(&sites.lock);
}

CUresult sites_make(uint64_t module, uint64_t kernel, const uint64_t block[3], uint64_t shared,
                    struct lane_site *site, bool *refused) {
    uint32_t replaces, number;
    uint64_t last;
    if (!take_place(&replaces, &last))
        return CUDA_ERROR_OUT_OF_MEMORY; /* a thousand threads launch at once */
    lane_wait(last);
    CUresult code = lane_prepare(module, kernel, block, shared, replaces, &number, refused);
    bool is_made = code == CUDA_SUCCESS && !*refused;
    if (is_made && number >= RING_MOST_SITES)
        return CUDA_ERROR_UNKNOWN;
    if (is_made)
        keep(number, true, site);
    else if (replaces != RING_MOST_SITES)
        keep(replaces, false, site);
    return code;
}

bool sites_pin(const struct lane_site *site) {
    pthread_mutex_lock(&sites.lock);
    struct place *place = &sites.places[site->number];
    bool is_there = place->generation == site->generation && place->is_used;
    if (is_there)
        place->pins++;
    pthread_mutex_unlock(&sites.lock);
    return is_there;
}

void sites_unpin(const struct lane_site *site) {
    uint64_t written = lane_written();
    pthread_mutex_lock(&sites.lock);
    sites.places[site->number].pins--;
    sites.places[site->number].last = written;
    pthread_mutex_unlock(&sites.lock);
}

void sites_free(const struct lane_site *site) {
    pthread_mutex_lock(&sites.lock);
    struct place *place = &sites.places[site->number];
    if (place->generation == site->generation)
        place->is_used = false;
    pthread_mutex_unlock(&sites.lock);
}
