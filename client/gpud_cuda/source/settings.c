#include "settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "failure.h"

static const char *variable(const char *name) {
    const char *value = getenv(name);
    return value != NULL && *value ? value : NULL;
}

/* A whole number; `least` to `most`. */
static bool whole(const char *name, uint64_t least, uint64_t most, uint64_t otherwise,
                  uint64_t *number) {
    const char *text = variable(name);
    *number = otherwise;
    if (text == NULL)
        return true;
    char *end;
    unsigned long long value = strtoull(text, &end, 10);
    if (*end || *text == '-' || value < least || value > most) {
        say("%s=%s is not a number from %llu to %llu", name, text, (unsigned long long)least,
            (unsigned long long)most);
        return false;
    }
    *number = value;
    return true;
}

/* As gpud.wire.socket_path says. */
static bool find_socket(char *path, size_t room) {
    const char *named = variable("GPUD_SOCKET"), *runtime = variable("XDG_RUNTIME_DIR");
    int size;
    if (named != NULL)
        size = snprintf(path, room, "%s", named);
    else if (runtime != NULL && *runtime == '/')
        size = snprintf(path, room, "%s/gpud/gpud.sock", runtime);
    else if (getuid() == 0)
        size = snprintf(path, room, "/run/gpud/gpud.sock");
    else
        size = snprintf(path, room, "/tmp/gpud-%u/gpud.sock", (unsigned)getuid());
    if ((size_t)size < room)
        return true;
    say("the socket's path has %d bytes; at most %zu are possible", size, room - 1);
    return false;
}

bool settings_read(struct settings *settings) {
    uint64_t device;
    if (!find_socket(settings->socket, sizeof settings->socket) ||
        !whole("GPUD_EXEC_DEVICE", 0, 255, 0, &device))
        return false;
    settings->device = (uint32_t)device;
    return true;
}

/* Digits, and after a point others; the number is *numerator / *denominator. */
static bool read_decimal(const char **at, uint64_t *numerator, uint64_t *denominator) {
    enum { MOST_DIGITS = 12 };
    int digits = 0;
    bool fraction = false;
    *numerator = 0;
    *denominator = 1;
    for (;; (*at)++) {
        if (**at == '.' && !fraction) {
            fraction = true;
            continue;
        }
        if (**at < '0' || **at > '9')
            break;
        if (++digits > MOST_DIGITS)
            return false;
        *numerator = 10 * *numerator + (uint64_t)(**at - '0');
        if (fraction)
            *denominator *= 10;
    }
    return digits > 0;
}

/* A share as gpud.units.share has it: "2", "1.5", "3/4", "25%". */
static bool read_share(const char *text, uint32_t sms, struct share *share) {
    const char *at = text;
    if (!read_decimal(&at, &share->numerator, &share->denominator))
        return false;
    if (*at == '/') {
        uint64_t by, ten;
        at++;
        if (!read_decimal(&at, &by, &ten) || by == 0 || ten != 1 || share->denominator != 1)
            return false;
        share->denominator = by;
    } else if (*at == '%') {
        at++;
        share->numerator *= sms;
        share->denominator *= 100;
    }
    return *at == 0 && share->numerator > 0;
}

bool settings_share(struct session *session) {
    const char *reservation = variable("GPUD_EXEC_RESERVATION");
    const char *quota = variable("GPUD_EXEC_QUOTA");
    uint64_t weight;
    if (reservation != NULL && quota != NULL) {
        say("GPUD_EXEC_RESERVATION and GPUD_EXEC_QUOTA are both set; a program has one of them");
        return false;
    }
    session->share.kind = reservation ? SHARE_RESERVATION : quota ? SHARE_QUOTA : SHARE_NONE;
    const char *text = reservation ? reservation : quota;
    if (text != NULL && !read_share(text, session->device.sms, &session->share)) {
        say("'%s' is no share; write a number of SMs (2, 1.5, 3/4) or a percentage (25%%)", text);
        return false;
    }
    if (quota != NULL &&
        session->share.numerator / session->share.denominator >= session->device.sms) {
        session->share.numerator = session->device.sms; /* a quota is at most the whole device */
        session->share.denominator = 1;
    }
    if (!whole("GPUD_EXEC_WEIGHT", 1, 1000, 1, &weight) ||
        !whole("GPUD_EXEC_MEMORY", 1, UINT64_MAX, 0, &session->limit_bytes))
        return false;
    session->weight = (uint32_t)weight;
    return true;
}
