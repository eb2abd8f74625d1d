/*
 * SCH-2: running containers share by weight; the part of an idle one stays idle. A lone running
 * container gets everything. High-priority containers have no part of their own: the time that they
 * use is nobody's part, and none stays idle for them (SCH-7).
 */
#include "policy/policy_parts.h"

static void
entitle(struct cgpu_claim *claims, size_t count, uint32_t max_inst)
{
    uint64_t running = cgpu_policy_weights(claims, count);
    uint64_t ordinary = 0;

    (void)max_inst;
    for (size_t i = 0; i < count; i++) {
        ordinary += claims[i].high_priority ? 0 : claims[i].competes;
    }
    for (size_t i = 0; i < count; i++) {
        claims[i].ceiling_ppm = claims[i].high_priority
                                    ? CGPU_WHOLE_PPM
                                    : cgpu_policy_part(claims[i].competes, ordinary);
        claims[i].fallback_ppm = cgpu_policy_part(claims[i].competes, running);
    }
}

const struct cgpu_policy cgpu_policy_weighted_preemptive = {.name = "weighted preemptive",
                                                            .entitle = entitle};
