/*
 * SCH-6: active containers share by weight; they also share by weight what the others do not use.
 */
#include "policy/policy_parts.h"

static void
entitle(struct cgpu_claim *claims, size_t count, uint32_t max_inst)
{
    uint64_t running = cgpu_policy_weights(claims, count);

    (void)max_inst;
    for (size_t i = 0; i < count; i++) {
        claims[i].ceiling_ppm = CGPU_WHOLE_PPM;
        claims[i].fallback_ppm = cgpu_policy_part(claims[i].competes, running);
    }
}

const struct cgpu_policy cgpu_policy_weighted_fair = {.name = "weighted fair", .entitle = entitle};
