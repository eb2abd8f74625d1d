/*
 * Containers that do not fill the GPU.
 *
 * A program that launches one small kernel after the other leaves the GPU idle between them, and in
 * turns of its own nobody uses that. But GPUs divide their time between programs, and such programs
 * hardly delay each other. So now and then all gates open together for a short time. They stay open
 * if nobody gets less done than in turns, and all together much more. Turns return every two
 * seconds to compare again. Otherwise the next attempt comes later, after twice the time.
 *
 * Programs that fill the GPU cannot all gain: what one has, another one has not. What a container
 * reports as done can only end the time together, or keep it as long as nobody else loses.
 */
#include "arbiter/arbiter_state.h"

/* Turns, and time together that has proved worth it, are measured for this long. */
#define COMPARE_NS (100 * CGPU_MS)
#define ATTEMPT_NS (20 * CGPU_MS)
/* Then turns are measured again. */
#define TRUST_NS (2000 * CGPU_MS)
/* No attempt for this long after the first failure. */
#define AGAIN_NS (1000 * CGPU_MS)
/* Who fills the GPU has more than this in flight when its gate closes. */
#define IDLE_NS UINT64_C(250000)
/* Kernels that take longer could not be measured in an attempt. */
#define LONG_NS (2 * CGPU_MS)
/* Who competed within this time takes part. */
#define RIVAL_NS (50 * CGPU_MS)

/* Of what is done in turns, in percent: the least for each, and for all together. */
enum { PERCENT = 100, LEAST_AT_FIRST = 90, LEAST = 95, GAIN_AT_FIRST = 130, GAIN = 115 };
enum { FAILURES = 6 };

static uint64_t
find_rivals(const struct cgpu_arbiter *arbiter, uint64_t now)
{
    uint64_t rivals = 0;

    for (int i = 0; i < CGPU_MAX_TENANTS; i++) {
        const struct cgpu_tenant *tenant = &arbiter->tenants[i];

        /* short work may begin and end between two looks */
        uint64_t at = cgpu_larger(tenant->competed_ns, tenant->companion.at_ns);

        if (cgpu_tenant_is_present(tenant) && at != 0 && cgpu_since(now, at) < RIVAL_NS) {
            rivals |= UINT64_C(1) << i;
        }
    }
    return rivals;
}

static bool
is_rival(const struct cgpu_arbiter *arbiter, int index)
{
    return (arbiter->company.rivals >> index & 1) != 0;
}

/* Not with limits, with others that wait for what is in flight, or with those that do not run. */
static bool
may_meet(const struct cgpu_arbiter *arbiter, uint64_t now)
{
    for (int i = 0; i < CGPU_MAX_TENANTS; i++) {
        const struct cgpu_tenant *tenant = &arbiter->tenants[i];

        if (cgpu_tenant_is_present(tenant) &&
            (tenant->high || tenant->several || cgpu_tenant_is_capped(tenant) ||
             tenant->stage == CGPU_STAGE_EXPIRED || tenant->absent_until > now)) {
            return false;
        }
    }
    return true;
}

/* Whether anybody leaves the GPU idle. */
static bool
may_gain(const struct cgpu_arbiter *arbiter)
{
    bool idle = false;

    for (int i = 0; i < CGPU_MAX_TENANTS; i++) {
        const struct cgpu_tenant *tenant = &arbiter->tenants[i];

        if (is_rival(arbiter, i)) {
            if (tenant->drain_ns > LONG_NS || tenant->companion.turns_ns == 0) {
                return false;
            }
            idle |= tenant->drain_ns < IDLE_NS;
        }
    }
    return idle;
}

static uint64_t
done_by(const struct cgpu_tenant *tenant)
{
    return cgpu_since(tenant->demand.done_ns, tenant->companion.before_ns);
}

static void
measure(struct cgpu_arbiter *arbiter, uint64_t now)
{
    arbiter->company.since_ns = now;
    for (int i = 0; i < CGPU_MAX_TENANTS; i++) {
        arbiter->tenants[i].companion.before_ns = arbiter->tenants[i].demand.done_ns;
    }
}

/* What each does in COMPARE_NS of turns. */
static void
note_turns(struct cgpu_arbiter *arbiter, uint64_t ns)
{
    for (int i = 0; i < CGPU_MAX_TENANTS; i++) {
        struct cgpu_tenant *tenant = &arbiter->tenants[i];

        tenant->companion.turns_ns = done_by(tenant) / (ns / 1000) * (COMPARE_NS / 1000);
    }
}

/* Whether everybody has done enough in NS, and all together more than in turns. */
static bool
is_worth_it(const struct cgpu_arbiter *arbiter, uint64_t ns)
{
    bool proven = arbiter->company.proven;
    uint64_t least = proven ? LEAST : LEAST_AT_FIRST;
    uint64_t gain = proven ? GAIN : GAIN_AT_FIRST;
    uint64_t all_done = 0, all_turns = 0;

    for (int i = 0; i < CGPU_MAX_TENANTS; i++) {
        const struct cgpu_tenant *tenant = &arbiter->tenants[i];
        uint64_t turns = tenant->companion.turns_ns / 1000 * (ns / 1000) / (COMPARE_NS / 1000);
        uint64_t done = done_by(tenant) / 1000;

        if (is_rival(arbiter, i)) {
            if (done * PERCENT < turns * least) {
                return false;
            }
            all_done += done;
            all_turns += turns;
        }
    }
    return all_done * PERCENT >= all_turns * gain;
}

void
cgpu_company_end(struct cgpu_arbiter *arbiter, uint64_t now)
{
    if (arbiter->company.on) {
        cgpu_arbiter_forget_leads(arbiter);
    }
    arbiter->company.on = false;
    arbiter->company.proven = false;
    measure(arbiter, now);
}

static void
judge(struct cgpu_arbiter *arbiter, uint64_t ns, uint64_t now)
{
    struct cgpu_company *company = &arbiter->company;

    if (ns < (company->proven ? COMPARE_NS : ATTEMPT_NS)) {
        return;
    }
    if (!is_worth_it(arbiter, ns)) {
        company->again_ns = now + (AGAIN_NS << company->failures);
        company->failures += company->failures < FAILURES;
        cgpu_company_end(arbiter, now);
        return;
    }
    if (company->proven) {
        company->failures = 0;
    } else {
        company->until_ns = now + TRUST_NS;
    }
    company->proven = true;
    measure(arbiter, now);
    if (now >= company->until_ns) {
        cgpu_company_end(arbiter, now);
    }
}

bool
cgpu_company(struct cgpu_arbiter *arbiter, uint64_t now)
{
    struct cgpu_company *company = &arbiter->company;
    uint64_t rivals = find_rivals(arbiter, now), ns = cgpu_since(now, company->since_ns);
    bool several = (rivals & (rivals - 1)) != 0;

    if (rivals != company->rivals || !several || !may_meet(arbiter, now)) {
        company->rivals = rivals;
        cgpu_company_end(arbiter, now);
    } else if (company->on) {
        judge(arbiter, ns, now);
    } else if (ns >= COMPARE_NS) {
        note_turns(arbiter, ns);
        company->on = now >= company->again_ns && may_gain(arbiter);
        measure(arbiter, now);
    }
    return company->on;
}
