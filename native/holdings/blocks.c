/*
 * Blocks: whether a call will take a new one, which ones it took, and which ones a free releases.
 *
 * All of this runs under one lock. Of all operations, the search for a hole takes longest.
 */
#include "holdings/blocks.h"

#include <string.h>
#include <time.h>

#include "holdings/block_table.h"

enum {
    LOOKS = 16, /* blocks that a search checks unless it is thorough */
    NAP_NS = 20000,
    NAPS = 2500 /* 50 ms: until then another call into the driver has ended, or it may never end */
};

/*
 * Whether BLOCK has a hole of UNITS. A block whose allocations are all being freed counts as having
 * none, because it may be gone before a call uses the hole.
 */
static bool
has_hole(struct cgpu_block *block, uint32_t units)
{
    uint32_t longest;

    if (block->largest < units || block->count == block->leaving_count) {
        return false;
    }
    longest = cgpu_units_longest(block->used, block->leaving, units);
    if (longest < units) {
        cgpu_block_set_largest(block, longest);
    }
    return longest >= units;
}

static bool
search(struct cgpu_arena *arena, uint32_t units, bool thorough)
{
    uint32_t looks = 0;

    for (uint32_t class = CGPU_HOLE_CLASSES; class --> cgpu_hole_class(units);) {
        for (struct cgpu_block *block = arena->classes[class], *next; block != NULL; block = next) {
            next = block->next;
            if (has_hole(block, units)) {
                return true;
            }
            if (++looks == LOOKS && !thorough) {
                return false;
            }
        }
    }
    return false;
}

static void
nap(struct cgpu_blocks *blocks)
{
    const struct timespec time = {.tv_nsec = NAP_NS};

    cgpu_mutex_unlock(&blocks->mutex);
    nanosleep(&time, NULL);
    cgpu_mutex_lock(&blocks->mutex);
}

/*
 * Whether the known holes are certain to be free. A call in flight may have taken one; then the
 * block that was charged for that call pays for ours. So each call in flight must still have a
 * charged block of its own.
 */
static bool
is_clear(const struct cgpu_arena *arena)
{
    return arena->expected == 0 && arena->prepaid >= (uint64_t)arena->payers * CGPU_BLOCK_BYTES;
}

bool
cgpu_blocks_expect(struct cgpu_blocks *blocks, const struct cgpu_arena_key *key, uint64_t bytes,
                   bool thorough)
{
    uint32_t units = (uint32_t)((bytes + CGPU_UNIT_BYTES - 1) / CGPU_UNIT_BYTES);
    struct cgpu_arena *arena;
    bool found;

    cgpu_mutex_lock(&blocks->mutex);
    arena = cgpu_block_table_arena(blocks, key, false);
    for (int i = 0; i < NAPS && thorough && arena != NULL && !is_clear(arena); i++) {
        nap(blocks);
        arena = cgpu_block_table_arena(blocks, key, false);
    }
    found = arena != NULL && is_clear(arena) && (thorough || blocks->uncertain == 0) &&
            search(arena, units, thorough);
    if (found) {
        arena->expected = 1;
    }
    cgpu_mutex_unlock(&blocks->mutex);
    return found;
}

int
cgpu_blocks_prepay(struct cgpu_blocks *blocks, const struct cgpu_arena_key *key)
{
    struct cgpu_arena *arena;

    cgpu_mutex_lock(&blocks->mutex);
    arena = cgpu_block_table_arena(blocks, key, true);
    if (arena != NULL) {
        arena->prepaid += CGPU_BLOCK_BYTES;
        arena->payers += 1;
    }
    cgpu_mutex_unlock(&blocks->mutex);
    return arena != NULL ? CGPU_OK : CGPU_EIO;
}

/*
 * Take back the charges that no call in flight needs, and return their bytes. Such a charge remains
 * if a call used the block that another call had paid for, and the other call took a hole.
 */
static uint64_t
surplus_of(struct cgpu_arena *arena)
{
    uint64_t keep = ((uint64_t)arena->payers + arena->expected) * CGPU_BLOCK_BYTES;
    uint64_t surplus = arena->prepaid > keep ? arena->prepaid - keep : 0;

    arena->prepaid -= surplus;
    return surplus;
}

static uint64_t
end_call(struct cgpu_blocks *blocks, struct cgpu_arena *arena, bool expected)
{
    uint64_t surplus;

    if (expected) {
        arena->expected = 0;
    } else if (arena->payers > 0) {
        arena->payers -= 1;
    }
    surplus = surplus_of(arena);
    cgpu_block_table_drop_arena(blocks, arena);
    return surplus;
}

uint64_t
cgpu_blocks_done(struct cgpu_blocks *blocks, const struct cgpu_arena_key *key, bool expected)
{
    struct cgpu_arena *arena;
    uint64_t surplus;

    cgpu_mutex_lock(&blocks->mutex);
    arena = cgpu_block_table_arena(blocks, key, false);
    surplus = arena != NULL ? end_call(blocks, arena, expected) : 0;
    cgpu_mutex_unlock(&blocks->mutex);
    return surplus;
}

/* Count the allocation in its blocks. Returns the bytes of the blocks that are new. */
static uint64_t
count_in(struct cgpu_blocks *blocks, struct cgpu_arena *arena, uint64_t address, uint64_t bytes)
{
    uint64_t fresh = 0;

    for (uint64_t at = address & -(uint64_t)CGPU_BLOCK_BYTES; at < address + bytes;
         at += CGPU_BLOCK_BYTES) {
        struct cgpu_units units = cgpu_units_of(at, address, bytes);
        struct cgpu_block *block = cgpu_block_table_find(blocks, at);

        if (block == NULL) {
            block = cgpu_block_table_add(blocks, arena, at);
            fresh += CGPU_BLOCK_BYTES;
        }
        block->count += 1;
        cgpu_units_change(block->used, units, 1);
        if (block->leaving_count != 0 && cgpu_units_any(block->leaving, units)) {
            block->overtaken = 1;
        }
    }
    return fresh;
}

static uint64_t
pay(struct cgpu_arena *arena, uint64_t need)
{
    uint64_t paid = need < arena->prepaid ? need : arena->prepaid;

    arena->prepaid -= paid;
    return need - paid;
}

int
cgpu_blocks_enter(struct cgpu_blocks *blocks, const struct cgpu_arena_key *key, bool expected,
                  uint64_t address, uint64_t bytes, struct cgpu_blocks_change *change)
{
    struct cgpu_arena *arena;

    *change = (struct cgpu_blocks_change){0, 0};
    cgpu_mutex_lock(&blocks->mutex);
    arena = cgpu_block_table_arena(blocks, key, true);
    if (arena == NULL || !cgpu_block_table_reserve(blocks, 2)) {
        cgpu_mutex_unlock(&blocks->mutex);
        return CGPU_EIO;
    }
    change->need = pay(arena, count_in(blocks, arena, address, bytes));
    if (change->need == 0) {
        change->surplus = end_call(blocks, arena, expected);
    } else if (expected && arena->payers == 0 && arena->leavers == 0) {
        blocks->uncertain = 1;
    }
    cgpu_mutex_unlock(&blocks->mutex);
    return CGPU_OK;
}

uint64_t
cgpu_blocks_await(struct cgpu_blocks *blocks, const struct cgpu_arena_key *key, uint64_t need)
{
    cgpu_mutex_lock(&blocks->mutex);
    for (int i = 0; i < NAPS; i++) {
        struct cgpu_arena *arena = cgpu_block_table_arena(blocks, key, false);

        need = arena != NULL ? pay(arena, need) : need;
        if (need == 0 || arena == NULL || arena->leavers == 0) {
            break;
        }
        nap(blocks);
    }
    cgpu_mutex_unlock(&blocks->mutex);
    return need;
}

/* What to do with each block of an allocation, under the lock. Returns the bytes to release. */
typedef uint64_t visit(struct cgpu_blocks *blocks, struct cgpu_block *block,
                       struct cgpu_units units);

static uint64_t
each(struct cgpu_blocks *blocks, uint64_t address, uint64_t bytes, int leavers, visit *do_it)
{
    struct cgpu_arena *arena = NULL;
    uint64_t sum = 0;

    cgpu_mutex_lock(&blocks->mutex);
    for (uint64_t at = address & -(uint64_t)CGPU_BLOCK_BYTES; at < address + bytes;
         at += CGPU_BLOCK_BYTES) {
        struct cgpu_block *block = cgpu_block_table_find(blocks, at);

        if (block != NULL) {
            arena = block->arena;
            sum += do_it(blocks, block, cgpu_units_of(at, address, bytes));
        }
    }
    if (arena != NULL) {
        arena->leavers += (uint32_t)leavers;
        arena->prepaid += sum;
        sum = surplus_of(arena);
        cgpu_block_table_drop_arena(blocks, arena);
    }
    cgpu_mutex_unlock(&blocks->mutex);
    return sum;
}

/*
 * Count one free in BLOCK as ended, and UNITS as free. But if memory was given out again while it
 * was being freed, it may be in a second free by now. Then its units stay marked until nothing in
 * the block is being freed.
 */
static void
left(struct cgpu_block *block, struct cgpu_units units)
{
    block->leaving_count -= 1;
    if (block->overtaken == 0) {
        cgpu_units_change(block->leaving, units, 0);
    } else if (block->leaving_count == 0) {
        memset(block->leaving, 0, sizeof block->leaving);
        block->overtaken = 0;
        cgpu_block_set_largest(block, CGPU_UNITS);
    }
}

static uint64_t
leave(struct cgpu_blocks *blocks, struct cgpu_block *block, struct cgpu_units units)
{
    (void)blocks;
    block->leaving_count += 1;
    cgpu_units_change(block->used, units, 0);
    cgpu_units_change(block->leaving, units, 1);
    return 0;
}

static uint64_t
stay(struct cgpu_blocks *blocks, struct cgpu_block *block, struct cgpu_units units)
{
    (void)blocks;
    left(block, units);
    cgpu_units_change(block->used, units, 1);
    return 0;
}

/*
 * Remove the freed UNITS from BLOCK, and BLOCK itself with its last allocation. A hole is now at
 * most as large as the holes on either side and the freed units together.
 */
static uint64_t
gone(struct cgpu_blocks *blocks, struct cgpu_block *block, struct cgpu_units units)
{
    uint32_t largest = 2 * block->largest + units.end - units.first;

    block->count -= 1;
    cgpu_block_set_largest(block, largest < CGPU_UNITS ? largest : CGPU_UNITS);
    left(block, units);
    if (block->count == 0) {
        cgpu_block_table_drop(blocks, block);
        return CGPU_BLOCK_BYTES;
    }
    return 0;
}

void
cgpu_blocks_leave(struct cgpu_blocks *blocks, uint64_t address, uint64_t bytes)
{
    (void)each(blocks, address, bytes, 1, leave);
}

void
cgpu_blocks_stay(struct cgpu_blocks *blocks, uint64_t address, uint64_t bytes)
{
    (void)each(blocks, address, bytes, -1, stay);
}

uint64_t
cgpu_blocks_gone(struct cgpu_blocks *blocks, uint64_t address, uint64_t bytes)
{
    return each(blocks, address, bytes, -1, gone);
}
