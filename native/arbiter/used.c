/*
 * The GPU time that is shown for a container: its charge, corrected by its markers whenever all its
 * work has ended.
 *
 * If it was charged more than it used, because the GPU was idle or worked for another container,
 * the difference is left out of what it is shown next. If it used more, it is shown the rest as
 * well, up to the sum of such differences and of the beginnings of turns, which are charged to
 * nobody. Reports change only the figures shown, not debt. Nothing is corrected after work of a
 * stalled stream, because its time was not measured.
 */
#include "arbiter/arbiter_state.h"

/*
 * The most that over_ns may hold back. Without a limit, a container that reports too little work
 * could be shown as idle for a long time.
 */
#define MOST_NS (40 * CGPU_MS)
#define PART_NS (1000 * CGPU_MS / CGPU_RECENT_PARTS)

static void
show(struct cgpu_arbiter *arbiter, struct cgpu_tenant *tenant, uint64_t ns)
{
    tenant->used.total_ns += ns;
    tenant->used.recent_ns[arbiter->part % CGPU_RECENT_PARTS] += ns;
}

void
cgpu_used_charge(struct cgpu_arbiter *arbiter, struct cgpu_tenant *tenant, uint64_t ns)
{
    uint64_t less = cgpu_lesser(ns, tenant->used.over_ns);
    uint64_t *from = &arbiter->part_from_ns[arbiter->part % CGPU_RECENT_PARTS];

    *from = ns > 0 ? cgpu_lesser(*from, arbiter->now) : *from;
    tenant->used.over_ns -= less;
    show(arbiter, tenant, ns - less);
}

void
cgpu_used_skip(struct cgpu_arbiter *arbiter, uint64_t ns)
{
    arbiter->unused_ns = cgpu_lesser(arbiter->unused_ns + ns, MOST_NS);
}

/*
 * Whether TENANT's reports correct what is shown. They do not if it has several GPUs: its kernels
 * spin on each until the last peer has started, and all that time counts as use
 * (CGPU_METERED_SPANS).
 */
bool
cgpu_used_is_corrected(const struct cgpu_arbiter *arbiter, const struct cgpu_tenant *tenant)
{
    return cgpu_arbiter_takes_turns(arbiter) && !arbiter->corun.on && !tenant->several;
}

void
cgpu_used_observe(struct cgpu_arbiter *arbiter, struct cgpu_tenant *tenant,
                  const struct cgpu_demand *says)
{
    struct cgpu_used *used = &tenant->used;
    uint64_t charged = tenant->charged_ns - used->charged_ns;
    uint64_t busy = cgpu_since(says->busy_ns, used->busy_ns);

    used->doubtful |= tenant->demand.active && !tenant->demand.certain;
    used->doubtful |= says->stalls != tenant->demand.stalls;
    used->doubtful |= says->stalled_ns != tenant->demand.stalled_ns;
    if (says->active || !tenant->demand.active) {
        return;
    }
    used->charged_ns = tenant->charged_ns;
    used->busy_ns = says->busy_ns;
    if (cgpu_used_is_corrected(arbiter, tenant) && busy > 0 && !used->doubtful) {
        uint64_t over = cgpu_since(charged, busy);
        uint64_t more = cgpu_lesser(cgpu_since(busy, charged), arbiter->unused_ns);

        used->over_ns = cgpu_lesser(used->over_ns + over, MOST_NS);
        arbiter->unused_ns -= more;
        cgpu_used_skip(arbiter, over);
        show(arbiter, tenant, more);
    }
    used->doubtful = false;
}

void
cgpu_used_turn_parts(struct cgpu_arbiter *arbiter, uint64_t now)
{
    uint64_t part = now / PART_NS;
    uint64_t passed = cgpu_lesser(part - arbiter->part, CGPU_RECENT_PARTS);

    for (uint64_t p = 0; p < passed; p++) {
        uint64_t at = (part - p) % CGPU_RECENT_PARTS;

        arbiter->part_from_ns[at] = cgpu_larger((part - p) * PART_NS, arbiter->now);
        cgpu_each_tenant(tenant, arbiter) {
            tenant->used.recent_ns[at] = 0;
        }
    }
    arbiter->part = part;
}

uint32_t
cgpu_used_ppm(const struct cgpu_arbiter *arbiter, const struct cgpu_tenant *tenant)
{
    uint64_t from = arbiter->now, ns, sum = 0;

    for (int part = 0; part < CGPU_RECENT_PARTS; part++) {
        from = cgpu_lesser(from, arbiter->part_from_ns[part]);
        sum += tenant->used.recent_ns[part];
    }
    ns = arbiter->now - from;
    /* in microseconds: the product of a time and a million might not fit */
    sum = sum / 1000 * CGPU_WHOLE_PPM / cgpu_larger(ns / 1000, 1);
    return (uint32_t)cgpu_lesser(sum, CGPU_WHOLE_PPM);
}
