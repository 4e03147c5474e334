#include "handles.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>

/* A handle: TAG, generation (24 bits), place (20 bits), kind (4 bits). The tag keeps handles apart
 * from small numbers, of which CUDA uses some as streams, and from addresses. */
#define TAG (0x4770ull << 48)
enum { PLACE_SHIFT = 4, PLACE_BITS = 20, GENERATION_SHIFT = 24, CHUNK = 4096 };
enum { CHUNKS = (1 << PLACE_BITS) / CHUNK, GENERATION_MASK = 0xFFFFFF };

struct place {
    _Atomic(uint64_t) handle; /* 0: free */
    void *object;
    uint32_t generation;
    uint32_t next_free;
};

static struct {
    pthread_mutex_t lock;
    _Atomic(struct place *) chunks[CHUNKS];
    uint32_t used, first_free; /* places; 0 is never used, and ends the list of free ones */
} table = {.lock = PTHREAD_MUTEX_INITIALIZER, .used = 1};

static struct place *place_at(uint32_t index) {
    struct place *chunk = atomic_load_explicit(&table.chunks[index / CHUNK], memory_order_acquire);
    return chunk == NULL ? NULL : &chunk[index % CHUNK];
}

/* With the lock. Returns 0 if there is no room. */
static uint32_t new_place(void) {
    uint32_t index = table.first_free;
    if (index != 0) {
        table.first_free = place_at(index)->next_free;
        return index;
    }
    if (table.used >= 1u << PLACE_BITS)
        return 0;
    index = table.used;
    if (place_at(index) == NULL) {
        struct place *chunk = calloc(CHUNK, sizeof *chunk);
        if (chunk == NULL)
            return 0;
        atomic_store_explicit(&table.chunks[index / CHUNK], chunk, memory_order_release);
    }
    table.used++;
    return index;
}

void *handle_new(enum handle_kind kind, void *object) {
    uint64_t handle = 0;
    pthread_mutex_lock(&table.lock);
    uint32_t index = new_place();
    if (index != 0) {
        struct place *place = place_at(index);
        place->generation = (place->generation + 1) & GENERATION_MASK;
        place->object = object;
        handle = TAG | (uint64_t)place->generation << GENERATION_SHIFT |
                 (uint64_t)index << PLACE_SHIFT | (uint64_t)kind;
        /* Whoever reads the handle here reads its object, too. */
        atomic_store_explicit(&place->handle, handle, memory_order_release);
    }
    pthread_mutex_unlock(&table.lock);
    return (void *)(uintptr_t)handle;
}

static struct place *find(enum handle_kind kind, const void *handle) {
    uint64_t value = (uintptr_t)handle;
    if ((value & 0xF) != (uint64_t)kind || value >> 48 != TAG >> 48)
        return NULL;
    return place_at((uint32_t)(value >> PLACE_SHIFT) & ((1u << PLACE_BITS) - 1));
}

void *handle_get(enum handle_kind kind, const void *handle) {
    struct place *place = find(kind, handle);
    if (place == NULL)
        return NULL;
    uint64_t now = atomic_load_explicit(&place->handle, memory_order_acquire);
    return now == (uintptr_t)handle ? place->object : NULL;
}

void *handle_take(enum handle_kind kind, const void *handle) {
    struct place *place = find(kind, handle);
    void *object = NULL;
    if (place == NULL)
        return NULL;
    pthread_mutex_lock(&table.lock);
    if (atomic_load_explicit(&place->handle, memory_order_relaxed) == (uintptr_t)handle) {
        object = place->object;
        atomic_store_explicit(&place->handle, 0, memory_order_release);
        place->next_free = table.first_free;
        table.first_free = (uint32_t)((uintptr_t)handle >> PLACE_SHIFT) & ((1u << PLACE_BITS) - 1);
    }
    pthread_mutex_unlock(&table.lock);
    return object;
}
