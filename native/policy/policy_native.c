/* SCH-5: memory isolation only; the GPU's own time slicing decides. */
#include "policy/policy_parts.h"

static void
entitle(struct cgpu_claim *claims, size_t count, uint32_t max_inst)
{
    (void)max_inst;
    for (size_t i = 0; i < count; i++) {
        claims[i].competes = CGPU_WEIGHT_PARTS;
        claims[i].ceiling_ppm = CGPU_WHOLE_PPM;
        claims[i].fallback_ppm = CGPU_WHOLE_PPM; /* nothing is closed without an arbiter either */
    }
}

const struct cgpu_policy cgpu_policy_native = {.name = "native", .entitle = entitle};
