#include "msgpack.h"

#include <stdlib.h>
#include <string.h>

struct bytes bytes_of(const char *text) {
    return (struct bytes){text, strlen(text)};
}

bool bytes_equal(struct bytes bytes, const char *text) {
    return bytes.size == strlen(text) && memcmp(bytes.data, text, bytes.size) == 0;
}

/* ---- writing ---- */

static uint8_t *grow(struct writer *writer, size_t size) {
    size_t needed = writer->size + size;
    if (needed > writer->room) {
        size_t room = needed < 256 ? 256 : needed + needed / 2;
        uint8_t *data = realloc(writer->data, room);
        if (data == NULL) {
            writer->failed = true;
            return NULL;
        }
        writer->data = data;
        writer->room = room;
    }
    uint8_t *place = writer->data + writer->size;
    writer->size = needed;
    return place;
}

static void write_head(struct writer *writer, uint8_t first, uint64_t value, unsigned width) {
    uint8_t *place = grow(writer, 1 + width);
    if (place == NULL)
        return;
    place[0] = first;
    for (unsigned i = 0; i < width; i++)
        place[1 + i] = (uint8_t)(value >> 8 * (width - 1 - i));
}

void write_raw(struct writer *writer, struct bytes packed) {
    uint8_t *place = grow(writer, packed.size);
    if (place != NULL && packed.size > 0)
        memcpy(place, packed.data, packed.size);
}

void write_nil(struct writer *writer) {
    write_head(writer, 0xC0, 0, 0);
}

void write_flag(struct writer *writer, bool value) {
    write_head(writer, value ? 0xC3 : 0xC2, 0, 0);
}

void write_uint(struct writer *writer, uint64_t value) {
    if (value < 0x80)
        write_head(writer, (uint8_t)value, 0, 0);
    else if (value <= UINT8_MAX)
        write_head(writer, 0xCC, value, 1);
    else if (value <= UINT16_MAX)
        write_head(writer, 0xCD, value, 2);
    else if (value <= UINT32_MAX)
        write_head(writer, 0xCE, value, 4);
    else
        write_head(writer, 0xCF, value, 8);
}

void write_text(struct writer *writer, struct bytes text) {
    if (text.size < 32)
        write_head(writer, (uint8_t)(0xA0 | text.size), 0, 0);
    else if (text.size <= UINT8_MAX)
        write_head(writer, 0xD9, text.size, 1);
    else
        write_head(writer, 0xDB, text.size, 4);
    write_raw(writer, text);
}

void write_blob(struct writer *writer, struct bytes blob) {
    if (blob.size <= UINT8_MAX)
        write_head(writer, 0xC4, blob.size, 1);
    else
        write_head(writer, 0xC6, blob.size, 4);
    write_raw(writer, blob);
}

void write_array(struct writer *writer, uint32_t count) {
    if (count < 16)
        write_head(writer, (uint8_t)(0x90 | count), 0, 0);
    else
        write_head(writer, 0xDD, count, 4);
}

void write_list(struct writer *writer, struct bytes packed) {
    if (packed.size == 0)
        write_array(writer, 0);
    else
        write_raw(writer, packed);
}

void writer_free(struct writer *writer) {
    free(writer->data);
    *writer = (struct writer){0};
}

/* ---- reading ---- */

struct reader reader_of(struct bytes packed) {
    const uint8_t *data = packed.data;
    return (struct reader){data, data + packed.size, false};
}

static uint64_t fail(struct reader *reader) {
    reader->failed = true;
    reader->at = reader->end;
    return 0;
}

static bool has(const struct reader *reader, uint64_t size) {
    return !reader->failed && (uint64_t)(reader->end - reader->at) >= size;
}

static uint8_t first_byte(struct reader *reader) {
    if (!has(reader, 1))
        return (uint8_t)fail(reader);
    return *reader->at++;
}

static uint64_t big_endian(struct reader *reader, unsigned width) {
    if (!has(reader, width))
        return fail(reader);
    uint64_t value = 0;
    for (unsigned i = 0; i < width; i++)
        value = value << 8 | *reader->at++;
    return value;
}

static struct bytes take(struct reader *reader, uint64_t size) {
    if (!has(reader, size)) {
        fail(reader);
        return (struct bytes){NULL, 0};
    }
    struct bytes taken = {reader->at, (size_t)size};
    reader->at += size;
    return taken;
}

bool read_nil(struct reader *reader) {
    if (!has(reader, 1) || *reader->at != 0xC0)
        return false;
    reader->at++;
    return true;
}

bool read_flag(struct reader *reader) {
    uint8_t first = first_byte(reader);
    if (first != 0xC2 && first != 0xC3)
        fail(reader);
    return first == 0xC3;
}

uint64_t read_uint(struct reader *reader) {
    uint8_t first = first_byte(reader);
    if (first < 0x80)
        return first;
    if (first >= 0xCC && first <= 0xCF)
        return big_endian(reader, 1u << (first - 0xCC));
    return fail(reader);
}

struct bytes read_bytes(struct reader *reader) {
    uint8_t first = first_byte(reader);
    if (first >= 0xA0 && first <= 0xBF)
        return take(reader, first & 0x1F);
    if (first >= 0xD9 && first <= 0xDB)
        return take(reader, big_endian(reader, 1u << (first - 0xD9)));
    if (first >= 0xC4 && first <= 0xC6)
        return take(reader, big_endian(reader, 1u << (first - 0xC4)));
    fail(reader);
    return (struct bytes){NULL, 0};
}

static uint32_t read_count(struct reader *reader, uint8_t fixed, uint8_t wide) {
    uint8_t first = first_byte(reader);
    if ((first & 0xF0) == fixed)
        return first & 0x0F;
    if (first == wide || first == wide + 1)
        return (uint32_t)big_endian(reader, first == wide ? 2 : 4);
    return (uint32_t)fail(reader);
}

uint32_t read_array(struct reader *reader) {
    return read_count(reader, 0x90, 0xDC);
}

uint32_t read_map(struct reader *reader) {
    return read_count(reader, 0x80, 0xDE);
}

/* Skips the head of a value and what belongs to it; returns how many values it holds. */
static uint64_t skip_one(struct reader *reader) {
    if (!has(reader, 1))
        return fail(reader);
    uint8_t first = *reader->at;
    if ((first & 0xF0) == 0x90 || first == 0xDC || first == 0xDD)
        return read_array(reader);
    if ((first & 0xF0) == 0x80 || first == 0xDE || first == 0xDF)
        return 2 * (uint64_t)read_map(reader);
    if ((first & 0xE0) == 0xA0 || (first >= 0xD9 && first <= 0xDB) ||
        (first >= 0xC4 && first <= 0xC6)) {
        read_bytes(reader);
        return 0;
    }
    reader->at++;
    if (first >= 0xCC && first <= 0xCF) /* unsigned */
        take(reader, 1u << (first - 0xCC));
    else if (first >= 0xD0 && first <= 0xD3) /* signed */
        take(reader, 1u << (first - 0xD0));
    else if (first == 0xCA || first == 0xCB) /* float, double */
        take(reader, first == 0xCA ? 4 : 8);
    else if (first > 0x7F && first < 0xE0 && first != 0xC0 && first != 0xC2 && first != 0xC3)
        fail(reader);
    return 0;
}

struct bytes read_packed(struct reader *reader) {
    const uint8_t *begin = reader->at;
    uint64_t left = 1;
    while (left > 0 && !reader->failed)
        left += skip_one(reader) - 1;
    if (reader->failed)
        return (struct bytes){NULL, 0};
    return (struct bytes){begin, (size_t)(reader->at - begin)};
}

struct reader map_value(struct bytes map, const char *key) {
    struct reader reader = reader_of(map);
    for (uint32_t left = read_map(&reader); left > 0 && !reader.failed; left--) {
        struct bytes name = read_bytes(&reader);
        struct bytes value = read_packed(&reader);
        if (!reader.failed && bytes_equal(name, key))
            return reader_of(value);
    }
    return (struct reader){NULL, NULL, true};
}
