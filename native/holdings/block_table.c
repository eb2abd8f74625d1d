/* The blocks by address and by their largest hole: see block_table.h. */
#include "holdings/block_table.h"

#include <string.h>
#include <sys/mman.h>

enum { FIRST_BUCKETS = 512, SLAB_BYTES = 64 << 10, SLAB_HEAD = 64 };

static void *
map(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    return memory == MAP_FAILED ? NULL : memory;
}

static void
give(struct cgpu_store *store, void *thing)
{
    memcpy(thing, &store->free, sizeof store->free);
    store->free = thing;
    store->count += 1;
}

static void *
take(struct cgpu_store *store)
{
    void *thing = store->free;

    memcpy(&store->free, thing, sizeof store->free);
    store->count -= 1;
    memset(thing, 0, store->head);
    return thing;
}

/* Fill STORE until it has COUNT free things, so that taking COUNT of them cannot fail. */
static bool
stock(struct cgpu_blocks *blocks, struct cgpu_store *store, uint32_t count)
{
    while (store->count < count) {
        char *slab = map(SLAB_BYTES);

        if (slab == NULL) {
            return false;
        }
        memcpy(slab, &blocks->slabs, sizeof blocks->slabs);
        blocks->slabs = slab;
        for (size_t at = SLAB_HEAD; at + store->size <= SLAB_BYTES; at += store->size) {
            give(store, slab + at);
        }
    }
    return true;
}

bool
cgpu_block_table_reserve(struct cgpu_blocks *blocks, uint32_t count)
{
    return stock(blocks, &blocks->block_store, count);
}

int
cgpu_blocks_create(struct cgpu_blocks **out)
{
    struct cgpu_blocks *blocks = map(sizeof *blocks);
    struct cgpu_block **buckets = map(FIRST_BUCKETS * sizeof(struct cgpu_block *));

    *out = NULL;
    if (blocks == NULL || buckets == NULL) {
        return CGPU_EIO;
    }
    blocks->block_store.size = sizeof(struct cgpu_block);
    blocks->block_store.head = offsetof(struct cgpu_block, used);
    blocks->arena_store.size = sizeof(struct cgpu_arena);
    blocks->arena_store.head = sizeof(struct cgpu_arena);
    blocks->buckets = buckets;
    blocks->bucket_count = FIRST_BUCKETS;
    *out = blocks;
    return CGPU_OK;
}

void
cgpu_blocks_destroy(struct cgpu_blocks *blocks)
{
    void *next;

    if (blocks == NULL) {
        return;
    }
    for (void *slab = blocks->slabs; slab != NULL; slab = next) {
        memcpy(&next, slab, sizeof next);
        munmap(slab, SLAB_BYTES);
    }
    munmap((void *)blocks->buckets, blocks->bucket_count * sizeof(struct cgpu_block *));
    munmap(blocks, sizeof *blocks);
}

static struct cgpu_block **
bucket_of(const struct cgpu_blocks *blocks, uint64_t address)
{
    uint64_t h = address / CGPU_BLOCK_BYTES * 0x9e3779b97f4a7c15u;

    return &blocks->buckets[(h >> 32) & (blocks->bucket_count - 1)];
}

static void
push(const struct cgpu_blocks *blocks, struct cgpu_block *block)
{
    struct cgpu_block **head = bucket_of(blocks, block->address);

    block->hash_next = *head;
    *head = block;
}

/* Double the number of buckets. If there is no memory for them, the chains grow instead. */
static void
spread(struct cgpu_blocks *blocks)
{
    size_t count = blocks->bucket_count;
    struct cgpu_block **old = blocks->buckets;
    struct cgpu_block **larger = map(count * 2 * sizeof(struct cgpu_block *));

    if (larger == NULL) {
        return;
    }
    blocks->buckets = larger;
    blocks->bucket_count = count * 2;
    for (size_t i = 0; i < count; i++) {
        for (struct cgpu_block *block = old[i], *next; block != NULL; block = next) {
            next = block->hash_next;
            push(blocks, block);
        }
    }
    munmap((void *)old, count * sizeof(struct cgpu_block *));
}

struct cgpu_block *
cgpu_block_table_find(const struct cgpu_blocks *blocks, uint64_t address)
{
    struct cgpu_block *block = *bucket_of(blocks, address);

    while (block != NULL && block->address != address) {
        block = block->hash_next;
    }
    return block;
}

uint32_t
cgpu_hole_class(uint32_t units)
{
    return units == 0 ? 0 : 32 - (uint32_t)__builtin_clz(units);
}

static void
unlink_class(struct cgpu_block *block)
{
    if (block->previous != NULL) {
        block->previous->next = block->next;
    } else {
        block->arena->classes[block->class] = block->next;
    }
    if (block->next != NULL) {
        block->next->previous = block->previous;
    }
}

static void
link_class(struct cgpu_block *block)
{
    struct cgpu_block **head;

    block->class = cgpu_hole_class(block->largest);
    head = &block->arena->classes[block->class];
    block->previous = NULL;
    block->next = *head;
    if (block->next != NULL) {
        block->next->previous = block;
    }
    *head = block;
}

void
cgpu_block_set_largest(struct cgpu_block *block, uint32_t largest)
{
    block->largest = largest;
    if (cgpu_hole_class(largest) != block->class) {
        unlink_class(block);
        link_class(block);
    }
}

struct cgpu_block *
cgpu_block_table_add(struct cgpu_blocks *blocks, struct cgpu_arena *arena, uint64_t address)
{
    struct cgpu_block *block = take(&blocks->block_store);

    if (blocks->block_count >= blocks->bucket_count) {
        spread(blocks);
    }
    block->address = address;
    block->arena = arena;
    block->largest = CGPU_UNITS;
    link_class(block);
    push(blocks, block);
    arena->blocks += 1;
    blocks->block_count += 1;
    return block;
}

void
cgpu_block_table_drop(struct cgpu_blocks *blocks, struct cgpu_block *block)
{
    struct cgpu_block **link = bucket_of(blocks, block->address);

    while (*link != block) {
        link = &(*link)->hash_next;
    }
    *link = block->hash_next;
    unlink_class(block);
    block->arena->blocks -= 1;
    give(&blocks->block_store, block);
    blocks->block_count -= 1;
}

static bool
same(const struct cgpu_arena_key *a, const struct cgpu_arena_key *b)
{
    return a->owner == b->owner && a->gpu == b->gpu && a->low == b->low;
}

struct cgpu_arena *
cgpu_block_table_arena(struct cgpu_blocks *blocks, const struct cgpu_arena_key *key, bool make)
{
    struct cgpu_arena *arena = blocks->arenas;

    while (arena != NULL && !same(&arena->key, key)) {
        arena = arena->next;
    }
    if (arena == NULL && make && stock(blocks, &blocks->arena_store, 1)) {
        arena = take(&blocks->arena_store);
        arena->key = *key;
        arena->next = blocks->arenas;
        blocks->arenas = arena;
    }
    return arena;
}

void
cgpu_block_table_drop_arena(struct cgpu_blocks *blocks, struct cgpu_arena *arena)
{
    struct cgpu_arena **link = &blocks->arenas;

    if (arena->blocks != 0 || arena->payers != 0 || arena->leavers != 0 || arena->expected != 0) {
        return;
    }
    while (*link != arena) {
        link = &(*link)->next;
    }
    *link = arena->next;
    give(&blocks->arena_store, arena);
}
