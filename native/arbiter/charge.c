/*
 * The charge for the time since the last step. A draining container pays until its work has ended,
 * and only then the holder. OVERLAPPED and EXPIRED containers share the charge, because their work
 * may still run.
 *
 * Under turns, a container's reports do not lower its charge while another one wants the GPU, or
 * while it has a ceiling. Its lag and its idle credit do, up to their limits.
 */
#include "arbiter/arbiter_state.h"

enum { START_PART = 16 };

static uint64_t
less_start(struct cgpu_arbiter *arbiter, struct cgpu_tenant *tenant, uint64_t ns)
{
    /* at most this part: otherwise short turns would cost next to nothing */
    uint64_t start = cgpu_lesser(ns / START_PART, tenant->start_ns);

    tenant->start_ns -= start;
    cgpu_used_skip(arbiter, start);
    return ns - start;
}

static bool
pays(const struct cgpu_arbiter *arbiter, const struct cgpu_tenant *tenant,
     const struct cgpu_tenant *payer, uint64_t now)
{
    bool meets = (arbiter->corun.on || tenant->corunner.met) && cgpu_tenant_works(tenant);

    return tenant == payer || meets ||
           (cgpu_tenant_overlaps(tenant, now) && !(tenant->unscheduled && payer == NULL));
}

/*
 * Charge NS in equal parts to PAYER (NULL: nobody) and to all whose work goes on beside others'.
 * Unscheduled ones of these pay only if there is a PAYER.
 */
static void
share_bill(struct cgpu_arbiter *arbiter, struct cgpu_tenant *payer, uint64_t ns, uint64_t now)
{
    uint64_t payers = 0;

    cgpu_each_tenant(tenant, arbiter) {
        payers += pays(arbiter, tenant, payer, now);
    }
    if (payer != NULL) {
        ns = less_start(arbiter, payer, ns);
    }
    cgpu_each_tenant(tenant, arbiter) {
        if (ns > 0 && pays(arbiter, tenant, payer, now)) {
            cgpu_pay(arbiter, tenant, ns / payers);
        }
    }
}

/*
 * Charge NS to the container that drains, until its end is seen, whatever end it reports. Returns
 * whether any drains. If all that drain are unscheduled, nobody pays.
 */
static bool
charge_draining(struct cgpu_arbiter *arbiter, uint64_t ns, uint64_t now)
{
    bool draining = false, paid = false;

    cgpu_each_tenant(tenant, arbiter) {
        if (!cgpu_tenant_is_draining(tenant)) {
            continue;
        }
        draining = true;
        if (!paid && !tenant->unscheduled) {
            share_bill(arbiter, tenant, ns - cgpu_idle_after(tenant, now - ns, now), now);
            paid = true;
        }
        tenant->asked = true;
        if (!tenant->demand.active) {
            cgpu_state_change(arbiter, tenant, CGPU_STATE_AWAY, now);
        }
    }
    return draining;
}

/*
 * Let OVERLAPPED and EXPIRED containers go AWAY once their work has ended: they have paid their
 * part.
 */
static void
end_expired(struct cgpu_arbiter *arbiter, uint64_t now)
{
    cgpu_each_tenant(tenant, arbiter) {
        if (tenant->state >= CGPU_STATE_OVERLAPPED && !tenant->demand.active) {
            cgpu_state_change(arbiter, tenant, CGPU_STATE_AWAY, now);
        }
    }
}

/* Whether HOLDER has no ceiling, and nobody else wanted the GPU in the time that is charged. */
static bool
was_alone(const struct cgpu_arbiter *arbiter, const struct cgpu_tenant *holder)
{
    for (int i = 0; i < CGPU_MAX_TENANTS; i++) {
        if (&arbiter->tenants[i] != holder && arbiter->tenants[i].competes) {
            return false;
        }
    }
    return !cgpu_tenant_is_capped(holder);
}

/* The part of NS that TENANT reports as used. This is good enough while it is alone. */
static uint64_t
used_alone(const struct cgpu_tenant *tenant, uint64_t busy_before, uint64_t ns)
{
    return cgpu_lesser(ns, cgpu_since(tenant->demand.busy_ns, busy_before));
}

static void
charge_holder(struct cgpu_arbiter *arbiter, uint64_t ns, uint64_t now, uint64_t busy_before)
{
    struct cgpu_tenant *holder = &arbiter->tenants[arbiter->holder];

    holder->turn_ns += ns;
    if (holder->gate == CGPU_GATE_FREE) {
        return;
    }
    /* work in flight is reported as used only when it has ended */
    if (was_alone(arbiter, holder) &&
        (holder->gate == CGPU_GATE_OPEN || !cgpu_tenant_works(holder))) {
        ns = used_alone(holder, busy_before, ns);
    }
    ns -= cgpu_idle_before(holder, now - ns, now);
    share_bill(arbiter, holder, ns, now);
}

/*
 * Let TENANT compete again. Programs pause between kernels, so after a short pause it is as far
 * behind the others, or ahead of them, as before. Idleness itself earns nothing.
 */
static void
come_back(struct cgpu_tenant *tenant, uint64_t floor, uint64_t idle_ns)
{
    uint64_t owed = idle_ns < CGPU_RECENT_NS ? tenant->owed_ns : 0;
    uint64_t lead = idle_ns < CGPU_RECENT_NS ? tenant->lead_ns : 0;

    tenant->virtual_ns = cgpu_larger(tenant->virtual_ns, cgpu_since(floor, owed) + lead);
}

/*
 * Record how far TENANT is behind the least charge of the others that compete, or ahead of it. If
 * that is below the floor, the floor counts, because come_back counts from there.
 */
static void
stop_competing(const struct cgpu_arbiter *arbiter, struct cgpu_tenant *tenant)
{
    uint64_t most = CGPU_OWED_NS * CGPU_VIRTUAL_UNIT / tenant->claim.competes;
    uint64_t most_lead = CGPU_LEAD_NS * CGPU_VIRTUAL_UNIT / tenant->claim.competes;
    uint64_t least = UINT64_MAX;

    cgpu_each_tenant(other, arbiter) {
        if (other != tenant && other->competes && other->high == tenant->high) {
            least = cgpu_lesser(least, other->virtual_ns);
        }
    }
    if (least != UINT64_MAX) {
        least = cgpu_larger(least, arbiter->floor_ns[tenant->high]);
    }
    tenant->lead_ns = cgpu_lesser(cgpu_since(tenant->virtual_ns, least), most_lead);
    tenant->owed_ns =
        least == UINT64_MAX ? 0 : cgpu_lesser(cgpu_since(least, tenant->virtual_ns), most);
}

/*
 * For display: count how long and how often TENANT waits. A container that was let in may count as
 * waiting for NS too long.
 */
static void
count_waiting(struct cgpu_tenant *tenant, bool waits, uint64_t ns)
{
    if (tenant->demand.waiting && tenant->gate == CGPU_GATE_CLOSED) {
        tenant->throttled_ns += ns;
    }
    tenant->waits += waits && !tenant->demand.waiting;
}

/* Adopt DEMANDS. */
static void
observe(struct cgpu_arbiter *arbiter, uint64_t now, const struct cgpu_demand *demands)
{
    cgpu_each_tenant(tenant, arbiter) {
        const struct cgpu_demand *says = &demands[cgpu_tenant_index(arbiter, tenant)];

        count_waiting(tenant, says->waiting, now - arbiter->now);
        cgpu_stall_charge(arbiter, tenant, says, now);
        if (says->missed != tenant->demand.missed) {
            tenant->absent_until =
                cgpu_lesser(tenant->absent_until, tenant->closed_ns + CGPU_AGAIN_NS);
        }
        cgpu_used_observe(arbiter, tenant, says);
        tenant->demand = *says;
        tenant->demand.lag_ns = cgpu_lesser(says->lag_ns, CGPU_LAG_NS);
        cgpu_anticipation_observe(arbiter, tenant, now);
        tenant->bucket.lag_ns = tenant->demand.lag_ns;
        tenant->active_ns = cgpu_tenant_wants(tenant) ? now : tenant->active_ns;
        if (tenant->demand.active && tenant->state == CGPU_STATE_RUNNING) {
            tenant->begun_ns = tenant->shown ? tenant->begun_ns : tenant->demand.begun_ns;
            tenant->shown = true;
            tenant->absences = 0;
        }
    }
}

/*
 * Take as much from all virtual times of a priority, long before one overflows. That of a hundredth
 * of a unit of weight would do so after 133 days of GPU time.
 */
static void
rebase(struct cgpu_arbiter *arbiter, bool high)
{
    uint64_t less = UINT64_C(1) << 61;

    if (arbiter->floor_ns[high] < 2 * less) {
        return;
    }
    arbiter->floor_ns[high] -= less;
    arbiter->round_end_ns[high] = cgpu_since(arbiter->round_end_ns[high], less);
    cgpu_each_tenant(tenant, arbiter) {
        if (tenant->high == high) {
            tenant->virtual_ns = cgpu_since(tenant->virtual_ns, less);
            tenant->stall_floor_ns = cgpu_since(tenant->stall_floor_ns, less);
        }
    }
}

/*
 * Raise the floor of each priority to the least charge of those that competed in the time just
 * charged. If nobody of the holder's priority did, the holder's charge counts.
 */
static void
raise_floors(struct cgpu_arbiter *arbiter)
{
    uint64_t least[2] = {UINT64_MAX, UINT64_MAX};

    cgpu_each_tenant(tenant, arbiter) {
        if (tenant->competes && tenant->state != CGPU_STATE_EXPIRED) {
            least[tenant->high] = cgpu_lesser(least[tenant->high], tenant->virtual_ns);
        }
    }
    if (arbiter->holder >= 0) {
        const struct cgpu_tenant *holder = &arbiter->tenants[arbiter->holder];

        if (least[holder->high] == UINT64_MAX) {
            least[holder->high] = holder->virtual_ns;
        }
    }
    for (int high = 0; high < 2; high++) {
        if (least[high] != UINT64_MAX) {
            arbiter->floor_ns[high] = cgpu_larger(arbiter->floor_ns[high], least[high]);
        }
        rebase(arbiter, high);
    }
}

/*
 * Find the containers that compete from now on. One that comes back starts level with the others.
 */
static void
find_competitors(struct cgpu_arbiter *arbiter, uint64_t now)
{
    cgpu_each_tenant(tenant, arbiter) {
        bool competes = cgpu_tenant_competes(tenant, now);

        if (competes && !tenant->competes) {
            come_back(tenant, arbiter->floor_ns[tenant->high],
                      cgpu_since(now, tenant->competed_ns));
        } else if (!competes && tenant->competes) {
            stop_competing(arbiter, tenant);
        }
        tenant->competes = competes;
        tenant->competed_ns = competes ? now : tenant->competed_ns;
    }
}

/* Fill the buckets for the NS that have passed, at the rates that held in that time. */
static void
refill_buckets(struct cgpu_arbiter *arbiter, uint64_t ns)
{
    bool high_wants = false;

    cgpu_each_tenant(tenant, arbiter) {
        cgpu_bucket_refill(&tenant->bucket, ns, cgpu_tenant_wants(tenant));
        high_wants |= tenant->high && cgpu_tenant_wants(tenant);
    }
    cgpu_bucket_refill(&arbiter->high, ns, high_wants);
}

static void
update_buckets(struct cgpu_arbiter *arbiter)
{
    bool contended = false;

    cgpu_each_tenant(tenant, arbiter) {
        uint32_t ceiling = tenant->high ? CGPU_WHOLE_PPM : tenant->claim.ceiling_ppm;

        cgpu_bucket_update(&tenant->bucket, ceiling < CGPU_WHOLE_PPM ? ceiling : 0);
        contended |= !tenant->high && cgpu_tenant_wants(tenant);
    }
    contended &= arbiter->discipline->metered;
    cgpu_bucket_update(&arbiter->high,
                       contended ? arbiter->rules.prio_ratio * (CGPU_WHOLE_PPM / 100) : 0);
}

/*
 * Make a container EXPIRED if it is AWAY (gate closed, nothing in flight) and reports work again: a
 * stream of it had stalled and now counts. Nobody waits for that work.
 */
static void
find_risen(struct cgpu_arbiter *arbiter, uint64_t now)
{
    cgpu_each_tenant(tenant, arbiter) {
        if (tenant->state == CGPU_STATE_AWAY && tenant->demand.active) {
            cgpu_state_change(arbiter, tenant, CGPU_STATE_EXPIRED, now);
        }
    }
}

void
cgpu_charge_nobody(struct cgpu_arbiter *arbiter, uint64_t now, const struct cgpu_demand *demands)
{
    observe(arbiter, now, demands);
    refill_buckets(arbiter, now - arbiter->now);
}

void
cgpu_charge_turns(struct cgpu_arbiter *arbiter, uint64_t now, const struct cgpu_demand *demands)
{
    uint64_t ns = now - arbiter->now;
    uint64_t busy_before =
        arbiter->holder >= 0 ? arbiter->tenants[arbiter->holder].demand.busy_ns : 0;

    cgpu_charge_nobody(arbiter, now, demands);
    if (!charge_draining(arbiter, ns, now)) {
        if (arbiter->holder >= 0) {
            charge_holder(arbiter, ns, now, busy_before);
        } else {
            share_bill(arbiter, NULL, ns, now);
        }
    }
    end_expired(arbiter, now);
    cgpu_overlap_observe(arbiter, now);
    find_risen(arbiter, now);
}

void
cgpu_charge_time(struct cgpu_arbiter *arbiter, uint64_t now, const struct cgpu_demand *demands)
{
    cgpu_used_turn_parts(arbiter, now);
    cgpu_anticipation_refill(arbiter, now - arbiter->now);
    arbiter->discipline->charge(arbiter, now, demands);
    update_buckets(arbiter);
    raise_floors(arbiter);
    find_competitors(arbiter, now);
    cgpu_each_tenant(tenant, arbiter) {
        cgpu_stall_record(arbiter, tenant, now);
    }
}
