/* Exclusive turns: how they begin and end. turn_rules.c decides whose turn is next. */
#include "arbiter/arbiter_state.h"

void
cgpu_turn_reopen(struct cgpu_arbiter *arbiter, int index, uint64_t now)
{
    cgpu_state_change(arbiter, &arbiter->tenants[index], CGPU_STATE_RUNNING, now);
    arbiter->holder = index;
}

void
cgpu_turn_open(struct cgpu_arbiter *arbiter, int index, uint64_t now)
{
    struct cgpu_tenant *tenant = &arbiter->tenants[index];

    cgpu_overlap_begin(arbiter, index, now);
    cgpu_turn_reopen(arbiter, index, now);
    arbiter->round_end_ns[tenant->high] =
        cgpu_turn_round_end(arbiter, tenant->high, tenant->virtual_ns);
    tenant->turn_ns = 0;
    tenant->idle_ns = 0;
    tenant->turns += 1;
    tenant->start_ns = CGPU_START_NS + cgpu_lag_least(arbiter);
    if (tenant->yielded) { /* each rest costs two switches, which are charged to nobody */
        uint64_t ns = 2 * (CGPU_START_NS + tenant->demand.lag_ns);

        tenant->virtual_ns += ns * CGPU_VIRTUAL_UNIT / tenant->claim.competes;
    }
    tenant->times = 0;
    tenant->until_ns = 0;
    arbiter->turns += 1;
}

/*
 * Whether HOLDER did not launch since its gate opened, nor in its turns before, which may be short.
 */
static bool
is_absent(const struct cgpu_tenant *holder, uint64_t now)
{
    return !holder->shown &&
           cgpu_since(now, holder->opened_ns) + holder->unseen_ns >= CGPU_ABSENT_NS;
}

/* Whether HOLDER has worked and has nothing more to do. */
static bool
is_done(const struct cgpu_tenant *holder)
{
    return holder->shown && !cgpu_tenant_works(holder);
}

/* Whether HOLDER's time counts against a limit even if nobody else may have the GPU. */
static bool
is_limited(const struct cgpu_arbiter *arbiter, const struct cgpu_tenant *holder)
{
    return cgpu_tenant_is_capped(holder) || (holder->high && cgpu_arbiter_is_contended(arbiter));
}

static void
note_absence(struct cgpu_tenant *holder, uint64_t now)
{
    if (!holder->demand.waiting) {
        return; /* it no longer wants the GPU */
    }
    holder->absent_until = now + (2 * CGPU_ABSENT_NS << holder->absences);
    holder->absences += holder->absences < CGPU_ABSENCES;
}

enum cgpu_turn_end
cgpu_turn_end(struct cgpu_arbiter *arbiter, int next, uint64_t now)
{
    struct cgpu_tenant *holder = &arbiter->tenants[arbiter->holder];
    const struct cgpu_tenant *other = next >= 0 ? &arbiter->tenants[next] : NULL;

    if (!cgpu_turn_allowed(arbiter, holder, now)) {
        return CGPU_TURN_IS_OVER;
    }
    if (is_done(holder)) {
        if (cgpu_anticipate(arbiter, holder, other, now)) {
            if (holder->rest.anticipates) {
                cgpu_overlap_end(arbiter, true, now);
            }
            return CGPU_TURN_GOES_ON;
        }
        return other != NULL || is_limited(arbiter, holder) || cgpu_overlap_any(arbiter)
                   ? CGPU_TURN_IS_LEFT
                   : CGPU_TURN_GOES_ON;
    }
    if (other == NULL) {
        return CGPU_TURN_GOES_ON;
    }
    if (is_absent(holder, now)) {
        note_absence(holder, now);
        return CGPU_TURN_IS_LEFT;
    }
    if (holder->high != other->high) {
        return other->high ? CGPU_TURN_IS_OVER : CGPU_TURN_GOES_ON;
    }
    return cgpu_turn_left(arbiter, holder, other) == 0 ? CGPU_TURN_IS_OVER : CGPU_TURN_GOES_ON;
}

static enum cgpu_gate
gate_of_holder(const struct cgpu_arbiter *arbiter, uint64_t now)
{
    const struct cgpu_tenant *holder = &arbiter->tenants[arbiter->holder];

    if (cgpu_tenant_is_capped(holder) || !cgpu_turn_alone(arbiter, holder, CGPU_RECENT_NS, now)) {
        return CGPU_GATE_PRESSED;
    }
    return cgpu_turn_alone(arbiter, holder, CGPU_ALONE_NS, now) ? CGPU_GATE_FREE : CGPU_GATE_OPEN;
}

void
cgpu_turn_refresh_gate(struct cgpu_arbiter *arbiter, uint64_t now)
{
    if (arbiter->holder >= 0) {
        arbiter->tenants[arbiter->holder].gate = gate_of_holder(arbiter, now);
    }
}

void
cgpu_turn_finish(struct cgpu_arbiter *arbiter, enum cgpu_turn_end why, uint64_t now)
{
    struct cgpu_tenant *holder = &arbiter->tenants[arbiter->holder];
    bool unseen = !holder->shown && holder->demand.waiting && why == CGPU_TURN_IS_OVER;
    uint64_t unseen_ns = holder->unseen_ns + cgpu_since(now, holder->opened_ns);

    holder->unseen_ns = unseen ? cgpu_lesser(unseen_ns, CGPU_ABSENT_NS) : 0;
    holder->yielded = why == CGPU_TURN_IS_LEFT;
    cgpu_overlap_end(arbiter, why == CGPU_TURN_IS_LEFT, now);
    /* even if it has nothing in flight: it may have launched since it was read */
    cgpu_state_change(arbiter, holder, CGPU_STATE_DRAINING, now);
}

/*
 * Close the gates that opened without turns: under another policy, or free for a lone container
 * that now has a ceiling. Work that was queued at them is not charged. But if a lone container's
 * gate was free and another container comes, the queued work delays the newcomer, and is charged.
 */
static void
close_unscheduled(struct cgpu_arbiter *arbiter, uint64_t now)
{
    cgpu_each_tenant(tenant, arbiter) {
        bool turns = cgpu_tenant_index(arbiter, tenant) == arbiter->holder &&
                     (tenant->gate != CGPU_GATE_FREE || !cgpu_tenant_is_capped(tenant) ||
                      !cgpu_turn_alone(arbiter, tenant, CGPU_ALONE_NS, now));

        if (tenant->state == CGPU_STATE_RUNNING && !turns) {
            cgpu_state_change(arbiter, tenant, CGPU_STATE_DRAINING, now);
            tenant->unscheduled = true;
        }
    }
}

static void
give_up_silent(struct cgpu_arbiter *arbiter, uint64_t now)
{
    cgpu_each_tenant(tenant, arbiter) {
        if (cgpu_tenant_goes_on(tenant) && tenant->demand.active &&
            now >= cgpu_turn_patience(tenant)) {
            cgpu_state_change(arbiter, tenant, CGPU_STATE_EXPIRED, now);
        }
    }
}

void
cgpu_turn_review(struct cgpu_arbiter *arbiter, uint64_t now)
{
    close_unscheduled(arbiter, now);
    give_up_silent(arbiter, now);
}

void
cgpu_turn(struct cgpu_arbiter *arbiter, uint64_t now)
{
    int next = cgpu_turn_next(arbiter, now, arbiter->holder);

    cgpu_turn_review(arbiter, now);
    if (arbiter->holder >= 0) {
        enum cgpu_turn_end end = cgpu_turn_end(arbiter, next, now);

        if (end != CGPU_TURN_GOES_ON) {
            cgpu_turn_finish(arbiter, end, now);
        }
    }
    if (arbiter->holder < 0) {
        next = cgpu_turn_next(arbiter, now, -1);
        next = next >= 0 ? next : cgpu_turn_only_one(arbiter);
        if (next >= 0 && cgpu_overlap_may(arbiter, next, now)) {
            cgpu_turn_open(arbiter, next, now);
        }
    }
    cgpu_turn_refresh_gate(arbiter, now);
}
