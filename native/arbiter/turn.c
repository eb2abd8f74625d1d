/* Exclusive turns: when the holder gives way, and who is next. */
#include "arbiter/arbiter_state.h"

/* A turn lasts for a usual burst and this part of it more, if that is at most BURST_NS. */
enum { BURST_PART = 4 };
#define BURST_NS (8 * CGPU_MS)

/* What a turn adds to the virtual time of one of this priority. */
static uint64_t
quantum_of(const struct cgpu_arbiter *arbiter, bool high)
{
    uint64_t sum = 0, count = 0, lag = 0, turns;

    for (int i = 0; i < CGPU_MAX_TENANTS; i++) {
        const struct cgpu_tenant *tenant = &arbiter->tenants[i];

        if (tenant->high == high && cgpu_tenant_wants(tenant)) {
            sum += tenant->claim.competes;
            count += 1;
            lag = cgpu_larger(lag, tenant->demand.lag_ns);
        }
    }
    turns = cgpu_larger(CGPU_TURNS_NS, CGPU_TURNS_LAGS * lag);
    turns += CGPU_MORE_NS * cgpu_since(count, 2);
    return turns * CGPU_VIRTUAL_UNIT / cgpu_larger(sum, 1);
}

/* Lacking less than this to the level, one has had its turn. */
static uint64_t
rest_of_turn(uint64_t quantum)
{
    return quantum / 8;
}

/*
 * The current level, or the next one if all those that wait have had their turns. LEAST is the
 * least charge among them. The level is never more than two turns above it, because containers come
 * and weights change.
 */
static uint64_t
level_for(const struct cgpu_arbiter *arbiter, bool high, uint64_t least)
{
    uint64_t quantum = quantum_of(arbiter, high);
    uint64_t rest = rest_of_turn(quantum);
    uint64_t level = cgpu_lesser(arbiter->level_ns[high], least + 2 * quantum);

    return least + rest <= level ? level : cgpu_larger(level, least) + quantum;
}

void
cgpu_turn_reopen(struct cgpu_arbiter *arbiter, int index, uint64_t now)
{
    cgpu_stage_change(arbiter, &arbiter->tenants[index], CGPU_STAGE_HOLDS, now);
    arbiter->holder = index;
}

void
cgpu_turn_open(struct cgpu_arbiter *arbiter, int index, uint64_t now)
{
    struct cgpu_tenant *tenant = &arbiter->tenants[index];

    cgpu_beside_begin(arbiter, index, now);
    cgpu_turn_reopen(arbiter, index, now);
    arbiter->level_ns[tenant->high] = level_for(arbiter, tenant->high, tenant->virtual_ns);
    tenant->turn_ns = 0;
    tenant->idle_ns = 0;
    tenant->turns += 1;
    tenant->start_ns = CGPU_START_NS + cgpu_lag_least(arbiter);
    if (tenant->yielded) { /* each rest costs two switches, which nobody is charged for */
        uint64_t ns = 2 * (CGPU_START_NS + tenant->demand.lag_ns);

        tenant->virtual_ns += ns * CGPU_VIRTUAL_UNIT / tenant->claim.competes;
    }
    tenant->times = 0;
    tenant->until_ns = 0;
    arbiter->turns += 1;
}

void
cgpu_turn_close(struct cgpu_arbiter *arbiter, int index, uint64_t now)
{
    /* even if nothing was seen in flight: it may have launched since */
    cgpu_stage_change(arbiter, &arbiter->tenants[index], CGPU_STAGE_CLOSING, now);
}

bool
cgpu_turn_allowed(const struct cgpu_arbiter *arbiter, const struct cgpu_tenant *tenant,
                  uint64_t now)
{
    if (!cgpu_tenant_is_present(tenant) || tenant->absent_until > now) {
        return false;
    }
    if ((cgpu_tenant_is_closing(tenant) && tenant->stray) || tenant->stage == CGPU_STAGE_BESIDE) {
        return false;
    }
    /* not for ever: what is in flight may wait for what waits at the gate */
    if (tenant->stage == CGPU_STAGE_EXPIRED && !tenant->several &&
        now < tenant->closed_ns + CGPU_LONGEST_NS) {
        return false;
    }
    return !(tenant->high ? arbiter->high.dry : tenant->bucket.dry);
}

static bool
may_be_next(const struct cgpu_arbiter *arbiter, int index, uint64_t now)
{
    const struct cgpu_tenant *tenant = &arbiter->tenants[index];

    return tenant->demand.waiting && cgpu_turn_allowed(arbiter, tenant, now);
}

/* The priority of the next one and the least that one of it has been charged; false: nobody. */
static bool
find_least(const struct cgpu_arbiter *arbiter, uint64_t now, int except, bool *high,
           uint64_t *least)
{
    bool found = false;

    for (int i = 0; i < CGPU_MAX_TENANTS; i++) {
        const struct cgpu_tenant *tenant = &arbiter->tenants[i];

        if (i == except || !may_be_next(arbiter, i, now)) {
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
 * High priority first. Then in turns: of those below the level, the one that has waited longest. By
 * the least charge alone, chance would give one of three containers two turns in a row.
 */
int
cgpu_turn_next(const struct cgpu_arbiter *arbiter, uint64_t now, int except)
{
    bool high = false;
    uint64_t least = 0, below;
    int best = -1;

    if (!find_least(arbiter, now, except, &high, &least)) {
        return -1;
    }
    below = level_for(arbiter, high, least) - rest_of_turn(quantum_of(arbiter, high));
    for (int i = 0; i < CGPU_MAX_TENANTS; i++) {
        const struct cgpu_tenant *tenant = &arbiter->tenants[i];

        if (i != except && may_be_next(arbiter, i, now) && tenant->high == high &&
            tenant->virtual_ns <= below &&
            (best < 0 || tenant->closed_ns < arbiter->tenants[best].closed_ns)) {
            best = i;
        }
    }
    return best;
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
           level_for(arbiter, high, least) - rest_of_turn(quantum_of(arbiter, high));
}

static uint64_t
real_ns(const struct cgpu_tenant *tenant, uint64_t virtual_ns)
{
    return (virtual_ns * tenant->claim.competes + CGPU_VIRTUAL_UNIT - 1) / CGPU_VIRTUAL_UNIT;
}

/* A burst is not cut shortly before its usual end. */
static uint64_t
least_turn(const struct cgpu_tenant *holder)
{
    uint64_t burst = holder->usual_ns + holder->usual_ns / BURST_PART;

    if (burst > BURST_NS) {
        return CGPU_TURN_NS;
    }
    return cgpu_larger(CGPU_TURN_NS, burst + CGPU_FLIGHT_NS + holder->demand.lag_ns);
}

/*
 * Until HOLDER, with what it has in flight, is at the level, and no longer behind OTHER. If OTHER
 * had left its turn because it had nothing to do, HOLDER was let in meanwhile: OTHER waits only
 * until both are level, and not so that they change places all the time.
 */
uint64_t
cgpu_turn_left(const struct cgpu_arbiter *arbiter, const struct cgpu_tenant *holder,
               const struct cgpu_tenant *other)
{
    uint64_t left = real_ns(holder, cgpu_since(other->virtual_ns, holder->virtual_ns));

    if (other->yielded) {
        left = cgpu_larger(left, cgpu_since(CGPU_PAIR_NS, other->turn_ns + holder->turn_ns));
    } else {
        uint64_t level = arbiter->level_ns[holder->high];

        left = cgpu_larger(left, real_ns(holder, cgpu_since(level, holder->virtual_ns)));
        left = cgpu_larger(left, cgpu_since(least_turn(holder), holder->turn_ns));
    }
    return cgpu_since(left, CGPU_FLIGHT_NS + holder->demand.lag_ns);
}

/* Nothing was seen of HOLDER since its gate opened, nor in turns before, which may be short. */
static bool
is_absent(const struct cgpu_tenant *holder, uint64_t now)
{
    return !holder->shown &&
           cgpu_since(now, holder->opened_ns) + holder->unseen_ns >= CGPU_ABSENT_NS;
}

/* It has worked and has nothing more to do. */
static bool
is_done(const struct cgpu_tenant *holder)
{
    return holder->shown && !cgpu_tenant_works(holder);
}

/* The time that it holds counts against a limit, even while nobody else may have the GPU. */
static bool
is_limited(const struct cgpu_arbiter *arbiter, const struct cgpu_tenant *holder)
{
    return cgpu_tenant_is_capped(holder) || (holder->high && cgpu_arbiter_is_contended(arbiter));
}

static void
note_absence(struct cgpu_tenant *holder, uint64_t now)
{
    if (!holder->demand.waiting) {
        return; /* it does not want any more, that is all */
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
        if (cgpu_linger(arbiter, holder, other, now)) {
            return CGPU_TURN_GOES_ON;
        }
        return other != NULL || is_limited(arbiter, holder) || cgpu_beside_any(arbiter)
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

uint64_t
cgpu_turn_patience(const struct cgpu_tenant *tenant)
{
    uint64_t end = cgpu_larger(tenant->demand.end_ns, tenant->closed_ns);

    end = cgpu_lesser(end, tenant->closed_ns + CGPU_LONGEST_NS);
    return end + (tenant->stage == CGPU_STAGE_FOLLOWED ? CGPU_OVERLAP_NS : CGPU_SILENCE_NS);
}

bool
cgpu_turn_ends_soon(const struct cgpu_tenant *tenant, uint64_t early, uint64_t now)
{
    const struct cgpu_demand *demand = &tenant->demand;

    if (tenant->yielded && demand->idle) {
        return true; /* it has ended */
    }
    /* work on several GPUs may wait for a peer that is not launched yet */
    return early > 0 && !tenant->several && demand->certain &&
           now >= tenant->closed_ns + CGPU_ANSWER_NS && demand->end_ns <= now + early;
}

bool
cgpu_turn_alone(const struct cgpu_arbiter *arbiter, int index, uint64_t ns, uint64_t now)
{
    for (int i = 0; i < CGPU_MAX_TENANTS; i++) {
        const struct cgpu_tenant *tenant = &arbiter->tenants[i];

        if (i != index && cgpu_tenant_is_present(tenant) &&
            (tenant->demand.waiting || cgpu_since(now, tenant->active_ns) < ns)) {
            return false;
        }
    }
    return true;
}

/* Nobody waits: the only one there is needs no turn. */
int
cgpu_turn_only_one(const struct cgpu_arbiter *arbiter)
{
    int only = -1;

    for (int i = 0; i < CGPU_MAX_TENANTS; i++) {
        if (cgpu_tenant_is_present(&arbiter->tenants[i])) {
            if (only >= 0 || cgpu_tenant_is_capped(&arbiter->tenants[i])) {
                return -1;
            }
            only = i;
        }
    }
    return only;
}

static enum cgpu_gate
gate_of_holder(const struct cgpu_arbiter *arbiter, uint64_t now)
{
    int index = arbiter->holder;

    if (cgpu_tenant_is_capped(&arbiter->tenants[index]) ||
        !cgpu_turn_alone(arbiter, index, CGPU_RECENT_NS, now)) {
        return CGPU_GATE_PRESSED;
    }
    return cgpu_turn_alone(arbiter, index, CGPU_ALONE_NS, now) ? CGPU_GATE_FREE : CGPU_GATE_OPEN;
}

void
cgpu_turn_press(struct cgpu_arbiter *arbiter, uint64_t now)
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
    cgpu_beside_end(arbiter, why == CGPU_TURN_IS_LEFT, now);
    cgpu_turn_close(arbiter, arbiter->holder, now);
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
        if (next >= 0 && cgpu_beside_may(arbiter, next, now)) {
            cgpu_turn_open(arbiter, next, now);
        }
    }
    cgpu_turn_press(arbiter, now);
}
