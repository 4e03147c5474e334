/* What `gpuctl exec`, or whoever sets up a service, says in the environment. */
#ifndef GPUD_SETTINGS_H
#define GPUD_SETTINGS_H

#include "session.h"

struct settings {
    char socket[108];
    uint32_t device;
};

/* Both say on stderr what is wrong, and return whether nothing is. */
bool settings_read(struct settings *settings);
bool settings_share(struct session *session);

#endif
