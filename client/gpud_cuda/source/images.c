/* What is sent to be compiled: images as they are, which the daemon takes apart. */
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "modules.h"

enum { WRAPPER_MAGIC = 0x466243b1, FAT_MAGIC = (int)0xba55ed50 };

/* What a program with images in it hands to the driver. */
struct fat_wrapper {
    uint32_t magic, version;
    const void *data;
    void *file;
};

struct fat_header {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t bytes; /* after the header */
};

/* Of our own: what cuLinkComplete hands out. The msgpack of `count` images follows. */
struct linked_header {
    char magic[8];
    uint64_t bytes;
    uint64_t count;
};
static const char LINKED_MAGIC[8] = "GPUDLINK";

void images_take_options(struct images *images, unsigned count, const CUjit_option *options,
                         void **values) {
    for (unsigned i = 0; options != NULL && values != NULL && i < count; i++) {
        if (options[i] == CU_JIT_ERROR_LOG_BUFFER)
            images->error_log = values[i];
        if (options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) {
            images->error_log_room = (size_t)(uintptr_t)values[i];
            images->error_log_size = &values[i];
        }
        if (options[i] == CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES)
            values[i] = NULL; /* nothing is said when all is well */
    }
}

/* Machine code is as long as its table of sections reaches, which is at its end. */
static size_t elf_bytes(const void *image) {
    Elf64_Ehdr header;
    memcpy(&header, image, sizeof header);
    return header.e_shoff + (size_t)header.e_shentsize * header.e_shnum;
}

static struct bytes find_bytes(const void *image) {
    uint32_t magic;
    memcpy(&magic, image, sizeof magic);
    if (magic == WRAPPER_MAGIC) {
        struct fat_wrapper wrapper;
        memcpy(&wrapper, image, sizeof wrapper);
        image = wrapper.data;
        memcpy(&magic, image, sizeof magic);
    }
    if (magic == (uint32_t)FAT_MAGIC) {
        struct fat_header header;
        memcpy(&header, image, sizeof header);
        return (struct bytes){image, header.header_bytes + header.bytes};
    }
    if (memcmp(image, ELFMAG, SELFMAG) == 0)
        return (struct bytes){image, elf_bytes(image)};
    return bytes_of(image);
}

static void add_linked(struct images *images, const void *image) {
    struct linked_header header;
    memcpy(&header, image, sizeof header);
    write_raw(&images->list, (struct bytes){(const char *)image + sizeof header, header.bytes});
    images->count += (uint32_t)header.count;
}

void images_write_linked(const struct images *images, struct writer *linked) {
    struct linked_header header = {.bytes = images->list.size, .count = images->count};
    memcpy(header.magic, LINKED_MAGIC, sizeof header.magic);
    write_raw(linked, (struct bytes){&header, sizeof header});
    write_raw(linked, (struct bytes){images->list.data, images->list.size});
}

CUresult images_add(struct images *images, const void *image, size_t size) {
    if (image == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (memcmp(image, LINKED_MAGIC, 4) == 0 &&
        memcmp(image, LINKED_MAGIC, sizeof LINKED_MAGIC) == 0) {
        add_linked(images, image);
        return images->list.failed ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    }
    struct bytes bytes = size ? (struct bytes){image, size} : find_bytes(image);
    if (bytes.size > UINT32_MAX)
        return CUDA_ERROR_INVALID_IMAGE;
    write_blob(&images->list, bytes);
    images->count++;
    return images->list.failed ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

void images_free(struct images *images) {
    writer_free(&images->list);
}

char *images_read_file(const char *path, size_t *size) {
    FILE *file = path ? fopen(path, "rbe") : NULL;
    char *data = NULL;
    if (file == NULL)
        return NULL;
    if (fseek(file, 0, SEEK_END) == 0) {
        long end = ftell(file);
        rewind(file);
        data = end >= 0 ? calloc((size_t)end + 64, 1) : NULL;
        *size = data ? fread(data, 1, (size_t)end, file) : 0;
    }
    fclose(file);
    return data;
}
