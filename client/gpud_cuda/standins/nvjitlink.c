/* A stand-in for libnvJitLink: what it "links" stays PTX, which gpud's driver library takes.
 *
 * Problem: frameworks link with nvJitLink before they load, and it makes machine code, which gpud
 * cannot rewrite; or it reads LTO IR, which nothing but NVIDIA's own library does.
 *
 * Approach: inputs that gpud can link are handed out as they came, in one piece that the driver
 * library knows (source/images.c). LTO IR goes to the real library, which is asked for PTX; that is
 * one more of these inputs then. The real library is needed for LTO IR only.
 *
 * All functions are those of nvJitLink.h, CUDA 12.0 to 13.x, under their plain names and under the
 * ones that the header gives them. A handle is used by one thread at a time, as with NVIDIA's. */
#include "nvjitlink.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum result {
    SUCCESS,
    UNRECOGNIZED_OPTION,
    MISSING_ARCH,
    INVALID_INPUT,
    PTX_COMPILE,
    NVVM_COMPILE,
    INTERNAL,
};

enum kind { CUBIN = 1, PTX, LTO_IR, FATBIN, OBJECT, LIBRARY, INDEX, ANY = 10 };

enum { MOST_OPTIONS = 128, LTO_MAGIC = 0x7f4e43ed, FAT_MAGIC = (int)0xba55ed50, FAT_LTO = 8 };

struct bytes {
    char *data;
    size_t size;
};

/* As source/images.c reads it; the images follow, each as msgpack bin 32. */
struct linked_header {
    char magic[8];
    uint64_t bytes;
    uint64_t count;
};

struct nvjitlink {
    char *options[MOST_OPTIONS];
    unsigned option_count;
    bool lto;
    bool asks_ptx;
    void *real;           /* the real library's handle; NULL: nothing needed it */
    struct bytes images;  /* inputs for gpud, as they are handed out */
    uint64_t image_count;
    struct bytes linked;  /* header and images; empty before nvJitLinkComplete */
    struct bytes ptx;     /* what the real library has made */
    char log[1024];
};

/* ---- the real library ---- */

static void *real_library;

static void *real_function(const char *name) {
    static const char *const versions[] = {"13_0", "12_0"};
    void *found = dlsym(real_library, name);
    char longer[96];
    for (unsigned i = 0; found == NULL && i < 2; i++) {
        snprintf(longer, sizeof longer, "__%s_%s", name, versions[i]);
        found = dlsym(real_library, longer);
    }
    return found;
}

/* Calls a function of the real library whose arguments are all pointers or numbers of their size. */
#define REAL(name, type, ...)                                                                      \
    (real_function(name) ? ((enum result(*) type)real_function(name))(__VA_ARGS__) : INTERNAL)

static void open_real(void) {
    real_library = nvjitlink_open_real();
}

static enum result say(struct nvjitlink *link, enum result result, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(link->log, sizeof link->log, format, arguments);
    va_end(arguments);
    return result;
}

/* Makes the real library's handle, which is to make PTX. */
static enum result begin_real(struct nvjitlink *link) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const char *options[MOST_OPTIONS + 2];
    unsigned count = 0;
    if (link->real != NULL)
        return SUCCESS;
    pthread_once(&once, open_real);
    if (real_library == NULL)
        return say(link, INTERNAL,
                   "LTO IR can only be read by NVIDIA's libnvJitLink, which was not found; install "
                   "nvidia-nvjitlink beside the program, or name the file in GPUD_NVJITLINK");
    for (unsigned i = 0; i < link->option_count; i++)
        options[count++] = link->options[i];
    if (!link->lto)
        options[count++] = "-lto";
    if (!link->asks_ptx)
        options[count++] = "-ptx";
    return REAL("nvJitLinkCreate", (void **, uint32_t, const char **), &link->real, count, options);
}

/* ---- inputs ---- */

static bool append(struct bytes *to, const void *data, size_t size) {
    char *grown = realloc(to->data, to->size + size);
    if (grown == NULL)
        return false;
    memcpy(grown + to->size, data, size);
    to->data = grown;
    to->size += size;
    return true;
}

static enum result keep(struct nvjitlink *link, const void *data, size_t size) {
    unsigned char head[5] = {0xc6, (unsigned char)(size >> 24), (unsigned char)(size >> 16),
                             (unsigned char)(size >> 8), (unsigned char)size};
    if (size > UINT32_MAX || !append(&link->images, head, sizeof head) ||
        !append(&link->images, data, size))
        return say(link, INTERNAL, "out of memory");
    link->image_count++;
    return SUCCESS;
}

static uint32_t word_at(const char *data, size_t size, size_t at) {
    uint32_t word = 0;
    if (at + sizeof word <= size)
        memcpy(&word, data + at, sizeof word);
    return word;
}

/* Whether a fat binary has LTO IR; its layout is that of gpud/compiler/images/fat_binary.py. */
static bool holds_lto(const char *data, size_t size) {
    size_t at = word_at(data, size, 4) >> 16;
    while (at >= 16 && size > at && size - at >= 16) {
        uint64_t payload;
        memcpy(&payload, data + at + 8, sizeof payload);
        if ((word_at(data, size, at) & 0xffff) == FAT_LTO)
            return true;
        uint64_t left = size - at, header = word_at(data, size, at + 4);
        if (header < 16 || header > left || payload > left - header)
            return false;
        at += header + payload;
    }
    return false;
}

static bool needs_real(int kind, const char *data, size_t size) {
    uint32_t magic = word_at(data, size, 0);
    if (kind == LTO_IR || magic == LTO_MAGIC)
        return true;
    return magic == (uint32_t)FAT_MAGIC && holds_lto(data, size);
}

static bool is_library(const char *data, size_t size) {
    return size >= 8 && memcmp(data, "!<arch>\n", 8) == 0;
}

STAND_IN(nvJitLinkAddData, (struct nvjitlink * link, int kind, const void *data, size_t size,
                            const char *name)) {
    if (link == NULL || data == NULL || size == 0)
        return INVALID_INPUT;
    link->log[0] = 0;
    if (needs_real(kind, data, size)) {
        enum result result = begin_real(link);
        return result ? result
                      : REAL("nvJitLinkAddData", (void *, int, const void *, size_t, const char *),
                             link->real, kind, data, size, name);
    }
    /* NVIDIA's device library: what programs call of it is built into gpud. */
    if (kind == LIBRARY || is_library(data, size))
        return SUCCESS;
    return keep(link, data, size);
}

STAND_IN(nvJitLinkAddFile, (struct nvjitlink * link, int kind, const char *path)) {
    if (link == NULL || path == NULL)
        return INVALID_INPUT;
    FILE *file = fopen(path, "rbe");
    if (file == NULL)
        return say(link, INVALID_INPUT, "%s cannot be opened", path);
    struct bytes all = {0};
    char part[1 << 16];
    size_t size;
    bool kept = true;
    while (kept && (size = fread(part, 1, sizeof part, file)) > 0)
        kept = append(&all, part, size);
    fclose(file);
    enum result result = kept ? nvJitLinkAddData(link, kind, all.data, all.size, path)
                              : say(link, INTERNAL, "out of memory");
    free(all.data);
    return result;
}

/* ---- a link ---- */

STAND_IN(nvJitLinkDestroy, (struct nvjitlink * *handle)) {
    struct nvjitlink *link = handle ? *handle : NULL;
    if (link == NULL)
        return INVALID_INPUT;
    if (link->real != NULL)
        REAL("nvJitLinkDestroy", (void **), &link->real);
    for (unsigned i = 0; i < link->option_count; i++)
        free(link->options[i]);
    free(link->images.data);
    free(link->linked.data);
    free(link->ptx.data);
    free(link);
    *handle = NULL;
    return SUCCESS;
}

STAND_IN(nvJitLinkCreate, (struct nvjitlink * *handle, uint32_t count, const char **options)) {
    if (handle == NULL || (count && options == NULL))
        return INVALID_INPUT;
    if (count > MOST_OPTIONS)
        return UNRECOGNIZED_OPTION;
    struct nvjitlink *link = calloc(1, sizeof *link);
    if (link == NULL)
        return INTERNAL;
    for (; link->option_count < count; link->option_count++) {
        const char *option = options[link->option_count];
        char *copy = link->options[link->option_count] = option ? strdup(option) : NULL;
        if (copy == NULL) {
            nvJitLinkDestroy(&link);
            return INVALID_INPUT;
        }
        link->lto |= strcmp(copy, "-lto") == 0 || strcmp(copy, "-dlto") == 0;
        link->asks_ptx |= strcmp(copy, "-ptx") == 0;
    }
    *handle = link;
    return SUCCESS;
}

/* Takes the PTX that the real library has made of LTO IR. */
static enum result take_ptx(struct nvjitlink *link) {
    size_t size = 0;
    enum result result = REAL("nvJitLinkComplete", (void *), link->real);
    if (result == SUCCESS)
        result = REAL("nvJitLinkGetLinkedPtxSize", (void *, size_t *), link->real, &size);
    if (result != SUCCESS)
        return result;
    link->ptx.data = calloc(size + 1, 1);
    if (link->ptx.data == NULL)
        return say(link, INTERNAL, "out of memory");
    link->ptx.size = size;
    result = REAL("nvJitLinkGetLinkedPtx", (void *, char *), link->real, link->ptx.data);
    return result ? result : keep(link, link->ptx.data, strlen(link->ptx.data));
}

STAND_IN(nvJitLinkComplete, (struct nvjitlink * link)) {
    if (link == NULL)
        return INVALID_INPUT;
    enum result result = link->real && link->ptx.data == NULL ? take_ptx(link) : SUCCESS;
    if (result != SUCCESS)
        return result;
    if (link->image_count == 0)
        return say(link, INVALID_INPUT, "nothing was added that can be linked");
    struct linked_header header = {.bytes = link->images.size, .count = link->image_count};
    memcpy(header.magic, "GPUDLINK", sizeof header.magic);
    link->linked.size = 0;
    if (!append(&link->linked, &header, sizeof header) ||
        !append(&link->linked, link->images.data, link->images.size))
        return say(link, INTERNAL, "out of memory");
    return SUCCESS;
}

/* ---- results ---- */

static enum result size_of(const struct bytes *what, size_t *size) {
    if (size == NULL || what->data == NULL)
        return INVALID_INPUT;
    *size = what->size;
    return SUCCESS;
}

static enum result copy_of(const struct bytes *what, void *to) {
    if (to == NULL || what->data == NULL)
        return INVALID_INPUT;
    memcpy(to, what->data, what->size);
    return SUCCESS;
}

STAND_IN(nvJitLinkGetLinkedCubinSize, (struct nvjitlink * link, size_t *size)) {
    return link ? size_of(&link->linked, size) : INVALID_INPUT;
}

STAND_IN(nvJitLinkGetLinkedCubin, (struct nvjitlink * link, void *cubin)) {
    return link ? copy_of(&link->linked, cubin) : INVALID_INPUT;
}

STAND_IN(nvJitLinkGetLinkedPtxSize, (struct nvjitlink * link, size_t *size)) {
    return link ? size_of(&link->ptx, size) : INVALID_INPUT;
}

STAND_IN(nvJitLinkGetLinkedPtx, (struct nvjitlink * link, char *ptx)) {
    return link ? copy_of(&link->ptx, ptx) : INVALID_INPUT;
}

STAND_IN(nvJitLinkGetLinkedLTOIRSize, (struct nvjitlink * link, size_t *size)) {
    (void)link, (void)size;
    return INVALID_INPUT; /* nothing is linked to LTO IR here */
}

STAND_IN(nvJitLinkGetLinkedLTOIR, (struct nvjitlink * link, void *ir)) {
    (void)link, (void)ir;
    return INVALID_INPUT;
}

/* What was said here, else what the real library says. */
STAND_IN(nvJitLinkGetErrorLogSize, (struct nvjitlink * link, size_t *size)) {
    if (link == NULL || size == NULL)
        return INVALID_INPUT;
    if (link->real != NULL && link->log[0] == 0)
        return REAL("nvJitLinkGetErrorLogSize", (void *, size_t *), link->real, size);
    *size = strlen(link->log) + 1;
    return SUCCESS;
}

STAND_IN(nvJitLinkGetErrorLog, (struct nvjitlink * link, char *log)) {
    if (link == NULL || log == NULL)
        return INVALID_INPUT;
    if (link->real != NULL && link->log[0] == 0)
        return REAL("nvJitLinkGetErrorLog", (void *, char *), link->real, log);
    strcpy(log, link->log);
    return SUCCESS;
}

STAND_IN(nvJitLinkGetInfoLogSize, (struct nvjitlink * link, size_t *size)) {
    if (link == NULL || size == NULL)
        return INVALID_INPUT;
    if (link->real != NULL)
        return REAL("nvJitLinkGetInfoLogSize", (void *, size_t *), link->real, size);
    *size = 1;
    return SUCCESS;
}

STAND_IN(nvJitLinkGetInfoLog, (struct nvjitlink * link, char *log)) {
    if (link == NULL || log == NULL)
        return INVALID_INPUT;
    if (link->real != NULL)
        return REAL("nvJitLinkGetInfoLog", (void *, char *), link->real, log);
    *log = 0;
    return SUCCESS;
}

STAND_IN(nvJitLinkVersion, (unsigned *major, unsigned *minor)) {
    if (major == NULL || minor == NULL)
        return INVALID_INPUT;
    *major = NVJITLINK_MAJOR;
    *minor = NVJITLINK_MAJOR == 12 ? 9 : 0;
    return SUCCESS;
}
