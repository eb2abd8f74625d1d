/*
 * SCH-0: each running container owns 1/max_inst of the GPU's time; what it does not use stays idle.
 */
#include "policy/policy_parts.h"

static void
entitle(struct cgpu_claim *claims, size_t count, uint32_t max_inst)
{
    for (size_t i = 0; i < count; i++) {
        claims[i].competes = CGPU_WEIGHT_PARTS;
        claims[i].ceiling_ppm = cgpu_policy_part(1, max_inst);
        /* after max_inst was lowered, more containers may run than it allows */
        claims[i].fallback_ppm = cgpu_policy_part(1, cgpu_larger(max_inst, count));
    }
}

const struct cgpu_policy cgpu_policy_fair_share = {.name = "fair share", .entitle = entitle};
