/* What ends turns before the next one is chosen. */
#include "arbiter/arbiter_state.h"

/*
 * Gates that another policy left open, or one that was free until a lone container got a ceiling.
 * If another container came instead, the first one's queued work delays it, and is charged.
 */
static void
close_strays(struct cgpu_arbiter *arbiter, uint64_t now)
{
    for (int i = 0; i < CGPU_MAX_TENANTS; i++) {
        struct cgpu_tenant *tenant = &arbiter->tenants[i];
        bool turns = i == arbiter->holder &&
                     (tenant->gate != CGPU_GATE_FREE || !cgpu_tenant_is_capped(tenant) ||
                      !cgpu_turn_alone(arbiter, i, CGPU_ALONE_NS, now));

        if (tenant->stage == CGPU_STAGE_HOLDS && !turns) {
            cgpu_turn_close(arbiter, i, now);
            tenant->stray = true;
        }
    }
}

static void
give_up_silent(struct cgpu_arbiter *arbiter, uint64_t now)
{
    for (int i = 0; i < CGPU_MAX_TENANTS; i++) {
        struct cgpu_tenant *tenant = &arbiter->tenants[i];

        if (cgpu_tenant_goes_on(tenant) && tenant->demand.active &&
            now >= cgpu_turn_patience(tenant)) {
            cgpu_stage_change(arbiter, tenant, CGPU_STAGE_EXPIRED, now);
        }
    }
}

void
cgpu_turn_review(struct cgpu_arbiter *arbiter, uint64_t now)
{
    close_strays(arbiter, now);
    give_up_silent(arbiter, now);
}
