/* Times in ns that neither overflow nor go below 0. */
#ifndef PACE_TIME_H
#define PACE_TIME_H

#include <stdint.h>

static inline uint64_t
lesser(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t
larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static inline uint64_t
since(uint64_t now, uint64_t then)
{
    return now > then ? now - then : 0;
}

static inline uint64_t
clip(uint64_t value, uint64_t least, uint64_t most)
{
    return value < least ? least : lesser(value, most);
}

static inline uint64_t
later(uint64_t now, uint64_t by)
{
    return now > UINT64_MAX - by ? UINT64_MAX : now + by;
}

#endif
