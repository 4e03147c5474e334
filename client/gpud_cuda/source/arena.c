#include "arena.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "connection.h"
#include "failure.h"
#include "session.h"

enum { ALIGNMENT = 512, SMALL_BYTES = 1 << 20, SLAB_BYTES = 8 << 20, PAGE_BYTES = 4096 };

/* A range of a slab: allocated, or free. Ranges are kept in the order of their addresses; those of
 * one slab follow one another without gaps, and two free ones are never neighbours. */
struct range {
    CUdeviceptr address;
    size_t size;  /* with what fills it up to ALIGNMENT */
    size_t asked; /* 0: free */
    CUdeviceptr slab;
    size_t slab_size;
    enum allocation_kind kind;
    uint64_t number;
};

static struct {
    pthread_mutex_t lock;
    struct range *ranges;
    size_t count, room;
    uint64_t last_number;
    uint64_t used_bytes; /* in allocations */
    uint64_t held_bytes; /* in slabs */

    CUdeviceptr base; /* of the arena on the device, and here */
    size_t size;
    char *map;
} arena = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- ranges; with the lock ---- */

/* The place of the last range that begins at or before an address, plus one. */
static size_t place_after(CUdeviceptr address) {
    size_t low = 0, high = arena.count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (arena.ranges[middle].address <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static struct range *range_at(CUdeviceptr address) {
    size_t place = place_after(address);
    if (place == 0)
        return NULL;
    struct range *range = &arena.ranges[place - 1];
    return address - range->address < range->size ? range : NULL;
}

static bool insert(size_t place, struct range range) {
    if (arena.count == arena.room) {
        size_t room = arena.room ? 2 * arena.room : 64;
        struct range *ranges = realloc(arena.ranges, room * sizeof *ranges);
        if (ranges == NULL)
            return false;
        arena.ranges = ranges;
        arena.room = room;
    }
    memmove(&arena.ranges[place + 1], &arena.ranges[place],
            (arena.count - place) * sizeof *arena.ranges);
    arena.ranges[place] = range;
    arena.count++;
    return true;
}

static void remove_at(size_t place) {
    arena.count--;
    memmove(&arena.ranges[place], &arena.ranges[place + 1],
            (arena.count - place) * sizeof *arena.ranges);
}

/* The smallest free range that is large enough; arena.count if there is none. */
static size_t best_fit(size_t size) {
    size_t best = arena.count;
    for (size_t i = 0; i < arena.count; i++) {
        const struct range *range = &arena.ranges[i];
        if (range->asked == 0 && range->size >= size &&
            (best == arena.count || range->size < arena.ranges[best].size))
            best = i;
    }
    return best;
}

/* Allocates the beginning of a free range. */
static bool carve(size_t place, size_t size, size_t asked, enum allocation_kind kind,
                  CUdeviceptr *address) {
    struct range rest = arena.ranges[place];
    rest.address += size;
    rest.size -= size;
    if (rest.size > 0 && !insert(place + 1, rest))
        return false;
    struct range *range = &arena.ranges[place];
    range->size = size;
    range->asked = asked;
    range->kind = kind;
    range->number = ++arena.last_number;
    arena.used_bytes += asked;
    *address = range->address;
    return true;
}

/* ---- slabs, from the daemon ---- */

static CUresult ask_for_slab(size_t size, CUdeviceptr *address, bool quiet) {
    struct request request;
    struct writer frame = {0};
    request_open(&request);
    struct wire_allocate message = {
        .request = request.number, .device = session_get()->device.index, .size = size};
    wire_write_allocate(&frame, &message);
    connection_ask(&request, &frame);
    CUresult code = CUDA_ERROR_OUT_OF_MEMORY;
    if (!quiet || request.reply.code == WIRE_ALLOCATED)
        code = session_expect("memory", &request.reply, WIRE_ALLOCATED);
    struct reader reader = reader_of(reply_bytes(&request.reply));
    struct wire_allocated allocated;
    if (code == CUDA_SUCCESS && wire_read_allocated(&reader, &allocated))
        *address = allocated.address;
    reply_free(&request.reply);
    return code;
}

static void return_slab(CUdeviceptr slab) {
    struct writer frame = {0};
    struct wire_free message = {session_get()->device.index, slab};
    wire_write_free(&frame, &message);
    connection_send(&frame);
}

/* With the lock. */
static CUresult add_slab(size_t size) {
    CUdeviceptr address = 0;
    size_t slab_size = size;
    CUresult code = CUDA_ERROR_OUT_OF_MEMORY;
    if (size <= SMALL_BYTES) { /* one for many, if there is room for it */
        slab_size = SLAB_BYTES;
        code = ask_for_slab(slab_size, &address, true);
    }
    if (code == CUDA_ERROR_OUT_OF_MEMORY) {
        slab_size = (size + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
        code = ask_for_slab(slab_size, &address, false);
    }
    if (code != CUDA_SUCCESS)
        return code;
    struct range range = {
        .address = address, .size = slab_size, .slab = address, .slab_size = slab_size};
    if (!insert(place_after(address), range))
        return CUDA_ERROR_OUT_OF_MEMORY;
    arena.held_bytes += slab_size;
    return CUDA_SUCCESS;
}

/* Gives a range that is a whole slab back, unless it is one that small allocations will need. */
static void drop_slab(size_t place) {
    struct range range = arena.ranges[place];
    if (range.size != range.slab_size)
        return;
    if (range.slab_size == SLAB_BYTES && arena.held_bytes <= 4 * SLAB_BYTES)
        return;
    remove_at(place);
    arena.held_bytes -= range.slab_size;
    return_slab(range.slab);
}

/* ---- allocating ---- */

uint64_t arena_limit_bytes(void) {
    const struct session *session = session_get();
    uint64_t all = session->device.memory_bytes;
    return session->limit_bytes && session->limit_bytes < all ? session->limit_bytes : all;
}

uint64_t arena_used_bytes(void) {
    pthread_mutex_lock(&arena.lock);
    uint64_t used = arena.used_bytes;
    pthread_mutex_unlock(&arena.lock);
    return used;
}

static CUresult allocate(size_t asked, enum allocation_kind kind, CUdeviceptr *address) {
    size_t size = (asked + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (size < asked || asked > arena_limit_bytes() - arena.used_bytes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    size_t place = best_fit(size);
    if (place == arena.count) {
        CUresult code = add_slab(size);
        if (code != CUDA_SUCCESS)
            return code;
        place = best_fit(size);
    }
    return carve(place, size, asked, kind, address) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult arena_allocate(size_t size, enum allocation_kind kind, CUdeviceptr *address) {
    pthread_mutex_lock(&arena.lock);
    CUresult code = allocate(size, kind, address);
    pthread_mutex_unlock(&arena.lock);
    return code;
}

static bool are_free_neighbours(size_t place) {
    if (place + 1 >= arena.count)
        return false;
    const struct range *one = &arena.ranges[place], *next = one + 1;
    return one->asked == 0 && next->asked == 0 && one->slab == next->slab;
}

static void merge_with_next(size_t place) {
    arena.ranges[place].size += arena.ranges[place + 1].size;
    remove_at(place + 1);
}

CUresult arena_free(CUdeviceptr address, enum allocation_kind kind) {
    CUresult code = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&arena.lock);
    struct range *range = range_at(address);
    bool is_host = kind == MEMORY_HOST;
    if (range != NULL && range->address == address && range->asked != 0 &&
        (range->kind == MEMORY_HOST) == is_host && range->slab != 0) {
        size_t place = (size_t)(range - arena.ranges);
        arena.used_bytes -= range->asked;
        range->asked = 0;
        if (are_free_neighbours(place))
            merge_with_next(place);
        if (place > 0 && are_free_neighbours(place - 1))
            merge_with_next(--place);
        drop_slab(place);
        code = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&arena.lock);
    return code;
}

void arena_note_foreign(CUdeviceptr address, size_t size) {
    pthread_mutex_lock(&arena.lock);
    struct range range = {.address = address, .size = size, .asked = size, .kind = MEMORY_DEVICE};
    if (range_at(address) == NULL)
        insert(place_after(address), range);
    pthread_mutex_unlock(&arena.lock);
}

/* ---- addresses ---- */

bool arena_find(CUdeviceptr address, struct allocation *found) {
    pthread_mutex_lock(&arena.lock);
    const struct range *range = range_at(address);
    bool is = range != NULL && range->asked != 0 && address - range->address < range->asked;
    if (is)
        *found = (struct allocation){range->address, range->asked, range->kind, range->number};
    pthread_mutex_unlock(&arena.lock);
    return is;
}

void *arena_host(CUdeviceptr address, size_t size) {
    struct allocation found;
    if (!arena_find(address, &found) || size > found.size - (address - found.address))
        return NULL;
    return arena.map + (address - arena.base);
}

CUdeviceptr arena_device(const void *host) {
    size_t offset = (size_t)((const char *)host - arena.map);
    return arena.map != NULL && offset < arena.size ? arena.base + offset : 0;
}

bool arena_is_unified(void) {
    return (CUdeviceptr)(uintptr_t)arena.map == arena.base;
}

/* ---- from the reader, before the first allocation is answered ---- */

void arena_on_announced(const struct wire_arena *message, int descriptor) {
    if (message->device != session_get()->device.index || descriptor < 0) {
        if (descriptor >= 0)
            close(descriptor);
        return;
    }
    /* At the same address as on the device, so that pointers mean the same on both sides. Another
     * library may have taken it: then they are translated. */
    int flags = MAP_SHARED | MAP_NORESERVE, access = PROT_READ | PROT_WRITE;
    void *wanted = (void *)(uintptr_t)message->base;
    void *map = MAP_FAILED;
#ifndef __SANITIZE_THREAD__ /* which has addresses of its own, and puts this at 0 */
    map = mmap(wanted, message->size, access, flags | MAP_FIXED_NOREPLACE, descriptor, 0);
#endif
    if (map != wanted) {
        if (map != MAP_FAILED) /* a kernel that does not know the flag */
            munmap(map, message->size);
        map = mmap(NULL, message->size, access, flags, descriptor, 0);
    }
    close(descriptor);
    if (map == MAP_FAILED) {
        say("the %llu bytes of the session's memory cannot be mapped; is there a limit on virtual "
            "memory (ulimit -v)?",
            (unsigned long long)message->size);
        return;
    }
    madvise(map, message->size, MADV_DONTDUMP);
    arena.base = message->base;
    arena.size = message->size;
    arena.map = map;
}
