/* Turns that last through rests: see anticipation.h. */
#include "arbiter/arbiter_state.h"
#include "gate/gate_times.h"

/* After this many failures in a row to run beside a kernel, a turn may last through rests. */
enum { IN_VAIN_TIMES = 2 };
/*
 * Both in usual rests of the holder: the others' work must take longer than LONGER_TIMES; the turn
 * waits for its holder for at most PATIENCE_TIMES.
 */
enum { LONGER_TIMES = 4, PATIENCE_TIMES = 2 };
/*
 * Turns that last through rests may leave the GPU idle for 1/IDLE_PART of the time. The unused part
 * of that allowance is saved, up to MOST_NS.
 */
enum { IDLE_PART = 25 };
#define MOST_NS INT64_C(5000000)

/* A new rest counts for 1/REST_PART of the usual one. */
enum { REST_PART = 4 };

static bool
is_worth_it(const struct cgpu_arbiter *arbiter, const struct cgpu_tenant *holder,
            const struct cgpu_tenant *other)
{
    const struct cgpu_rest *rest = &holder->rest;

    if (holder->high != other->high ? other->high : cgpu_turn_left(arbiter, holder, other) == 0) {
        return false;
    }
    return holder->failures >= IN_VAIN_TIMES && rest->usual_ns != 0 &&
           rest->usual_ns * LONGER_TIMES < other->drain_ns;
}

static void
end(struct cgpu_arbiter *arbiter, struct cgpu_rest *rest, uint64_t ns)
{
    arbiter->anticipation_ns -= rest->anticipates ? (int64_t)ns : 0;
    rest->anticipates = false;
}

bool
cgpu_anticipate(struct cgpu_arbiter *arbiter, struct cgpu_tenant *holder,
                const struct cgpu_tenant *other, uint64_t now)
{
    struct cgpu_rest *rest = &holder->rest;
    bool may = other != NULL && arbiter->anticipation_ns > 0 && is_worth_it(arbiter, holder, other);

    if (holder->demand.soon && may) { /* its rest has not begun */
        end(arbiter, rest, rest->usual_ns);
        rest->since_ns = 0;
        return true;
    }
    if (rest->since_ns == 0 || rest->busy_ns != holder->demand.busy_ns) {
        end(arbiter, rest, rest->usual_ns); /* it has worked, and nobody saw when that began */
        rest->since_ns = now + (holder->demand.soon ? CGPU_REST_EARLY_NS : 0);
        rest->busy_ns = holder->demand.busy_ns;
    }
    if (may && now < rest->since_ns + PATIENCE_TIMES * rest->usual_ns) {
        rest->anticipates = true;
    } else {
        cgpu_anticipation_end(arbiter, holder, now);
    }
    return rest->anticipates;
}

void
cgpu_anticipation_end(struct cgpu_arbiter *arbiter, struct cgpu_tenant *tenant, uint64_t now)
{
    struct cgpu_rest *rest = &tenant->rest;

    /* limited, because time without an arbiter is no rest */
    end(arbiter, rest,
        cgpu_lesser(cgpu_since(now, rest->since_ns), PATIENCE_TIMES * rest->usual_ns + CGPU_MS));
}

uint64_t
cgpu_anticipation_until(const struct cgpu_tenant *holder)
{
    const struct cgpu_rest *rest = &holder->rest;

    return rest->anticipates ? rest->since_ns + PATIENCE_TIMES * rest->usual_ns : UINT64_MAX;
}

void
cgpu_anticipation_observe(struct cgpu_arbiter *arbiter, struct cgpu_tenant *tenant, uint64_t now)
{
    struct cgpu_rest *rest = &tenant->rest;
    uint64_t usual = rest->usual_ns, took = cgpu_since(now, rest->since_ns);

    if (rest->since_ns == 0) {
        return;
    }
    if (tenant->state == CGPU_STATE_RUNNING) {
        if (cgpu_tenant_works(tenant)) {
            end(arbiter, rest, cgpu_lesser(took, usual));
            rest->since_ns = 0;
        }
    } else if (tenant->demand.waiting) {
        if (took < CGPU_RECENT_NS) {
            rest->usual_ns = usual == 0 ? took : usual - usual / REST_PART + took / REST_PART;
        }
        rest->since_ns = 0;
    }
}

void
cgpu_anticipation_refill(struct cgpu_arbiter *arbiter, uint64_t ns)
{
    int64_t earned = arbiter->anticipation_ns + (int64_t)(ns / IDLE_PART);

    arbiter->anticipation_ns = earned < MOST_NS ? earned : MOST_NS;
}
