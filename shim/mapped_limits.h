/* The limits of the container that this process is in. */
#ifndef CGPU_MAPPED_LIMITS_H
#define CGPU_MAPPED_LIMITS_H

#include "limits.h"

/*
 * Map the limits, read-only. The host changes caps in place, so they are read again at every use.
 * NULL: the limits are missing or of another release; then nothing may be allocated or shown.
 */
const struct cgpu_limits *cgpu_mapped_limits_open(void);

/* The number in LIMITS of the GPU with these UUID bytes, or CGPU_ENOTFOUND. */
int cgpu_mapped_limits_find(const struct cgpu_limits *limits, const uint8_t uuid[16]);

/* The cap on a GPU at this moment: the host changes it with one aligned store while we run. */
static inline uint64_t
cgpu_mapped_limits_cap(const struct cgpu_limits *limits, uint32_t gpu)
{
    /* Relaxed: no other data depends on the cap. */
    return __atomic_load_n(&limits->gpus[gpu].cap_bytes, __ATOMIC_RELAXED);
}

/* Bytes that the container holds outside its ledger, as the host's audit last found. */
static inline uint64_t
cgpu_mapped_limits_outside(const struct cgpu_limits *limits, uint32_t gpu)
{
    /* Relaxed, like the cap. */
    return __atomic_load_n(&limits->gpus[gpu].outside_bytes, __ATOMIC_RELAXED);
}

/* The most that the ledger may add up to: the cap less what is held outside. */
static inline uint64_t
cgpu_mapped_limits_room(const struct cgpu_limits *limits, uint32_t gpu)
{
    uint64_t cap = cgpu_mapped_limits_cap(limits, gpu);
    uint64_t outside = cgpu_mapped_limits_outside(limits, gpu);
    return outside < cap ? cap - outside : 0;
}

#endif
