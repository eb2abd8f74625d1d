/*
 * Whose turn is next, and how long turns last. Nothing here changes an arbiter: turn.c does.
 */
#include "arbiter/arbiter_state.h"

/* A turn lasts at least for a usual burst and 1/BURST_PART of it more, if both take <= BURST_NS. */
enum { BURST_PART = 4 };
#define BURST_NS (8 * CGPU_MS)

/* What a full turn adds to the virtual time of a container of this priority. */
static uint64_t
quantum_of(const struct cgpu_arbiter *arbiter, bool high)
{
    uint64_t sum = 0, count = 0, lag = 0, turns;

    cgpu_each_tenant(tenant, arbiter) {
        if (tenant->high == high && cgpu_tenant_wants(tenant)) {
            sum += tenant->claim.competes;
            count += 1;
            lag = cgpu_larger(lag, tenant->demand.lag_ns);
        }
    }
    turns = cgpu_larger(CGPU_ROUND_NS, CGPU_ROUND_LAGS * lag);
    turns += CGPU_ROUND_PER_EXTRA_NS * cgpu_since(count, 2);
    return turns * CGPU_VIRTUAL_UNIT / (sum > 0 ? sum : CGPU_WEIGHT_PARTS);
}

/* A container that is closer than this to the end of the round has had its turn. */
static uint64_t
rest_of_turn(uint64_t quantum)
{
    return quantum / 8;
}

uint64_t
cgpu_turn_round_end(const struct cgpu_arbiter *arbiter, bool high, uint64_t least)
{
    uint64_t quantum = quantum_of(arbiter, high);
    uint64_t rest = rest_of_turn(quantum);
    uint64_t end = cgpu_lesser(arbiter->round_end_ns[high], least + 2 * quantum);

    return least + rest <= end ? end : cgpu_larger(end, least) + quantum;
}

bool
cgpu_turn_allowed(const struct cgpu_arbiter *arbiter, const struct cgpu_tenant *tenant,
                  uint64_t now)
{
    if (!cgpu_tenant_is_present(tenant) || tenant->absent_until > now) {
        return false;
    }
    if ((cgpu_tenant_is_draining(tenant) && tenant->unscheduled) ||
        tenant->state == CGPU_STATE_OVERLAPPED) {
        return false;
    }
    /* not for ever, because what is in flight may wait for the launch that waits at the gate */
    if (tenant->state == CGPU_STATE_EXPIRED && !tenant->several &&
        now < tenant->closed_ns + CGPU_LONGEST_NS) {
        return false;
    }
    return !(tenant->high ? arbiter->high.dry : tenant->bucket.dry);
}

static bool
may_be_next(const struct cgpu_arbiter *arbiter, const struct cgpu_tenant *tenant, uint64_t now)
{
    return tenant->demand.waiting && cgpu_turn_allowed(arbiter, tenant, now);
}

/*
 * Find the priority of the next container (HIGH), and the least charge (LEAST) of the containers of
 * that priority that wait. False: nobody waits.
 */
static bool
find_least(const struct cgpu_arbiter *arbiter, uint64_t now, int except, bool *high,
           uint64_t *least)
{
    bool found = false;

    cgpu_each_tenant(tenant, arbiter) {
        if (cgpu_tenant_index(arbiter, tenant) == except || !may_be_next(arbiter, tenant, now)) {
            continue;
        }
        if (!found || tenant->high > *high) {
            *high = tenant->high;
            *least = tenant->virtual_ns;
        } else if (tenant->high == *high) {
            *least = cgpu_lesser(*least, tenant->virtual_ns);
        }
        found = true;
    }
    return found;
}

/*
 * Choose the next container. High priority goes first. Then, of those not at the end of the round,
 * the one that has waited longest. If only the least charge counted, one of three containers could
 * have two turns in a row by chance.
 */
int
cgpu_turn_next(const struct cgpu_arbiter *arbiter, uint64_t now, int except)
{
    bool high = false;
    uint64_t least = 0, below;
    const struct cgpu_tenant *best = NULL;

    if (!find_least(arbiter, now, except, &high, &least)) {
        return -1;
    }
    below = cgpu_turn_round_end(arbiter, high, least) - rest_of_turn(quantum_of(arbiter, high));
    cgpu_each_tenant(tenant, arbiter) {
        if (cgpu_tenant_index(arbiter, tenant) != except && may_be_next(arbiter, tenant, now) &&
            tenant->high == high && tenant->virtual_ns <= below &&
            (best == NULL || tenant->closed_ns < best->closed_ns)) {
            best = tenant;
        }
    }
    return best == NULL ? -1 : cgpu_tenant_index(arbiter, best);
}

bool
cgpu_turn_is_due(const struct cgpu_arbiter *arbiter, int index, uint64_t now)
{
    const struct cgpu_tenant *tenant = &arbiter->tenants[index];
    bool high = false;
    uint64_t least = 0;

    if (!cgpu_turn_allowed(arbiter, tenant, now)) {
        return false;
    }
    if (!find_least(arbiter, now, -1, &high, &least) || tenant->high != high) {
        return tenant->high >= high;
    }
    return tenant->virtual_ns <=
           cgpu_turn_round_end(arbiter, high, least) - rest_of_turn(quantum_of(arbiter, high));
}

static uint64_t
real_ns(const struct cgpu_tenant *tenant, uint64_t virtual_ns)
{
    return (virtual_ns * tenant->claim.competes + CGPU_VIRTUAL_UNIT - 1) / CGPU_VIRTUAL_UNIT;
}

/* The least length of a turn, so that a burst is not cut shortly before its usual end. */
static uint64_t
least_turn(const struct cgpu_tenant *holder)
{
    uint64_t burst = holder->usual_ns + holder->usual_ns / BURST_PART;

    if (burst > BURST_NS) {
        return CGPU_TURN_MIN_NS;
    }
    return cgpu_larger(CGPU_TURN_MIN_NS, burst + CGPU_FLIGHT_NS + holder->demand.lag_ns);
}

/*
 * How long HOLDER may go on: until it is at the end of the round, including what it has in flight,
 * and no longer behind OTHER. If OTHER left its last turn because it had nothing to do, it waits
 * only until it is level with HOLDER, but long enough that the two do not change all the time.
 */
uint64_t
cgpu_turn_left(const struct cgpu_arbiter *arbiter, const struct cgpu_tenant *holder,
               const struct cgpu_tenant *other)
{
    uint64_t left = real_ns(holder, cgpu_since(other->virtual_ns, holder->virtual_ns));

    if (other->yielded) {
        left = cgpu_larger(left, cgpu_since(CGPU_PAIR_NS, other->turn_ns + holder->turn_ns));
    } else {
        uint64_t end = arbiter->round_end_ns[holder->high];

        left = cgpu_larger(left, real_ns(holder, cgpu_since(end, holder->virtual_ns)));
        left = cgpu_larger(left, cgpu_since(least_turn(holder), holder->turn_ns));
    }
    return cgpu_since(left, CGPU_FLIGHT_NS + holder->demand.lag_ns);
}

uint64_t
cgpu_turn_patience(const struct cgpu_tenant *tenant)
{
    uint64_t end = cgpu_larger(tenant->demand.end_ns, tenant->closed_ns);

    end = cgpu_lesser(end, tenant->closed_ns + CGPU_LONGEST_NS);
    return end + (tenant->state == CGPU_STATE_FOLLOWED ? CGPU_OVERLAP_NS : CGPU_SILENCE_NS);
}

bool
cgpu_turn_ends_soon(const struct cgpu_tenant *tenant, uint64_t early, uint64_t now)
{
    const struct cgpu_demand *demand = &tenant->demand;

    if (tenant->yielded && demand->idle) {
        return true; /* it has ended */
    }
    /* with several GPUs, work may wait for a peer that is not launched yet */
    return early > 0 && !tenant->several && demand->certain &&
           now >= tenant->closed_ns + CGPU_ANSWER_NS && demand->end_ns <= now + early;
}

bool
cgpu_turn_alone(const struct cgpu_arbiter *arbiter, const struct cgpu_tenant *tenant, uint64_t ns,
                uint64_t now)
{
    cgpu_each_tenant(other, arbiter) {
        if (other != tenant && (other->demand.waiting || cgpu_since(now, other->active_ns) < ns)) {
            return false;
        }
    }
    return true;
}

/* The only container, if it has no ceiling. It needs no turns, because nobody waits. */
int
cgpu_turn_only_one(const struct cgpu_arbiter *arbiter)
{
    int only = -1;

    cgpu_each_tenant(tenant, arbiter) {
        if (only >= 0 || cgpu_tenant_is_capped(tenant)) {
            return -1;
        }
        only = cgpu_tenant_index(arbiter, tenant);
    }
    return only;
}

/* The GPU's lag: the least that a container reports, so that nobody gains by reporting more. */
uint64_t
cgpu_lag_least(const struct cgpu_arbiter *arbiter)
{
    uint64_t least = CGPU_LAG_NS;
    bool known = false;

    cgpu_each_tenant(tenant, arbiter) {
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
