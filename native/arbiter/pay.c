/*
 * The effect of a charge: on what is shown, on the order of turns, and on the bucket of a ceiling.
 */
#include "arbiter/arbiter_state.h"

void
cgpu_pay(struct cgpu_arbiter *arbiter, struct cgpu_tenant *tenant, uint64_t ns)
{
    uint64_t unit = CGPU_VIRTUAL_UNIT;
    uint64_t most = arbiter->floor_ns[tenant->high] + CGPU_DEBT_NS * unit / tenant->claim.competes;

    tenant->charged_ns += ns;
    cgpu_used_charge(arbiter, tenant, ns);
    arbiter->paid_ns += ns;
    if (arbiter->corun.on) {
        return; /* what is charged while gates are open together is nobody's debt */
    }
    tenant->virtual_ns += ns * unit / tenant->claim.competes;
    tenant->virtual_ns = cgpu_lesser(tenant->virtual_ns, most);
    cgpu_bucket_take(tenant->high ? &arbiter->high : &tenant->bucket, ns);
}
