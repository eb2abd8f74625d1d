/*
 * The blocks of blocks.h: a hash table by address, and for each context lists of its blocks by
 * their largest hole. It has no lock; blocks.c has one.
 *
 * Its memory comes from mmap, never from the host program's allocator, and is kept for the next
 * block. A block's largest hole is recorded as an upper bound. A search that finds a smaller one
 * lowers the bound, so that later searches skip the block.
 */
#ifndef CGPU_BLOCK_TABLE_H
#define CGPU_BLOCK_TABLE_H

#include <stddef.h>

#include "holdings/block_units.h"
#include "holdings/blocks.h"
#include "mutex.h"

enum { CGPU_HOLE_CLASSES = 14 /* 0 units, 1, 2 to 3, ... 2048 to 4095, 4096 */ };

struct cgpu_arena {
    struct cgpu_arena_key key;
    struct cgpu_arena *next;
    struct cgpu_block *classes[CGPU_HOLE_CLASSES];
    uint64_t blocks;   /* in these lists */
    uint64_t prepaid;  /* charged for calls in flight */
    uint32_t payers;   /* calls in flight that a block was charged for */
    uint32_t leavers;  /* frees in flight */
    uint32_t expected; /* 1: a call in flight counts on a hole */
};

struct cgpu_block {
    uint64_t address;
    struct cgpu_arena *arena;
    struct cgpu_block *hash_next;
    struct cgpu_block *next, *previous; /* in its class */
    uint32_t count;                     /* allocations, including those that are being freed */
    uint32_t leaving_count;
    uint32_t overtaken; /* 1: memory was given out again while it was still being freed */
    uint32_t largest;   /* no hole is larger than this, in units */
    uint32_t class;
    uint64_t used[CGPU_UNIT_WORDS];    /* this and leaving: zeros when nothing is left */
    uint64_t leaving[CGPU_UNIT_WORDS]; /* being freed: free soon */
};

/* A store of free things of one size. The first word of each points to the next one. */
struct cgpu_store {
    size_t size;
    size_t head; /* how many bytes of a free thing are cleared, from its start */
    void *free;
    uint32_t count;
};

struct cgpu_blocks {
    struct cgpu_mutex mutex;
    uint32_t uncertain; /* 1: the driver took a block where a hole was known */
    struct cgpu_store block_store, arena_store;
    struct cgpu_arena *arenas;
    struct cgpu_block **buckets;
    size_t bucket_count, block_count;
    void *slabs;
};

/* Make sure that COUNT blocks can be added. False: there is no memory. */
bool cgpu_block_table_reserve(struct cgpu_blocks *blocks, uint32_t count);

struct cgpu_block *cgpu_block_table_find(const struct cgpu_blocks *blocks, uint64_t address);
struct cgpu_block *cgpu_block_table_add(struct cgpu_blocks *blocks, struct cgpu_arena *arena,
                                        uint64_t address);
void cgpu_block_table_drop(struct cgpu_blocks *blocks, struct cgpu_block *block);

/* Find the arena with KEY. If there is none, make it if MAKE is set. NULL: none, or no memory. */
struct cgpu_arena *cgpu_block_table_arena(struct cgpu_blocks *blocks,
                                          const struct cgpu_arena_key *key, bool make);

/* Drop ARENA if it has no block and no call in flight. */
void cgpu_block_table_drop_arena(struct cgpu_blocks *blocks, struct cgpu_arena *arena);

uint32_t cgpu_hole_class(uint32_t units);
void cgpu_block_set_largest(struct cgpu_block *block, uint32_t largest);

#endif
