/*
 * The charge for work that did not end for a second. Its stream was stalled: nobody waited for the
 * work, and nobody paid for it. When it ends, its GPU time is charged: all of the time in which
 * nobody else was charged, and half of the rest, because a GPU divides its time. Work from a gate
 * without turns (unscheduled) is not charged.
 */
#include "arbiter/arbiter_state.h"

/*
 * Let TENANT owe for NS in which others paid in full, although each side had half of the GPU. They
 * get nothing back; instead TENANT owes that much more. Time that nobody else wanted adds no debt.
 */
static void
add_debt(const struct cgpu_arbiter *arbiter, struct cgpu_tenant *tenant, uint64_t ns)
{
    uint64_t unit = CGPU_VIRTUAL_UNIT;
    uint64_t floor = arbiter->floor_ns[tenant->high];
    uint64_t most = floor + CGPU_DEBT_NS * unit / tenant->claim.competes;
    uint64_t theirs = cgpu_since(floor, tenant->stall_floor_ns) / 2;

    if (ns > 0) {
        most = cgpu_larger(most, tenant->virtual_ns);
        tenant->virtual_ns += ns / 2 * unit / tenant->claim.competes + theirs;
        tenant->virtual_ns = cgpu_lesser(tenant->virtual_ns, most);
    }
}

static void
end(struct cgpu_arbiter *arbiter, struct cgpu_tenant *tenant, uint64_t ns, uint64_t now)
{
    uint64_t others = cgpu_since(arbiter->paid_ns - tenant->charged_ns, tenant->stall_others_ns);
    uint64_t own = tenant->charged_ns - tenant->stall_own_ns;
    uint64_t used;

    ns = cgpu_lesser(ns, cgpu_since(now, tenant->stalled_since_ns));
    others = cgpu_lesser(others, ns);
    used = cgpu_since(ns - others / 2, own);
    /* it was not idle, so what it is owed is kept */
    tenant->active_ns = tenant->competed_ns = now;
    add_debt(arbiter, tenant, others);
    cgpu_bucket_take(&tenant->bucket, used);
    if (tenant->high) {
        cgpu_bucket_take(&arbiter->high, others / 2);
    }
    tenant->charged_ns += used;
    cgpu_used_charge(arbiter, tenant, used);
    arbiter->paid_ns += used;
}

void
cgpu_stall_charge(struct cgpu_arbiter *arbiter, struct cgpu_tenant *tenant,
                  const struct cgpu_demand *says, uint64_t now)
{
    uint64_t before = tenant->demand.stalled_ns;

    if (says->stalled_ns > before) {
        if (tenant->stalled_since_ns != 0 && cgpu_arbiter_takes_turns(arbiter)) {
            end(arbiter, tenant, says->stalled_ns - before, now);
        }
        tenant->stalled_since_ns = 0;
    }
    tenant->stall_begins = says->stalls != tenant->demand.stalls && !tenant->unscheduled;
}

void
cgpu_stall_record(const struct cgpu_arbiter *arbiter, struct cgpu_tenant *tenant, uint64_t now)
{
    if (!tenant->stall_begins) {
        return;
    }
    tenant->stall_begins = false;
    tenant->stalled_since_ns = now;
    tenant->stall_floor_ns = arbiter->floor_ns[tenant->high];
    tenant->stall_own_ns = tenant->charged_ns;
    tenant->stall_others_ns = arbiter->paid_ns - tenant->charged_ns;
}
