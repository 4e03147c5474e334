/* The lane's launch sites: which it has, and which one is replaced when it has as many as it may.
 *
 * A site that is pinned is not replaced. Of the others that one is whose last launch was written
 * before those of all others; it has ended before the site's number means another kernel. */
#ifndef GPUD_SITES_H
#define GPUD_SITES_H

#include "cuda_api.h"

/* A site of the lane, until it is replaced: then the place has another generation. */
struct lane_site {
    uint32_t number, generation;
};

/* Makes a site, pinned. `refused`: no lane launches this kernel, and there is no site. */
CUresult sites_make(uint64_t module, uint64_t kernel, const uint64_t block[3], uint64_t shared,
                    struct lane_site *site, bool *refused);

/* Returns whether it was not replaced; it is pinned then. */
bool sites_pin(const struct lane_site *site);

/* Its launches have been written. */
void sites_unpin(const struct lane_site *site);

/* It is used no more; no launch of it is under way. */
void sites_free(const struct lane_site *site);

#endif
