/* The program's memory on the device, mapped into this process, and what is allocated in it.
 *
 * The daemon gives memory in arrays, which takes a round trip and much accounting. So small
 * allocations are cut out of larger arrays, *slabs*, which the program keeps for a while. */
#ifndef GPUD_ARENA_H
#define GPUD_ARENA_H

#include "cuda_api.h"
#include "messages.h"

enum allocation_kind { MEMORY_DEVICE, MEMORY_HOST, MEMORY_MANAGED };

struct allocation {
    CUdeviceptr address;
    size_t size;
    enum allocation_kind kind;
    uint64_t number; /* counted from 1, in the order in which they were made */
};

CUresult arena_allocate(size_t size, enum allocation_kind kind, CUdeviceptr *address);

/* Frees what was allocated at exactly this address; nothing may use it any more. */
CUresult arena_free(CUdeviceptr address, enum allocation_kind kind);

/* Finds the allocation that holds an address; returns whether there is one. */
bool arena_find(CUdeviceptr address, struct allocation *found);

/* Where this process reaches `size` bytes at an address; NULL if they are not in one allocation. */
void *arena_host(CUdeviceptr address, size_t size);

/* The address of a byte that lies in the mapping; 0 if it does not. */
CUdeviceptr arena_device(const void *host);

/* Whether addresses are the same here and on the device. */
bool arena_is_unified(void);

uint64_t arena_used_bytes(void);
uint64_t arena_limit_bytes(void);

/* For memory that modules have in the arena, which the daemon allocates. */
void arena_note_foreign(CUdeviceptr address, size_t size);

/* From the reader. */
void arena_on_announced(const struct wire_arena *message, int descriptor);

#endif
