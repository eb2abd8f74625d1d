/* Which units of one block are taken: a bit for each 512 bytes, the smallest unit of drivers. */
#ifndef CGPU_BLOCK_UNITS_H
#define CGPU_BLOCK_UNITS_H

#include <stdint.h>

#include "holdings/blocks.h"

enum {
    CGPU_UNIT_BYTES = 512,
    CGPU_UNITS = CGPU_BLOCK_BYTES / CGPU_UNIT_BYTES,
    CGPU_UNIT_WORDS = CGPU_UNITS / 64
};

/* A range of units, clipped to one block. */
struct cgpu_units {
    uint32_t first, end;
};

static inline struct cgpu_units
cgpu_units_of(uint64_t block, uint64_t address, uint64_t bytes)
{
    uint64_t from = address > block ? address - block : 0;
    uint64_t to = address + bytes - block;

    to = to < CGPU_BLOCK_BYTES ? to : CGPU_BLOCK_BYTES;
    return (struct cgpu_units){(uint32_t)(from / CGPU_UNIT_BYTES),
                               (uint32_t)((to + CGPU_UNIT_BYTES - 1) / CGPU_UNIT_BYTES)};
}

static inline void
cgpu_units_change(uint64_t *words, struct cgpu_units units, int taken)
{
    uint32_t next;

    for (uint32_t at = units.first; at < units.end; at = next) {
        uint32_t bit = at % 64;
        uint32_t room = 64 - bit;
        uint32_t count = units.end - at < room ? units.end - at : room;
        uint64_t mask = (count == 64 ? ~(uint64_t)0 : ((uint64_t)1 << count) - 1) << bit;

        words[at / 64] = taken ? words[at / 64] | mask : words[at / 64] & ~mask;
        next = at + count;
    }
}

static inline int
cgpu_units_any(const uint64_t *words, struct cgpu_units units)
{
    int any = 0;

    for (uint32_t at = units.first; at < units.end && !any; at += 64 - at % 64) {
        uint32_t last = units.end - 1 < (at | 63) ? units.end - 1 : (at | 63);
        uint64_t mask = ~(uint64_t)0 << at % 64 & ~(uint64_t)0 >> (63 - last % 64);

        any = (words[at / 64] & mask) != 0;
    }
    return any;
}

/* The longest run of units that are free in both maps. The search ends at a run of ENOUGH units. */
static inline uint32_t
cgpu_units_longest(const uint64_t *used, const uint64_t *leaving, uint32_t enough)
{
    uint32_t run = 0;
    uint32_t longest = 0;

    for (uint32_t i = 0; i < CGPU_UNIT_WORDS && longest < enough; i++) {
        uint64_t taken = used[i] | leaving[i];
        uint32_t left = 64;

        while (left > 0) {
            uint32_t zeros = taken == 0 ? left : (uint32_t)__builtin_ctzll(taken);
            run += zeros;
            longest = run > longest ? run : longest;
            left -= zeros;
            if (left > 0) { /* taken ones follow: the run ends */
                taken >>= zeros;
                uint32_t ones = ~taken == 0 ? left : (uint32_t)__builtin_ctzll(~taken);
                taken = ones < 64 ? taken >> ones : 0;
                left -= ones;
                run = 0;
            }
        }
    }
    return longest;
}

#endif
