/* MEM-1, MEM-6: blocks of small allocations, against a driver that packs them and one that does
 * not. */
#define _GNU_SOURCE 1

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "holdings/block_units.h"
#include "holdings/blocks.h"

enum { BLOCKS = 64, HELD = 300, STEPS = 20000, THREADS = 4 };

static const struct cgpu_arena_key KEY = {.owner = 0x1000, .gpu = 3};

/* A GPU of some blocks, whose driver puts a request into the first hole there is. */
struct gpu {
    pthread_mutex_t mutex;
    uint64_t cap, charged, taken, most_taken;
    uint32_t refusals;
    bool scatters; /* every request gets a block of its own */
    uint64_t used[BLOCKS][CGPU_UNIT_WORDS];
    uint32_t counts[BLOCKS];
    struct cgpu_blocks *blocks;
};

static const uint64_t BASE = 0x7f0000000000;

static uint32_t
units_for(uint64_t bytes)
{
    return (uint32_t)((bytes + CGPU_UNIT_BYTES - 1) / CGPU_UNIT_BYTES);
}

/* The first of a run of COUNT free units, or CGPU_UNITS. */
static uint32_t
first_run(const uint64_t *used, uint32_t count)
{
    uint32_t run = 0;

    for (uint32_t i = 0; i < CGPU_UNITS; i++) {
        run = (used[i / 64] >> i % 64 & 1) != 0 ? 0 : run + 1;
        if (run == count) {
            return i + 1 - count;
        }
    }
    return CGPU_UNITS;
}

/* The address; it takes a block where there is no hole. */
static uint64_t
driver_alloc(struct gpu *gpu, uint64_t bytes)
{
    uint32_t count = units_for(bytes);
    uint32_t block = 0;
    uint32_t first = CGPU_UNITS;

    pthread_mutex_lock(&gpu->mutex);
    for (; block < BLOCKS && !gpu->scatters; block++) {
        first = gpu->counts[block] != 0 ? first_run(gpu->used[block], count) : CGPU_UNITS;
        if (first < CGPU_UNITS) {
            break;
        }
    }
    if (first == CGPU_UNITS) {
        for (block = 0; block < BLOCKS && gpu->counts[block] != 0; block++) {
        }
        CHECK(block < BLOCKS);
        first = 0;
        gpu->taken += CGPU_BLOCK_BYTES;
        gpu->most_taken = gpu->taken > gpu->most_taken ? gpu->taken : gpu->most_taken;
    }
    gpu->counts[block] += 1;
    cgpu_units_change(gpu->used[block], (struct cgpu_units){first, first + count}, 1);
    pthread_mutex_unlock(&gpu->mutex);
    return BASE + (uint64_t)block * CGPU_BLOCK_BYTES + (uint64_t)first * CGPU_UNIT_BYTES;
}

static void
driver_free(struct gpu *gpu, uint64_t address, uint64_t bytes)
{
    uint32_t block = (uint32_t)((address - BASE) / CGPU_BLOCK_BYTES);
    uint32_t first = (uint32_t)(address % CGPU_BLOCK_BYTES / CGPU_UNIT_BYTES);

    pthread_mutex_lock(&gpu->mutex);
    cgpu_units_change(gpu->used[block], (struct cgpu_units){first, first + units_for(bytes)}, 0);
    gpu->counts[block] -= 1;
    gpu->taken -= gpu->counts[block] == 0 ? CGPU_BLOCK_BYTES : 0;
    pthread_mutex_unlock(&gpu->mutex);
}

static bool
charge(struct gpu *gpu, uint64_t bytes)
{
    uint64_t now = __atomic_load_n(&gpu->charged, __ATOMIC_SEQ_CST);

    do {
        if (now + bytes > gpu->cap) {
            return false;
        }
    } while (!__atomic_compare_exchange_n(&gpu->charged, &now, now + bytes, false, __ATOMIC_SEQ_CST,
                                          __ATOMIC_SEQ_CST));
    return true;
}

static void
release(struct gpu *gpu, uint64_t bytes)
{
    CHECK(__atomic_fetch_sub(&gpu->charged, bytes, __ATOMIC_SEQ_CST) >= bytes);
}

static void
give(struct gpu *gpu, uint64_t address, uint64_t bytes)
{
    cgpu_blocks_leave(gpu->blocks, address, bytes);
    driver_free(gpu, address, bytes);
    release(gpu, cgpu_blocks_gone(gpu->blocks, address, bytes));
}

/* What the shim does; 0: refused. */
static uint64_t
ask(struct gpu *gpu, uint64_t bytes)
{
    bool expected = cgpu_blocks_expect(gpu->blocks, &KEY, bytes, false);
    struct cgpu_blocks_change change;
    uint64_t address;

    if (!expected && charge(gpu, CGPU_BLOCK_BYTES)) {
        CHECK(cgpu_blocks_prepay(gpu->blocks, &KEY) == CGPU_OK);
    } else if (!expected) {
        expected = cgpu_blocks_expect(gpu->blocks, &KEY, bytes, true);
        if (!expected) {
            return 0;
        }
    }
    address = driver_alloc(gpu, bytes);
    CHECK(cgpu_blocks_enter(gpu->blocks, &KEY, expected, address, bytes, &change) == CGPU_OK);
    release(gpu, change.surplus);
    if (change.need == 0) {
        return address;
    }
    if (!charge(gpu, change.need)) {
        change.need = cgpu_blocks_await(gpu->blocks, &KEY, change.need);
        if (change.need != 0 && !charge(gpu, change.need)) {
            cgpu_blocks_leave(gpu->blocks, address, bytes);
            driver_free(gpu, address, bytes);
            uint64_t gone = cgpu_blocks_gone(gpu->blocks, address, bytes);
            __atomic_add_fetch(&gpu->charged, change.need, __ATOMIC_SEQ_CST);
            release(gpu, gone);
            address = 0;
        }
    }
    release(gpu, cgpu_blocks_done(gpu->blocks, &KEY, expected));
    return address;
}

static struct gpu *
make(uint64_t blocks)
{
    struct gpu *gpu = calloc(1, sizeof *gpu);

    CHECK(gpu != NULL && cgpu_blocks_create(&gpu->blocks) == CGPU_OK);
    CHECK(pthread_mutex_init(&gpu->mutex, NULL) == 0);
    gpu->cap = blocks * CGPU_BLOCK_BYTES;
    return gpu;
}

static void
end(struct gpu *gpu)
{
    cgpu_blocks_destroy(gpu->blocks);
    free(gpu);
}

static bool
fits(const struct gpu *gpu, uint64_t bytes)
{
    for (int block = 0; block < BLOCKS; block++) {
        if (gpu->counts[block] != 0 && first_run(gpu->used[block], units_for(bytes)) < CGPU_UNITS) {
            return true;
        }
    }
    return gpu->taken + CGPU_BLOCK_BYTES <= gpu->cap;
}

static uint64_t
some_size(unsigned *seed)
{
    uint64_t most = (uint64_t)1 << (9 + rand_r(seed) % 12);

    return 1 + (uint64_t)rand_r(seed) % most;
}

struct piece {
    uint64_t address, bytes;
};

/* A step: free a piece that is held, or ask for one. */
static bool
exchange(struct gpu *gpu, struct piece *piece, unsigned *seed)
{
    if (piece->address != 0) {
        give(gpu, piece->address, piece->bytes);
        piece->address = 0;
        return true;
    }
    piece->bytes = some_size(seed);
    piece->address = ask(gpu, piece->bytes);
    return piece->address != 0;
}

TEST(the_charge_is_what_the_driver_took_and_a_refusal_what_it_would_say)
{
    struct gpu *gpu = make(5);
    struct piece held[HELD] = {{0}};
    unsigned seed = 7;
    int refused = 0;

    for (int step = 0; step < STEPS; step++) {
        struct piece *piece = &held[(unsigned)rand_r(&seed) % HELD];
        bool free_one = piece->address != 0;
        if (!exchange(gpu, piece, &seed)) {
            CHECK(!free_one && !fits(gpu, piece->bytes));
            refused += 1;
        }
        CHECK(gpu->charged == gpu->taken);
    }
    CHECK(refused > STEPS / 100);
    CHECK(gpu->most_taken <= gpu->cap);
    for (int i = 0; i < HELD; i++) {
        if (held[i].address != 0) {
            give(gpu, held[i].address, held[i].bytes);
        }
    }
    CHECK(gpu->charged == 0);
    end(gpu);
}

static void *
work(void *argument)
{
    struct gpu *gpu = argument;
    struct piece held[HELD / THREADS] = {{0}};
    unsigned seed = (unsigned)(uintptr_t)pthread_self();

    for (int step = 0; step < STEPS / THREADS; step++) {
        struct piece *piece = &held[(unsigned)rand_r(&seed) % (HELD / THREADS)];
        if (!exchange(gpu, piece, &seed)) {
            __atomic_add_fetch(&gpu->refusals, 1, __ATOMIC_RELAXED);
        }
    }
    for (int i = 0; i < HELD / THREADS; i++) {
        if (held[i].address != 0) {
            give(gpu, held[i].address, held[i].bytes);
        }
    }
    return NULL;
}

static void
run_threads(struct gpu *gpu)
{
    pthread_t threads[THREADS];

    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_create(&threads[i], NULL, work, gpu) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
}

TEST(threads_never_take_a_block_more_than_the_cap_and_leave_nothing)
{
    struct gpu *gpu = make(3);

    run_threads(gpu);
    CHECK(gpu->refusals > 0);
    CHECK(gpu->most_taken <= gpu->cap);
    CHECK(gpu->taken == 0 && gpu->charged == 0);
    end(gpu);
}

TEST(a_driver_that_does_not_pack_is_charged_before_every_call)
{
    struct gpu *gpu = make(BLOCKS);
    struct piece held[40];

    gpu->scatters = true;
    for (int i = 0; i < 40; i++) {
        held[i] = (struct piece){ask(gpu, 1000), 1000};
        CHECK(held[i].address != 0 && gpu->charged == gpu->taken);
        CHECK(i < 2 || !cgpu_blocks_expect(gpu->blocks, &KEY, 1000, false));
    }
    for (int i = 0; i < 40; i++) {
        give(gpu, held[i].address, held[i].bytes);
        CHECK(gpu->charged == gpu->taken);
    }
    end(gpu);
}

TEST(where_such_a_driver_takes_a_block_over_the_cap_it_is_given_back_and_refused)
{
    struct gpu *gpu = make(2);

    gpu->scatters = true;
    CHECK(ask(gpu, 1000) != 0 && ask(gpu, 1000) != 0);
    for (int i = 0; i < 10; i++) {
        CHECK(ask(gpu, 1000) == 0);
        CHECK(gpu->taken == gpu->cap && gpu->charged == gpu->cap);
    }
    end(gpu);
}

TEST(an_allocation_that_lies_in_two_blocks_counts_in_both)
{
    struct gpu *gpu = make(4);
    struct cgpu_blocks_change change;
    uint64_t address = BASE + CGPU_BLOCK_BYTES - 512;

    CHECK(cgpu_blocks_prepay(gpu->blocks, &KEY) == CGPU_OK);
    CHECK(cgpu_blocks_enter(gpu->blocks, &KEY, false, address, 1024, &change) == CGPU_OK);
    CHECK(change.need == CGPU_BLOCK_BYTES && change.surplus == 0);
    CHECK(cgpu_blocks_done(gpu->blocks, &KEY, false) == 0);
    cgpu_blocks_leave(gpu->blocks, address, 1024);
    CHECK(cgpu_blocks_gone(gpu->blocks, address, 1024) == 2 * CGPU_BLOCK_BYTES);
    end(gpu);
}

TEST(a_free_that_fails_leaves_all_as_it_was)
{
    struct gpu *gpu = make(1);
    uint64_t address = ask(gpu, 900000);

    for (int i = 0; i < 3; i++) {
        cgpu_blocks_leave(gpu->blocks, address, 900000);
        cgpu_blocks_stay(gpu->blocks, address, 900000);
    }
    CHECK(ask(gpu, 900000) != 0);
    CHECK(ask(gpu, 900000) == 0);
    CHECK(gpu->charged == CGPU_BLOCK_BYTES);
    end(gpu);
}

TEST(a_call_that_the_driver_fails_leaves_nothing_charged)
{
    struct gpu *gpu = make(2);

    CHECK(charge(gpu, CGPU_BLOCK_BYTES));
    CHECK(cgpu_blocks_prepay(gpu->blocks, &KEY) == CGPU_OK);
    release(gpu, cgpu_blocks_done(gpu->blocks, &KEY, false));
    CHECK(gpu->charged == 0);
    CHECK(ask(gpu, 512) != 0);
    CHECK(cgpu_blocks_expect(gpu->blocks, &KEY, 512, false));
    CHECK(!cgpu_blocks_expect(gpu->blocks, &KEY, 512, false)); /* one at a time */
    CHECK(cgpu_blocks_done(gpu->blocks, &KEY, true) == 0);
    CHECK(cgpu_blocks_expect(gpu->blocks, &KEY, 512, false));
    end(gpu);
}
