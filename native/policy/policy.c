/* The table of policies: see policy.h. */
#include "policy/policy.h"

#include <stdbool.h>

#include "clock.h"
#include "status.h"

const struct cgpu_policy *const cgpu_policies[] = {
    [CGPU_POLICY_FAIR_SHARE] = &cgpu_policy_fair_share,
    [CGPU_POLICY_PREEMPTIVE] = &cgpu_policy_preemptive,
    [CGPU_POLICY_WEIGHTED_PREEMPTIVE] = &cgpu_policy_weighted_preemptive,
    [CGPU_POLICY_FIXED] = &cgpu_policy_fixed,
    [CGPU_POLICY_SOFT] = &cgpu_policy_soft,
    [CGPU_POLICY_NATIVE] = &cgpu_policy_native,
    [CGPU_POLICY_WEIGHTED_FAIR] = &cgpu_policy_weighted_fair,
};

_Static_assert(sizeof cgpu_policies / sizeof *cgpu_policies == CGPU_POLICIES, "one each");

/* Those of weight 0 have this part of max_inst together where the others leave less. */
enum { LEAST_PART = 200 };

/*
 * Set COMPETES of each container to its weight, in parts. What is left of MAX_INST goes to those of
 * weight 0: one part to each, so that none has nothing, and the rest by memory.
 */
static void
divide_rest(struct cgpu_claim *claims, size_t count, uint32_t max_inst)
{
    uint64_t whole = (uint64_t)max_inst * CGPU_WEIGHT_PARTS;
    uint64_t promised = 0, memory = 0, sharers = 0, rest;

    for (size_t i = 0; i < count; i++) {
        bool shares = claims[i].weight == 0;

        promised += (uint64_t)claims[i].weight * CGPU_WEIGHT_PARTS;
        memory += shares ? claims[i].memory_mib : 0;
        sharers += shares;
    }
    rest = cgpu_larger(cgpu_since(whole, promised), whole / LEAST_PART);
    rest = cgpu_since(rest, sharers);
    for (size_t i = 0; i < count; i++) {
        uint64_t part = 1 + claims[i].memory_mib * rest / cgpu_larger(memory, 1);

        claims[i].competes =
            claims[i].weight > 0 ? claims[i].weight * CGPU_WEIGHT_PARTS : (uint32_t)part;
    }
}

int
cgpu_policy_entitle(uint32_t policy, struct cgpu_claim *claims, size_t count, uint32_t max_inst)
{
    if (policy >= CGPU_POLICIES || max_inst == 0) {
        return CGPU_EINVAL;
    }
    divide_rest(claims, count, max_inst);
    cgpu_policies[policy]->entitle(claims, count, max_inst);
    return CGPU_OK;
}

const char *
cgpu_policy_name(uint32_t policy)
{
    return policy < CGPU_POLICIES ? cgpu_policies[policy]->name : NULL;
}
