/*
 * SCH-2: running containers share by weight; what an idle one leaves stays idle while it runs. A
 * lone running container gets everything.
 */
#include "policy_parts.h"

static void
entitle(struct cgpu_claim *claims, size_t count, uint32_t max_inst)
{
    uint64_t running = cgpu_policy_weights(claims, count);

    (void)max_inst;
    for (size_t i = 0; i < count; i++) {
        claims[i].competes = claims[i].weight;
        claims[i].ceiling_ppm = cgpu_policy_part(claims[i].weight, running);
        claims[i].fallback_ppm = claims[i].ceiling_ppm;
    }
}

const struct cgpu_policy cgpu_policy_weighted_preemptive = {
    .name = "weighted preemptive", .metered = true, .entitle = entitle};
