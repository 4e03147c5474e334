#include "connection.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { HEADER_BYTES = 4, PIECE_BYTES = 1 << 16, MOST_DESCRIPTORS = 16 };

static struct {
    int socket;
    const struct receiver *receiver;
    pthread_mutex_t sending;

    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t settled;
    struct request *requests;
    uint32_t last_number;
    bool lost;

    /* The reader's own. */
    uint8_t *buffer;
    size_t size, room;
    int descriptors[MOST_DESCRIPTORS];
    unsigned descriptor_count;
    char goodbye[512];
} connection = {
    .socket = -1,
    .sending = PTHREAD_MUTEX_INITIALIZER,
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .settled = PTHREAD_COND_INITIALIZER,
};

struct bytes reply_bytes(const struct reply *reply) {
    return (struct bytes){reply->body, reply->size};
}

void reply_free(struct reply *reply) {
    free(reply->body);
    *reply = (struct reply){0};
}

bool connection_lost(void) {
    pthread_mutex_lock(&connection.lock);
    bool lost = connection.lost;
    pthread_mutex_unlock(&connection.lock);
    return lost;
}

/* ---- what has come ---- */

/* The reader holds the frame; a request gets a copy, as it outlives the buffer. */
static void settle(uint32_t number, unsigned code, struct bytes body) {
    uint8_t *copy = malloc(body.size + 1);
    if (copy == NULL)
        abort(); /* a reply that is lost would be waited for for ever */
    memcpy(copy, body.data, body.size);
    pthread_mutex_lock(&connection.lock);
    struct request **place = &connection.requests;
    while (*place != NULL && (*place)->number != number)
        place = &(*place)->next;
    struct request *request = *place;
    if (request != NULL) {
        *place = request->next;
        request->reply = (struct reply){code, copy, body.size};
        request->done = true;
        pthread_cond_broadcast(&connection.settled);
    }
    pthread_mutex_unlock(&connection.lock);
    if (request == NULL)
        free(copy);
}

static int next_descriptor(void) {
    if (connection.descriptor_count == 0)
        return -1;
    int first = connection.descriptors[0];
    connection.descriptor_count--;
    memmove(connection.descriptors, connection.descriptors + 1,
            connection.descriptor_count * sizeof first);
    return first;
}

static void note_goodbye(struct reader *reader) {
    struct wire_goodbye message;
    if (!wire_read_goodbye(reader, &message))
        return;
    struct reader value = map_value(message.error, "message");
    struct bytes text = read_bytes(&value);
    snprintf(connection.goodbye, sizeof connection.goodbye, "%.*s", (int)text.size,
             (const char *)text.data);
}

static void receive_arena(struct reader *reader) {
    struct wire_arena message;
    if (wire_read_arena(reader, &message))
        connection.receiver->arena(&message, next_descriptor());
}

static void receive_lane(struct reader *reader) {
    struct wire_lane_opened message;
    if (wire_read_lane_opened(reader, &message))
        connection.receiver->lane_opened(&message, next_descriptor());
}

static void receive_launch_ended(struct reader *reader) {
    struct wire_launch_ended message;
    if (wire_read_launch_ended(reader, &message))
        connection.receiver->launch_ended(&message);
}

static void receive_finished(struct reader *reader) {
    struct wire_finished message;
    if (wire_read_finished(reader, &message))
        connection.receiver->finished(&message);
}

static void handle(struct bytes body) {
    struct reader head = reader_of(body), whole = head;
    read_array(&head);
    unsigned code = (unsigned)read_uint(&head);
    switch (code) {
    case WIRE_ARENA:
        receive_arena(&whole);
        break;
    case WIRE_LANE_OPENED:
        receive_lane(&whole);
        break;
    case WIRE_LAUNCH_ENDED:
        receive_launch_ended(&whole);
        break;
    case WIRE_FINISHED:
        receive_finished(&whole);
        break;
    case WIRE_GOODBYE:
        note_goodbye(&whole);
        break;
    default: /* a reply, whose first field is the request's number, or nothing for us */
        settle((uint32_t)read_uint(&head), code, body);
    }
}

static size_t frame_bytes(const uint8_t *at) {
    return (size_t)at[0] | (size_t)at[1] << 8 | (size_t)at[2] << 16 | (size_t)at[3] << 24;
}

/* Handles the complete frames in the buffer. */
static void handle_frames(void) {
    size_t begin = 0;
    while (connection.size - begin >= HEADER_BYTES) {
        size_t size = frame_bytes(connection.buffer + begin);
        if (connection.size - begin - HEADER_BYTES < size)
            break;
        handle((struct bytes){connection.buffer + begin + HEADER_BYTES, size});
        begin += HEADER_BYTES + size;
    }
    connection.size -= begin;
    if (begin > 0)
        memmove(connection.buffer, connection.buffer + begin, connection.size);
}

static void keep_descriptors(struct msghdr *message) {
    for (struct cmsghdr *one = CMSG_FIRSTHDR(message); one; one = CMSG_NXTHDR(message, one)) {
        if (one->cmsg_level != SOL_SOCKET || one->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (one->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int descriptor;
            memcpy(&descriptor, CMSG_DATA(one) + i * sizeof descriptor, sizeof descriptor);
            if (connection.descriptor_count < MOST_DESCRIPTORS)
                connection.descriptors[connection.descriptor_count++] = descriptor;
            else
                close(descriptor);
        }
    }
}

/* Reads a piece of the stream; returns whether there was one. */
static bool read_piece(void) {
    if (connection.room - connection.size < PIECE_BYTES) {
        size_t room = 2 * connection.room + 2 * PIECE_BYTES;
        uint8_t *buffer = realloc(connection.buffer, room);
        if (buffer == NULL)
            return false;
        connection.buffer = buffer;
        connection.room = room;
    }
    union {
        struct cmsghdr aligned;
        char bytes[CMSG_SPACE(MOST_DESCRIPTORS * sizeof(int))];
    } control;
    struct iovec piece = {connection.buffer + connection.size, connection.room - connection.size};
    struct msghdr message = {
        .msg_iov = &piece,
        .msg_iovlen = 1,
        .msg_control = &control,
        .msg_controllen = sizeof control,
    };
    ssize_t got;
    do
        got = recvmsg(connection.socket, &message, MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
    if (got <= 0)
        return false;
    keep_descriptors(&message);
    connection.size += (size_t)got;
    return true;
}

static void lose(void) {
    pthread_mutex_lock(&connection.lock);
    connection.lost = true;
    for (struct request *one = connection.requests; one != NULL; one = one->next)
        one->done = true; /* without a reply */
    connection.requests = NULL;
    pthread_cond_broadcast(&connection.settled);
    pthread_mutex_unlock(&connection.lock);
    const char *why = connection.goodbye[0] ? connection.goodbye : "the daemon has ended";
    connection.receiver->lost(why);
}

static void *read_frames(void *unused) {
    (void)unused;
    while (read_piece())
        handle_frames();
    lose();
    return NULL;
}

/* ---- opening ---- */

/* The program's signals are not for this thread. */
static int start_reader(void) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t thread;
    int error = pthread_create(&thread, NULL, read_frames, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0)
        pthread_detach(thread);
    return error;
}

int connection_open(const char *path, const struct receiver *receiver) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path)
        return ENAMETOOLONG;
    memcpy(address.sun_path, path, strlen(path));
    int socket_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (socket_ < 0)
        return errno;
    int failed;
    do
        failed = connect(socket_, (struct sockaddr *)&address, sizeof address);
    while (failed && errno == EINTR);
    int error = failed ? errno : 0;
    if (error == 0) {
        connection.socket = socket_;
        connection.receiver = receiver;
        error = start_reader();
    }
    if (error != 0)
        close(socket_);
    return error;
}

/* ---- sending ---- */

void request_open(struct request *request) {
    *request = (struct request){0};
    pthread_mutex_lock(&connection.lock);
    request->number = ++connection.last_number;
    if (request->number == 0) /* 0 is for requests whose number cannot be read */
        request->number = ++connection.last_number;
    if (connection.lost) {
        request->done = true;
    } else {
        request->next = connection.requests;
        connection.requests = request;
    }
    pthread_mutex_unlock(&connection.lock);
}

static bool send_all(const uint8_t *data, size_t size) {
    while (size > 0) {
        ssize_t sent = send(connection.socket, data, size, MSG_NOSIGNAL);
        if (sent < 0 && errno != EINTR)
            return false; /* the reader finds out what is wrong */
        if (sent > 0) {
            data += sent;
            size -= (size_t)sent;
        }
    }
    return true;
}

void connection_lock(void) {
    pthread_mutex_lock(&connection.sending);
}

void connection_unlock(void) {
    pthread_mutex_unlock(&connection.sending);
}

void connection_put(struct writer *frame) {
    if (frame->failed)
        abort(); /* it would be waited for for ever */
    size_t size = frame->size;
    uint8_t header[HEADER_BYTES] = {(uint8_t)size, (uint8_t)(size >> 8), (uint8_t)(size >> 16),
                                    (uint8_t)(size >> 24)};
    if (send_all(header, sizeof header))
        send_all(frame->data, size);
    writer_free(frame);
}

void connection_send(struct writer *frame) {
    connection_lock();
    connection_put(frame);
    connection_unlock();
}

void connection_ask(struct request *request, struct writer *frame) {
    connection_send(frame);
    pthread_mutex_lock(&connection.lock);
    while (!request->done)
        pthread_cond_wait(&connection.settled, &connection.lock);
    pthread_mutex_unlock(&connection.lock);
}
