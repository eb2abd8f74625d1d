/* The lag: how long a launch takes to begin and its end to be seen, see cgpu_demand. */
#include "arbiter/arbiter_state.h"

/* The GPU's lag is the least that is reported, so nobody gains by reporting more than others. */
uint64_t
cgpu_lag_least(const struct cgpu_arbiter *arbiter)
{
    uint64_t least = CGPU_LAG_NS;
    bool known = false;

    for (int i = 0; i < CGPU_MAX_TENANTS; i++) {
        const struct cgpu_tenant *tenant = &arbiter->tenants[i];

        if (cgpu_tenant_wants(tenant) && tenant->demand.lag_ns != 0) {
            least = cgpu_lesser(least, tenant->demand.lag_ns);
            known = true;
        }
    }
    return known ? least : 0;
}

uint64_t
cgpu_turn_early(const struct cgpu_arbiter *arbiter, int index)
{
    const struct cgpu_tenant *tenant = index >= 0 ? &arbiter->tenants[index] : NULL;

    if (tenant == NULL) {
        return CGPU_EARLY_NS;
    }
    return tenant->turns % CGPU_QUIET_TURNS == 1 ? 0 : CGPU_EARLY_NS + tenant->demand.lag_ns;
}
