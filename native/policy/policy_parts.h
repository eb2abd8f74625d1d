/* Arithmetic that policies share. */
#ifndef CGPU_POLICY_PARTS_H
#define CGPU_POLICY_PARTS_H

#include "clock.h"
#include "policy/policy.h"

/* WEIGHT of WHOLE in millionths, rounded down, at most a million. */
static inline uint32_t
cgpu_policy_part(uint64_t weight, uint64_t whole)
{
    return weight >= whole ? CGPU_WHOLE_PPM : (uint32_t)(weight * CGPU_WHOLE_PPM / whole);
}

/* The sum of the weights, in parts. */
static inline uint64_t
cgpu_policy_weights(const struct cgpu_claim *claims, size_t count)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < count; i++) {
        sum += claims[i].competes;
    }
    return sum;
}

#endif
