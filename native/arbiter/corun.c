/*
 * Containers that do not fill the GPU.
 *
 * A program that launches one small kernel after the other leaves the GPU idle between them, and in
 * its turn nobody else uses that time. But GPUs divide their time between programs, and such
 * programs hardly delay each other. So now and then all gates open together for a short time. They
 * stay open if nobody gets less done than in turns, and all together much more. Every four seconds
 * turns return for a new comparison. They also return as soon as a container does much more than
 * before. If an attempt was not worth it, the next one comes later, each time after twice as long.
 *
 * Programs that fill the GPU cannot all gain: what one gets, another one loses. A container that
 * reports more than it does keeps the gates open only while nobody else loses more than LEAST
 * allows.
 */
#include "arbiter/arbiter_state.h"

/* Turns are measured for this long: some ten turns of each container. */
#define MEASURE_NS (200 * CGPU_MS)
/* How long gates are open together before the result is compared: in an attempt, and later. */
#define ATTEMPT_NS (20 * CGPU_MS)
#define PROVEN_NS  (100 * CGPU_MS)
/* Gates stay open together for this long. Then turns are measured again. */
#define TRUST_NS (4000 * CGPU_MS)
/* The time from the first failure to the next attempt. */
#define AGAIN_NS (1000 * CGPU_MS)
/* A container that fills the GPU has more than this in flight when its gate closes. */
#define IDLE_NS UINT64_C(250000)
/* If kernels take longer than this, an attempt is too short to measure them. */
#define LONG_NS (2 * CGPU_MS)

/*
 * Gates stay open together if each container does at least LEAST percent of what it did in turns,
 * and all together at least GAIN percent. Until that is proven, the limits _AT_FIRST apply.
 */
enum { PERCENT = 100, LEAST_AT_FIRST = 90, LEAST = 95, GAIN_AT_FIRST = 130, GAIN = 115 };
enum { FAILURES = 6 };
/*
 * A container that works for less than this part of the time is not compared, because a comparison
 * would take too long.
 */
enum { WORTH_PART = 100 };
/*
 * A container has changed if it does MORE percent of what it did before, and works for this part of
 * the time more.
 */
enum { MORE = 125, MORE_PART = 20 };

static bool
is_rival(const struct cgpu_tenant *tenant)
{
    return tenant->corunner.turns_ns != 0;
}

/*
 * Whether all gates may be open together: no container has a ceiling, high priority or several
 * GPUs, each uses its turns, and all that was launched together last time has ended.
 */
static bool
may_corun(const struct cgpu_arbiter *arbiter, uint64_t now)
{
    cgpu_each_tenant(tenant, arbiter) {
        if (tenant->high || tenant->several || cgpu_tenant_is_capped(tenant) ||
            tenant->state == CGPU_STATE_EXPIRED || tenant->absent_until > now ||
            tenant->corunner.met) {
            return false;
        }
    }
    return true;
}

/* Whether there are several containers to compare, and one of them leaves the GPU idle. */
static bool
may_gain(const struct cgpu_arbiter *arbiter)
{
    uint32_t rivals = 0;
    bool idle = false;

    cgpu_each_tenant(tenant, arbiter) {
        if (is_rival(tenant)) {
            if (tenant->drain_ns > LONG_NS) {
                return false;
            }
            rivals += 1;
            idle |= tenant->drain_ns < IDLE_NS;
        }
    }
    return rivals > 1 && idle;
}

static uint64_t
done_by(const struct cgpu_tenant *tenant)
{
    return cgpu_since(tenant->demand.done_ns, tenant->corunner.before_ns);
}

/* DONE in NS, converted to what is done in MEASURE_NS. Nobody can do more than NS in NS. */
static uint64_t
in_turns(uint64_t done, uint64_t ns)
{
    return cgpu_lesser(done, ns) / (ns / 1000) * (MEASURE_NS / 1000);
}

static void
measure(struct cgpu_arbiter *arbiter, uint64_t now)
{
    arbiter->corun.since_ns = now;
    cgpu_each_tenant(tenant, arbiter) {
        tenant->corunner.before_ns = tenant->demand.done_ns;
        tenant->corunner.paid_ns = tenant->charged_ns;
    }
}

static bool
has_changed(uint64_t before, uint64_t now)
{
    return now > before * MORE / PERCENT && now > before + MEASURE_NS / MORE_PART;
}

/*
 * Note what each container does in MEASURE_NS of turns. Returns whether an attempt can be compared
 * with that. It cannot if a container did much more or less the last time (it may have just begun),
 * nor if one was charged but reports no finished work (its kernels are too long or unknown).
 */
static bool
note_turns(struct cgpu_arbiter *arbiter, uint64_t ns)
{
    bool certain = true;

    cgpu_each_tenant(tenant, arbiter) {
        struct cgpu_corunner *corunner = &tenant->corunner;
        uint64_t done = in_turns(done_by(tenant), ns), before = corunner->turns_ns;
        uint64_t paid = in_turns(tenant->charged_ns - corunner->paid_ns, ns);

        corunner->turns_ns = done < MEASURE_NS / WORTH_PART ? 0 : done;
        corunner->first_ns = 0;
        certain &= !has_changed(before, corunner->turns_ns);
        certain &= !has_changed(corunner->turns_ns, before);
        certain &= corunner->turns_ns != 0 || paid < MEASURE_NS / MORE_PART;
    }
    return certain;
}

/* Note what each container does while the gates are open together. */
static void
note_first(struct cgpu_arbiter *arbiter, uint64_t ns)
{
    cgpu_each_tenant(tenant, arbiter) {
        if (tenant->corunner.first_ns == 0) {
            tenant->corunner.first_ns = in_turns(done_by(tenant), ns);
        }
    }
}

/*
 * Whether the comparison no longer holds: a container works that did not work before, or does much
 * more than at first.
 */
static bool
does_more(const struct cgpu_arbiter *arbiter, uint64_t ns)
{
    cgpu_each_tenant(tenant, arbiter) {
        uint64_t first = tenant->corunner.first_ns;
        uint64_t done = in_turns(done_by(tenant), ns);

        if ((first != 0 || !is_rival(tenant)) && has_changed(first, done)) {
            return true;
        }
    }
    return false;
}

/*
 * Whether open gates were worth it in the last NS: each rival has done LEAST percent of what it
 * does in turns, and all rivals together GAIN percent.
 */
static bool
is_worth_it(const struct cgpu_arbiter *arbiter, uint64_t ns)
{
    bool proven = arbiter->corun.proven;
    uint64_t least = proven ? LEAST : LEAST_AT_FIRST;
    uint64_t gain = proven ? GAIN : GAIN_AT_FIRST;
    uint64_t all_done = 0, all_turns = 0;

    cgpu_each_tenant(tenant, arbiter) {
        uint64_t turns = tenant->corunner.turns_ns;
        uint64_t done = in_turns(done_by(tenant), ns);

        if (is_rival(tenant)) {
            if (done * PERCENT < turns * least) {
                return false;
            }
            all_done += done;
            all_turns += turns;
        }
    }
    return all_done * PERCENT >= all_turns * gain;
}

/* Close the gates that are open together. All containers whose work goes on share the charge. */
void
cgpu_corun_end(struct cgpu_arbiter *arbiter, uint64_t now)
{
    cgpu_each_tenant(tenant, arbiter) {
        if (arbiter->corun.on && tenant->state == CGPU_STATE_RUNNING) {
            cgpu_state_change(arbiter, tenant, CGPU_STATE_DRAINING, now);
            tenant->corunner.met = true;
            tenant->yielded = tenant->in_overlap = false;
        }
    }
    arbiter->corun.on = false;
    arbiter->corun.proven = false;
    measure(arbiter, now);
}

/*
 * Close the gates, and try again later: the first turns after a change still show what was before.
 */
void
cgpu_corun_change(struct cgpu_arbiter *arbiter, uint64_t now)
{
    cgpu_corun_end(arbiter, now);
    arbiter->corun.again_ns = cgpu_larger(arbiter->corun.again_ns, now + MEASURE_NS * 3 / 2);
}

static void
evaluate(struct cgpu_arbiter *arbiter, uint64_t ns, uint64_t now)
{
    struct cgpu_corun *corun = &arbiter->corun;

    if (!is_worth_it(arbiter, ns)) {
        corun->again_ns = now + (AGAIN_NS << corun->failures);
        corun->failures += corun->failures < FAILURES;
        cgpu_corun_end(arbiter, now);
        return;
    }
    if (does_more(arbiter, ns)) {
        cgpu_corun_end(arbiter, now);
        return;
    }
    if (corun->proven) {
        note_first(arbiter, ns);
    } else {
        corun->until_ns = now + TRUST_NS;
    }
    corun->proven = true;
    measure(arbiter, now);
    if (now >= corun->until_ns) {
        corun->failures = 0;
        cgpu_corun_end(arbiter, now);
    }
}

bool
cgpu_corun_step(struct cgpu_arbiter *arbiter, uint64_t now)
{
    struct cgpu_corun *corun = &arbiter->corun;
    uint64_t ns = cgpu_since(now, corun->since_ns);

    if (!may_corun(arbiter, now)) {
        cgpu_corun_end(arbiter, now);
    } else if (corun->on && ns >= (corun->proven ? PROVEN_NS : ATTEMPT_NS)) {
        evaluate(arbiter, ns, now);
    } else if (!corun->on && ns >= MEASURE_NS) {
        corun->on = note_turns(arbiter, ns) && now >= corun->again_ns && may_gain(arbiter);
        measure(arbiter, now);
    }
    return corun->on;
}
