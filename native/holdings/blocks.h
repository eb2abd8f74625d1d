/*
 * Blocks: which 2 MiB blocks of device memory this process's small allocations lie in.
 *
 * Drivers are assumed to serve a request of up to 1 MiB from a block of 2 MiB, aligned to its size,
 * that all small requests of one context share; from a hole in such a block if there is one. The
 * block goes back to the GPU with its last allocation. The charge depends on little of that: every
 * block that an allocation's addresses touch is counted, wherever the driver puts it. The
 * assumption only predicts whether a call will take a new block, so that a call that takes none is
 * neither charged nor refused. If a call takes a block against the prediction, the process makes no
 * more predictions: from then on a block is charged before each call.
 *
 * One small allocation:
 *
 *     cgpu_blocks_expect     true: there is a hole; else charge a block, cgpu_blocks_prepay
 *     the driver's call      failed: release what cgpu_blocks_done returns
 *     cgpu_blocks_enter      release SURPLUS; NEED is not 0: charge it, cgpu_blocks_await before
 *                            that fails, then release what cgpu_blocks_done returns
 *
 * A free: cgpu_blocks_leave, the driver's call, cgpu_blocks_gone (or cgpu_blocks_stay if it
 * failed).
 */
#ifndef CGPU_BLOCKS_H
#define CGPU_BLOCKS_H

#include <stdbool.h>
#include <stdint.h>

#include "status.h"

enum { CGPU_BLOCK_BYTES = 2 << 20, CGPU_BLOCK_SMALL = 1 << 20 };

struct cgpu_blocks; /* opaque; one per process */

/*
 * Identifies an arena: the blocks of one context that are below 4 GiB (LOW; they come from the
 * first entry points), or all its other blocks.
 */
struct cgpu_arena_key {
    uint64_t owner; /* context */
    uint32_t gpu;   /* number in the limits */
    bool low;
};

struct cgpu_blocks_change {
    uint64_t need;    /* to charge: blocks that nothing was charged for */
    uint64_t surplus; /* to release: charged for blocks that were not taken */
};

int cgpu_blocks_create(struct cgpu_blocks **out);
void cgpu_blocks_destroy(struct cgpu_blocks *blocks);

/*
 * Whether a call for BYTES will be served from a hole. If so, no other call of the arena may count
 * on a hole until this one has ended. THOROUGH: search all blocks, whatever that costs, and wait a
 * little for another such call. Otherwise search a few blocks.
 */
bool cgpu_blocks_expect(struct cgpu_blocks *blocks, const struct cgpu_arena_key *key,
                        uint64_t bytes, bool thorough);

/*
 * Note that a block was charged for a call that is about to be made. CGPU_EIO: there is no memory,
 * and nothing is noted.
 */
int cgpu_blocks_prepay(struct cgpu_blocks *blocks, const struct cgpu_arena_key *key);

/*
 * Record that the driver put BYTES, at most CGPU_BLOCK_SMALL, at ADDRESS; EXPECTED is what
 * cgpu_blocks_expect returned. This ends the call, unless CHANGE has a need. CGPU_EIO: nothing is
 * recorded.
 */
int cgpu_blocks_enter(struct cgpu_blocks *blocks, const struct cgpu_arena_key *key, bool expected,
                      uint64_t address, uint64_t bytes, struct cgpu_blocks_change *change);

/* NEED cannot be charged: wait for the frees in flight. Returns what is still needed after that. */
uint64_t cgpu_blocks_await(struct cgpu_blocks *blocks, const struct cgpu_arena_key *key,
                           uint64_t need);

/* End the call. Returns the bytes to release. */
uint64_t cgpu_blocks_done(struct cgpu_blocks *blocks, const struct cgpu_arena_key *key,
                          bool expected);

/*
 * cgpu_blocks_leave: before BYTES at ADDRESS are freed. After that, cgpu_blocks_gone if the free
 * succeeded, which returns the bytes to release; cgpu_blocks_stay if it failed.
 */
void cgpu_blocks_leave(struct cgpu_blocks *blocks, uint64_t address, uint64_t bytes);
void cgpu_blocks_stay(struct cgpu_blocks *blocks, uint64_t address, uint64_t bytes);
uint64_t cgpu_blocks_gone(struct cgpu_blocks *blocks, uint64_t address, uint64_t bytes);

#endif
