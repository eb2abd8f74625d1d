/*
 * The soft policy: all gates stay open, and from moment to moment the GPU's own time slicing
 * decides. Only a container that is far ahead of the others waits until they have caught up.
 */
#include "arbiter/arbiter_state.h"
#include "limits.h"

#define AHEAD_NS  (60 * CGPU_MS) /* of GPU time, at weight 1 */
#define LATELY_NS (500 * CGPU_MS)
#define POLL_NS   (10 * CGPU_MS)

/*
 * Update what each container has used lately, by its own report: there is no other source. Returns
 * the sum over those that work.
 */
static uint64_t
update_rates(struct cgpu_arbiter *arbiter, uint64_t now, const struct cgpu_demand *demands)
{
    uint64_t ns = cgpu_lesser(now - arbiter->now, CGPU_LONGEST_NS);
    uint64_t keep = LATELY_NS - cgpu_lesser(ns, LATELY_NS);
    uint64_t sum = 0;

    cgpu_each_tenant(tenant, arbiter) {
        uint64_t busy = demands[cgpu_tenant_index(arbiter, tenant)].busy_ns;
        uint64_t used = cgpu_since(busy, tenant->demand.busy_ns);

        tenant->rate_ns = tenant->rate_ns / 1000 * (keep / (LATELY_NS / 1000));
        tenant->rate_ns += cgpu_lesser(used, CGPU_LONGEST_NS);
        tenant->used_at_ns = used > 0 ? now : tenant->used_at_ns;
        sum += cgpu_tenant_works(tenant) ? tenant->rate_ns : 0;
    }
    return sum;
}

static void
charge(struct cgpu_arbiter *arbiter, uint64_t now, const struct cgpu_demand *demands)
{
    uint64_t ns = cgpu_lesser(now - arbiter->now, CGPU_LONGEST_NS);
    uint64_t sum = update_rates(arbiter, now, demands);
    uint64_t working = 0;

    cgpu_each_tenant(tenant, arbiter) {
        working += cgpu_tenant_works(tenant);
    }
    cgpu_each_tenant(tenant, arbiter) {
        if (cgpu_tenant_works(tenant)) {
            /* in parts of a thousand: the product of two times might not fit */
            uint64_t part = sum >= 1000 ? tenant->rate_ns / (sum / 1000) : 1000 / working;

            cgpu_pay(arbiter, tenant, ns / 1000 * cgpu_lesser(part, 1000));
        }
    }
    cgpu_charge_nobody(arbiter, now, demands);
}

/* Whether TENANT's gate is open and none of its work has ended for a long time. */
static bool
is_silent(const struct cgpu_tenant *tenant, uint64_t now)
{
    uint64_t last = cgpu_larger(tenant->used_at_ns, tenant->opened_ns);
    uint64_t end = cgpu_lesser(tenant->demand.end_ns, last + CGPU_LONGEST_NS);

    return tenant->state == CGPU_STATE_RUNNING && cgpu_tenant_wants(tenant) &&
           now > cgpu_larger(last, end) + CGPU_SILENCE_NS;
}

/* Record which containers are stopped, so that the others do not wait for them to catch up. */
static void
note_silent(struct cgpu_arbiter *arbiter, uint64_t now)
{
    cgpu_each_tenant(tenant, arbiter) {
        tenant->absent_until = is_silent(tenant, now) ? now + 2 * POLL_NS : tenant->absent_until;
    }
}

/* Whether a high-priority container works. If so, the gates of the others are closed. */
static bool
high_priority_works(const struct cgpu_arbiter *arbiter, uint64_t now)
{
    cgpu_each_tenant(tenant, arbiter) {
        if (tenant->high && cgpu_tenant_competes(tenant, now) && !arbiter->high.dry) {
            return true;
        }
    }
    return false;
}

static bool
may_be_open(const struct cgpu_arbiter *arbiter, struct cgpu_tenant *tenant, bool high_works)
{
    uint64_t lead = cgpu_since(tenant->virtual_ns, arbiter->floor_ns[tenant->high]);
    uint64_t most = AHEAD_NS * CGPU_VIRTUAL_UNIT / tenant->claim.competes;

    tenant->ahead = lead > (tenant->ahead ? most / 2 : most);
    if (tenant->high) {
        return !arbiter->high.dry;
    }
    return !high_works && !tenant->ahead;
}

static void
step(struct cgpu_arbiter *arbiter, uint64_t now)
{
    bool high_works;

    arbiter->holder = -1;
    note_silent(arbiter, now);
    high_works = high_priority_works(arbiter, now);
    cgpu_each_tenant(tenant, arbiter) {
        if (!may_be_open(arbiter, tenant, high_works)) {
            cgpu_state_change(arbiter, tenant, CGPU_STATE_AWAY, now);
            continue;
        }
        cgpu_state_change(arbiter, tenant, CGPU_STATE_RUNNING, now);
        if (cgpu_turn_alone(arbiter, tenant, CGPU_ALONE_NS, now)) {
            tenant->gate = CGPU_GATE_FREE;
        } else {
            bool alone = cgpu_turn_alone(arbiter, tenant, CGPU_RECENT_NS, now);

            tenant->gate = alone ? CGPU_GATE_OPEN : CGPU_GATE_PRESSED;
        }
    }
}

uint64_t
cgpu_soft_poll_at(const struct cgpu_arbiter *arbiter, uint64_t now)
{
    cgpu_each_tenant(tenant, arbiter) {
        if (tenant->gate == CGPU_GATE_PRESSED || tenant->demand.waiting) {
            return now + POLL_NS;
        }
    }
    return now + CGPU_RECENT_NS;
}

/*
 * The flags of TENANT. It launches far ahead (CGPU_METERED_SLICED) to fill its time slices on the
 * GPU. It does not if it has several processes, and so several slices; if there are high-priority
 * containers, which wait for what is in flight; or if it has several GPUs, because its work on one
 * may wait for its work on another.
 */
static uint32_t
report(const struct cgpu_arbiter *arbiter, const struct cgpu_tenant *tenant)
{
    bool sliced = tenant->demand.processes <= 1 && tenant->container == 0;

    cgpu_each_tenant(other, arbiter) {
        sliced &= !other->high;
    }
    return CGPU_METERED | CGPU_METERED_ROUGHLY | CGPU_METERED_SPANS |
           (sliced ? CGPU_METERED_SLICED : 0);
}

/* Drop all leads. They are larger than turns would allow, and are not to become debt. */
static void
forget_leads(struct cgpu_arbiter *arbiter)
{
    cgpu_each_tenant(tenant, arbiter) {
        tenant->virtual_ns = cgpu_lesser(tenant->virtual_ns, arbiter->floor_ns[tenant->high]);
    }
}

const struct cgpu_discipline cgpu_soft = {.metered = true,
                                          .charge = charge,
                                          .step = step,
                                          .poll_at = cgpu_soft_poll_at,
                                          .report = report,
                                          .leave = forget_leads};
