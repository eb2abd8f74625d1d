/* When the next step of turns is due if nobody rings. */
#include "arbiter/arbiter_state.h"

static uint64_t
earlier(uint64_t a, uint64_t b, uint64_t now)
{
    return cgpu_lesser(a, cgpu_larger(b, now));
}

static uint64_t
for_draining(const struct cgpu_tenant *tenant, uint64_t early, uint64_t now)
{
    uint64_t answer = tenant->closed_ns + CGPU_ANSWER_NS;
    uint64_t soon = cgpu_since(tenant->demand.end_ns, early);
    uint64_t at = earlier(now + CGPU_DEATH_NS, cgpu_turn_patience(tenant), now + 1);

    if (!tenant->asked) {
        return now; /* its gate has just closed: it may have launched something before */
    }
    if (now < answer) {
        return answer;
    }
    if (early > 0 && tenant->demand.certain && tenant->state != CGPU_STATE_FOLLOWED && soon > now) {
        at = cgpu_lesser(at, soon);
    }
    return at;
}

static uint64_t
for_holder(const struct cgpu_arbiter *arbiter, uint64_t now)
{
    const struct cgpu_tenant *holder = &arbiter->tenants[arbiter->holder];
    int next = cgpu_turn_next(arbiter, now, arbiter->holder);
    uint64_t at = UINT64_MAX;

    if (holder->gate == CGPU_GATE_FREE) {
        return at;
    }
    if (holder->until_ns > now) {
        return holder->until_ns;
    }
    if (cgpu_tenant_is_capped(holder)) {
        at = earlier(at, now + cgpu_bucket_lasts(&holder->bucket), now + 1);
    }
    if (holder->high && cgpu_arbiter_is_contended(arbiter)) {
        at = earlier(at, now + cgpu_bucket_lasts(&arbiter->high), now + 1);
    }
    if (next >= 0) {
        if (holder->high == arbiter->tenants[next].high) {
            uint64_t left = cgpu_turn_left(arbiter, holder, &arbiter->tenants[next]);

            at = earlier(at, now + left, now + 1);
        }
        if (!holder->shown) {
            at = earlier(at, holder->opened_ns + CGPU_ABSENT_NS - holder->unseen_ns, now + 1);
        }
    }
    at = earlier(at, cgpu_anticipation_until(holder), now + 1);
    /* time for new figures, and to see whether it is alone */
    return earlier(at, now + CGPU_RECENT_NS, now);
}

/* The next time at which TENANT, which waits, may be allowed to hold the GPU. */
static uint64_t
for_waiting(const struct cgpu_arbiter *arbiter, const struct cgpu_tenant *tenant, uint64_t now)
{
    uint64_t at = UINT64_MAX;

    if (tenant->absent_until > now) {
        at = tenant->absent_until;
    }
    if (tenant->state == CGPU_STATE_EXPIRED && now < tenant->closed_ns + CGPU_LONGEST_NS) {
        at = earlier(at, tenant->closed_ns + CGPU_LONGEST_NS, now + 1);
    }
    if (tenant->bucket.dry) {
        at = earlier(at, now + cgpu_bucket_rest(&tenant->bucket), now + 1);
    }
    if (tenant->high && arbiter->high.dry) {
        at = earlier(at, now + cgpu_bucket_rest(&arbiter->high), now + 1);
    }
    return at;
}

uint64_t
cgpu_poll_at(const struct cgpu_arbiter *arbiter, uint64_t now)
{
    uint64_t at = arbiter->holder >= 0 ? for_holder(arbiter, now) : UINT64_MAX;
    int next = cgpu_turn_next(arbiter, now, arbiter->holder);
    uint64_t early = cgpu_turn_early(arbiter, next);

    cgpu_each_tenant(tenant, arbiter) {
        if (cgpu_tenant_goes_on(tenant)) {
            uint64_t beside = cgpu_overlap_from(arbiter, tenant, next, now);

            at = cgpu_lesser(at, for_draining(tenant, early, now));
            at = beside > now ? cgpu_lesser(at, beside) : at;
        } else if (tenant->state != CGPU_STATE_RUNNING && tenant->demand.waiting) {
            at = cgpu_lesser(at, for_waiting(arbiter, tenant, now));
        }
    }
    return at;
}
