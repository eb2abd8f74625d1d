/*
 * SCH-4: as preemptive, but gates stay open together. Shares hold on average; latency comes first.
 */
#include "policy/policy_parts.h"

static void
entitle(struct cgpu_claim *claims, size_t count, uint32_t max_inst)
{
    cgpu_policy_preemptive.entitle(claims, count, max_inst);
}

const struct cgpu_policy cgpu_policy_soft = {.name = "soft", .entitle = entitle};
