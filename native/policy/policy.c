/* The table of policies: see policy.h. */
#include "policy/policy.h"

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

int
cgpu_policy_entitle(uint32_t policy, struct cgpu_claim *claims, size_t count, uint32_t max_inst)
{
    if (policy >= CGPU_POLICIES || max_inst == 0) {
        return CGPU_EINVAL;
    }
    for (size_t i = 0; i < count; i++) {
        if (claims[i].weight == 0) {
            return CGPU_EINVAL;
        }
    }
    cgpu_policies[policy]->entitle(claims, count, max_inst);
    return CGPU_OK;
}

const char *
cgpu_policy_name(uint32_t policy)
{
    return policy < CGPU_POLICIES ? cgpu_policies[policy]->name : NULL;
}
