/* Reads and writes msgpack, as far as gpud's messages need it. */
#ifndef GPUD_MSGPACK_H
#define GPUD_MSGPACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes that somebody else owns. */
struct bytes {
    const void *data;
    size_t size;
};

struct bytes bytes_of(const char *text);
bool bytes_equal(struct bytes bytes, const char *text);

/* A buffer that grows. After a failed allocation it takes nothing more, and `failed` says so. */
struct writer {
    uint8_t *data;
    size_t size, room;
    bool failed;
};

void write_raw(struct writer *writer, struct bytes packed);
void write_nil(struct writer *writer);
void write_flag(struct writer *writer, bool value);
void write_uint(struct writer *writer, uint64_t value);
void write_text(struct writer *writer, struct bytes text);
void write_blob(struct writer *writer, struct bytes blob);
void write_array(struct writer *writer, uint32_t count);
void write_list(struct writer *writer, struct bytes packed); /* an empty array if it is empty */
void writer_free(struct writer *writer);

/* What is left to be read. After a value of another type than was asked for, `failed` says so, and
 * all that is read is zero. */
struct reader {
    const uint8_t *at, *end;
    bool failed;
};

struct reader reader_of(struct bytes packed);
bool read_nil(struct reader *reader); /* takes a nil, if that comes next */
bool read_flag(struct reader *reader);
uint64_t read_uint(struct reader *reader);
struct bytes read_bytes(struct reader *reader); /* text or blob */
uint32_t read_array(struct reader *reader);
uint32_t read_map(struct reader *reader);
struct bytes read_packed(struct reader *reader); /* one value of any type, as it is */

/* The value of a key in a packed map; a reader that has failed if there is none. */
struct reader map_value(struct bytes map, const char *key);

#endif
