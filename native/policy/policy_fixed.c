/* SCH-3: exactly weight/max_inst of the GPU's time, no more when others are idle. */
#include "policy/policy_parts.h"

static void
entitle(struct cgpu_claim *claims, size_t count, uint32_t max_inst)
{
    /* after max_inst was lowered, or beside containers of weight 0, they may add up to more */
    uint64_t most = (uint64_t)max_inst * CGPU_WEIGHT_PARTS;
    uint64_t whole = cgpu_larger(most, cgpu_policy_weights(claims, count));

    for (size_t i = 0; i < count; i++) {
        claims[i].ceiling_ppm = cgpu_policy_part(claims[i].competes, most);
        claims[i].fallback_ppm = cgpu_policy_part(claims[i].competes, whole);
    }
}

const struct cgpu_policy cgpu_policy_fixed = {.name = "fixed", .entitle = entitle};
