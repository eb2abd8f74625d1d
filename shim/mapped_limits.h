/* The limits page of the container this process is in. */
#ifndef CGPU_MAPPED_LIMITS_H
#define CGPU_MAPPED_LIMITS_H

#include "limits.h"

/*
 * Map the page, read-only: the host changes caps in place, so they are read anew at every use. NULL
 * if it is missing or not one of this release; then nothing may be allocated or shown.
 */
const struct cgpu_limits *cgpu_mapped_limits_open(void);

/* Place in LIMITS of the GPU with these UUID bytes, or CGPU_ENOTFOUND. */
int cgpu_mapped_limits_place(const struct cgpu_limits *limits, const uint8_t uuid[16]);

/* The cap on the GPU at PLACE now: the host changes it with one aligned store while we run. */
static inline uint64_t
cgpu_mapped_limits_cap(const struct cgpu_limits *limits, uint32_t place)
{
    /* Relaxed: the cap stands alone, nothing is read because of it. */
    return __atomic_load_n(&limits->gpus[place].cap_bytes, __ATOMIC_RELAXED);
}

/* What the driver gave to the container around its ledger, as the host's audit last found. */
static inline uint64_t
cgpu_mapped_limits_outside(const struct cgpu_limits *limits, uint32_t place)
{
    /* Relaxed: as the cap. */
    return __atomic_load_n(&limits->gpus[place].outside_bytes, __ATOMIC_RELAXED);
}

/* The most that the ledger may add up to: the cap without what is held around it. */
static inline uint64_t
cgpu_mapped_limits_room(const struct cgpu_limits *limits, uint32_t place)
{
    uint64_t cap = cgpu_mapped_limits_cap(limits, place);
    uint64_t outside = cgpu_mapped_limits_outside(limits, place);
    return outside < cap ? cap - outside : 0;
}

#endif
