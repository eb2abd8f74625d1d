/* Times in ns: the clocks, and arithmetic that neither overflows nor goes below 0. */
#ifndef CGPU_CLOCK_H
#define CGPU_CLOCK_H

#include <stdint.h>
#include <time.h>

#define CGPU_MS UINT64_C(1000000)

static inline uint64_t
cgpu_clock_ns(const struct timespec *time)
{
    return (uint64_t)time->tv_sec * UINT64_C(1000000000) + (uint64_t)time->tv_nsec;
}

static inline uint64_t
cgpu_clock_read(clockid_t clock)
{
    struct timespec time;

    clock_gettime(clock, &time);
    return cgpu_clock_ns(&time);
}

/* CLOCK_MONOTONIC, which all processes of a machine have in common. */
static inline uint64_t
cgpu_clock_now(void)
{
    return cgpu_clock_read(CLOCK_MONOTONIC);
}

/*
 * Processor time that this thread has used. Time in which it was kept from running is not included.
 */
static inline uint64_t
cgpu_clock_spent(void)
{
    return cgpu_clock_read(CLOCK_THREAD_CPUTIME_ID);
}

static inline uint64_t
cgpu_lesser(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t
cgpu_larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static inline uint64_t
cgpu_since(uint64_t now, uint64_t then)
{
    return now > then ? now - then : 0;
}

static inline uint64_t
cgpu_later(uint64_t now, uint64_t by)
{
    return now > UINT64_MAX - by ? UINT64_MAX : now + by;
}

static inline uint64_t
cgpu_clip(uint64_t value, uint64_t least, uint64_t most)
{
    return value < least ? least : cgpu_lesser(value, most);
}

#endif
