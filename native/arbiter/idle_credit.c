/*
 * The time in which a container had the GPU but did not use it, because its threads woke up late:
 * before the first launch of its turn, and from the end of its last kernel until that end is seen.
 *
 * A container beside others is charged for this time, because its gate opens before their work has
 * ended. A container with a ceiling that came to an idle GPU is not: its report of when its work
 * began and ended counts, up to a small part of all time. A false report gains no more than that.
 */
#include "arbiter/arbiter_state.h"

static uint64_t
take_credit(struct cgpu_tenant *tenant, uint64_t ns)
{
    struct cgpu_bucket *bucket = &tenant->bucket;

    if (!tenant->quiet || !cgpu_tenant_is_capped(tenant)) {
        return 0;
    }
    ns = cgpu_lesser(ns, bucket->idle_credit_ns);
    bucket->idle_credit_ns -= ns;
    return ns;
}

uint64_t
cgpu_idle_before(struct cgpu_tenant *tenant, uint64_t from, uint64_t now)
{
    uint64_t begun = cgpu_lesser(tenant->begun_ns, now);

    from = cgpu_larger(from, tenant->opened_ns + CGPU_START_NS);
    return take_credit(tenant, cgpu_since(begun, from));
}

/*
 * How much of the time after the end of the work is free. Free time left over from the beginning of
 * the turn is offset against it.
 */
uint64_t
cgpu_idle_after(struct cgpu_tenant *tenant, uint64_t from, uint64_t now)
{
    uint64_t rest = cgpu_since(tenant->opened_ns + CGPU_START_NS, tenant->begun_ns);
    uint64_t ended = cgpu_larger(from, tenant->demand.end_ns);

    return tenant->demand.active ? 0
                                 : take_credit(tenant, cgpu_since(cgpu_since(now, ended), rest));
}
