/* Shares over windows of time: wherever a window of that length begins, by spans. */
#include <math.h>

#include "model.h"

static double
off(uint64_t used, uint64_t of, double percent)
{
    return of == 0 ? 0 : fabs(100 * (double)used / (double)of - percent);
}

/* What TENANT used in the spans from FIRST up to END, and what all used. */
static uint64_t
used_in(const struct world *world, uint32_t tenant, uint32_t first, uint32_t end, uint64_t *all)
{
    uint64_t used = 0;

    *all = 0;
    for (uint32_t t = 0; t < world->scenario->tenant_count; t++) {
        for (uint32_t i = first; i < end; i++) {
            used += t == tenant ? world->tenants[t].spans.values[i] : 0;
            *all += world->tenants[t].spans.values[i];
        }
    }
    return used;
}

double
window_worst(const struct world *world, uint32_t tenant, uint64_t length_ns, double percent,
             bool of_time)
{
    uint32_t length = (uint32_t)(length_ns / SPAN_NS);
    double worst = 0;

    for (uint32_t end = 2 * length; end <= world->tenants[tenant].spans.count; end++) {
        uint64_t all;
        uint64_t used = used_in(world, tenant, end - length, end, &all);

        worst = fmax(worst, off(used, of_time ? length_ns : all, percent));
    }
    return worst;
}
