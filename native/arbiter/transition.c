/* The state of a container in its turns, and all that belongs to each change of it. */
#include <string.h>

#include "arbiter/arbiter_state.h"

enum { FORGET_PART = 8 };

/* Let TENANT in. Record whether others are still at work beside it. */
static void
enter(struct cgpu_arbiter *arbiter, struct cgpu_tenant *tenant, uint64_t now)
{
    /* a container with several GPUs may wait for its own work on another one */
    tenant->quiet = !tenant->several;
    cgpu_each_tenant(other, arbiter) {
        if (other != tenant && other->state > CGPU_STATE_AWAY) {
            tenant->quiet = false;
        }
        if (other != tenant && other->state == CGPU_STATE_DRAINING) {
            cgpu_state_change(arbiter, other, CGPU_STATE_FOLLOWED, now);
        }
    }
    tenant->shown = tenant->state != CGPU_STATE_AWAY && tenant->demand.active;
    tenant->unscheduled = tenant->corunner.met = false;
    tenant->opened_ns = now;
    tenant->begun_ns = 0;
}

/*
 * Note that the work of TENANT has ended. If it was unscheduled, drop its credit: what it saved up
 * meanwhile exceeds its share.
 */
static void
go_away(struct cgpu_tenant *tenant, uint64_t now)
{
    /* otherwise the container is new, nobody waited for it, or its turn was not its own */
    if (cgpu_tenant_goes_on(tenant) && !tenant->unscheduled && !tenant->corunner.met) {
        tenant->drain_ns = cgpu_larger(cgpu_since(now, tenant->closed_ns),
                                       tenant->drain_ns - tenant->drain_ns / FORGET_PART);
    }
    if (tenant->unscheduled) {
        cgpu_bucket_forget(&tenant->bucket);
    }
    tenant->unscheduled = tenant->corunner.met = false;
    tenant->gate = CGPU_GATE_CLOSED;
}

/*
 * Whether TENANT is EXPIRED and its work is late by more than its expected time. Beside others it
 * gets every second time slice, so it takes twice as long.
 */
static bool
is_too_late(const struct cgpu_tenant *tenant, uint64_t now)
{
    const struct cgpu_demand *demand = &tenant->demand;
    uint64_t left = cgpu_since(demand->end_ns, tenant->closed_ns);

    left = cgpu_lesser(left, CGPU_STOPPED_NS); /* then it is not charged any more */
    return tenant->state == CGPU_STATE_EXPIRED && demand->certain &&
           cgpu_since(now, demand->end_ns) > left + CGPU_OVERLAP_NS;
}

bool
cgpu_tenant_competes(const struct cgpu_tenant *tenant, uint64_t now)
{
    return cgpu_tenant_wants(tenant) && tenant->absent_until <= now && !is_too_late(tenant, now);
}

void
cgpu_state_change(struct cgpu_arbiter *arbiter, struct cgpu_tenant *tenant,
                  enum cgpu_tenant_state to, uint64_t now)
{
    if (tenant->state == to) {
        return;
    }
    if (tenant->state == CGPU_STATE_RUNNING &&
        arbiter->holder == cgpu_tenant_index(arbiter, tenant)) {
        arbiter->holder = -1;
    }
    cgpu_anticipation_end(arbiter, tenant, now);
    switch (to) {
    case CGPU_STATE_NONE:
        /* over_ns was not left out of what it is shown, so others cannot be shown it instead */
        arbiter->unused_ns = cgpu_since(arbiter->unused_ns, tenant->used.over_ns);
        memset(tenant, 0, sizeof *tenant);
        break;
    case CGPU_STATE_AWAY:
        go_away(tenant, now);
        break;
    case CGPU_STATE_RUNNING:
        enter(arbiter, tenant, now);
        break;
    case CGPU_STATE_DRAINING:
        tenant->gate = CGPU_GATE_CLOSED;
        tenant->asked = false;
        tenant->closed_ns = now;
        break;
    case CGPU_STATE_FOLLOWED:
    case CGPU_STATE_OVERLAPPED:
        break;
    case CGPU_STATE_EXPIRED:
        /*
         * a container that waits for a peer on another GPU gives a sign, and one that was followed
         * lost nothing
         */
        arbiter->expired +=
            tenant->state == CGPU_STATE_DRAINING && now >= cgpu_turn_patience(tenant);
        break;
    }
    tenant->state = to;
}
