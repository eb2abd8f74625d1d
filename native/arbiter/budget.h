/*
 * How often the arbiter may take a step for a GPU: 8,000 times a second, and 32 in a row. A step
 * takes some 10 us of a processor. Hostile containers ring more often than that. Containers that
 * synchronise all the time do not, but would lose half of their speed if only 2,000 steps were
 * allowed.
 */
#ifndef CGPU_BUDGET_H
#define CGPU_BUDGET_H

#include <stdint.h>

#define CGPU_BUDGET_STEP_NS    UINT64_C(125000)
#define CGPU_BUDGET_AT_ONCE_NS (32 * CGPU_BUDGET_STEP_NS)

struct cgpu_budget {
    uint64_t spent_ns; /* up to then */
};

/* Account for one step of GPUS GPUs at NOW. Returns when the next one is allowed. */
static inline uint64_t
cgpu_budget_spend(struct cgpu_budget *budget, uint32_t gpus, uint64_t now)
{
    if (budget->spent_ns + gpus * CGPU_BUDGET_AT_ONCE_NS < now) {
        budget->spent_ns = now - gpus * CGPU_BUDGET_AT_ONCE_NS;
    }
    budget->spent_ns += gpus * CGPU_BUDGET_STEP_NS;
    return budget->spent_ns > now ? budget->spent_ns : now;
}

#endif
