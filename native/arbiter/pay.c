/*
 * What a charge changes: the time that is shown, the order of turns, and the bucket of a ceiling.
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
        return; /* time with gates open together is charged, but becomes nobody's debt */
    }
    tenant->virtual_ns += ns * unit / tenant->claim.competes;
    tenant->virtual_ns = cgpu_lesser(tenant->virtual_ns, most);
    cgpu_bucket_take(tenant->high ? &arbiter->high : &tenant->bucket, ns);
}
