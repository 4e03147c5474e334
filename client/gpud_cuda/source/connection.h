/* The connection to the daemon: frames to it in order, replies by number, descriptors with them.
 *
 * One thread reads. Threads that ask sleep until their reply has come or the connection is lost,
 * after which every request fails. */
#ifndef GPUD_CONNECTION_H
#define GPUD_CONNECTION_H

#include <pthread.h>
#include <stdbool.h>

#include "messages.h"

/* A message that has come, with its frame, which it refers to. */
struct reply {
    unsigned code; /* WIRE_..., 0: none */
    uint8_t *body;
    size_t size;
};

struct bytes reply_bytes(const struct reply *reply);
void reply_free(struct reply *reply);

/* What waits for a reply. */
struct request {
    uint32_t number;
    bool done;
    struct reply reply; /* code 0: the connection is lost */
    struct request *next;
};

/* What messages go to that answer no request; called by the reader with nothing locked. */
struct receiver {
    void (*arena)(const struct wire_arena *message, int descriptor);
    void (*lane_opened)(const struct wire_lane_opened *message, int descriptor);
    void (*launch_ended)(const struct wire_launch_ended *message);
    void (*finished)(const struct wire_finished *message);
    void (*lost)(const char *why);
};

/* Connects to the socket; returns 0, or an errno. The receiver stays where it is. */
int connection_open(const char *path, const struct receiver *receiver);
bool connection_lost(void);

/* Enters a request, whose number goes into the message; then sends it and waits. */
void request_open(struct request *request);
void connection_ask(struct request *request, struct writer *frame);

/* Sends a message that is not answered; takes the frame. Messages numbered by their place in the
 * stream are encoded between `connection_lock` and `connection_unlock`, with `connection_put`. */
void connection_send(struct writer *frame);
void connection_lock(void);
void connection_put(struct writer *frame);
void connection_unlock(void);

#endif
