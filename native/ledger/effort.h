/* Processor time that this thread has used, without the time that it was kept from running. */
#ifndef CGPU_EFFORT_H
#define CGPU_EFFORT_H

#include <stdint.h>
#include <time.h>

static inline uint64_t
cgpu_effort_clock(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

/* Processor time of this thread, in ns. */
static inline uint64_t
cgpu_effort_spent(void)
{
    return cgpu_effort_clock(CLOCK_THREAD_CPUTIME_ID);
}

#endif
