/* SCH-3: exactly weight/max_inst of the GPU's time, no more when others are idle. */
#include "policy/policy_parts.h"

static void
entitle(struct cgpu_claim *claims, size_t count, uint32_t max_inst)
{
    /* after max_inst was lowered, the weights may add up to more than that */
    uint64_t whole = cgpu_larger(max_inst, cgpu_policy_weights(claims, count));

    for (size_t i = 0; i < count; i++) {
        claims[i].competes = claims[i].weight;
        claims[i].ceiling_ppm = cgpu_policy_part(claims[i].weight, max_inst);
        claims[i].fallback_ppm = cgpu_policy_part(claims[i].weight, whole);
    }
}

const struct cgpu_policy cgpu_policy_fixed = {.name = "fixed", .entitle = entitle};
