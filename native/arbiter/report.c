/* Figures of a container, for display and for the time without an arbiter. */
#include <string.h>

#include "arbiter/arbiter_state.h"
#include "limits.h"

/* The part of TENANT by weight among the containers of its priority that work. */
static uint32_t
part_by_weight(const struct cgpu_arbiter *arbiter, const struct cgpu_tenant *tenant)
{
    uint64_t sum = tenant->claim.competes;

    cgpu_each_tenant(other, arbiter) {
        if (other != tenant && cgpu_tenant_wants(other) && other->high == tenant->high) {
            sum += other->claim.competes;
        }
    }
    return (uint32_t)(tenant->claim.competes * (uint64_t)CGPU_WHOLE_PPM / sum);
}

static uint32_t
offset_of(const struct cgpu_arbiter *arbiter, const struct cgpu_tenant *tenant)
{
    uint64_t offset = 0;

    cgpu_each_tenant(other, arbiter) {
        offset += other < tenant ? other->claim.fallback_ppm : 0;
    }
    return (uint32_t)(offset % CGPU_WHOLE_PPM);
}

/*
 * The flags of TENANT. It launches far ahead (CGPU_METERED_SLICED) if gates are open together and
 * it has one process, or if it runs beside a kernel: it must fill its time slices on the GPU.
 */
uint32_t
cgpu_report_turns(const struct cgpu_arbiter *arbiter, const struct cgpu_tenant *tenant)
{
    bool together = arbiter->corun.on;
    bool sliced =
        (together && tenant->demand.processes <= 1) ||
        (tenant->state == CGPU_STATE_RUNNING && tenant->in_overlap && tenant->alone_ns == 0);

    return CGPU_METERED | (together ? CGPU_METERED_ROUGHLY : 0) |
           (cgpu_used_is_corrected(arbiter, tenant) ? 0 : CGPU_METERED_SPANS) |
           (together || tenant->corunner.met ? CGPU_METERED_TOGETHER : 0) |
           (sliced ? CGPU_METERED_SLICED : 0);
}

uint32_t
cgpu_arbiter_metered(const struct cgpu_arbiter *arbiter, int index)
{
    const struct cgpu_tenant *tenant = &arbiter->tenants[index];

    return tenant->gate == CGPU_GATE_FREE ? 0 : arbiter->discipline->report(arbiter, tenant);
}

/* The limit of TENANT while all containers that it competes with have work. */
static uint32_t
limit_of(const struct cgpu_arbiter *arbiter, const struct cgpu_tenant *tenant)
{
    if (!arbiter->discipline->metered) {
        return CGPU_WHOLE_PPM;
    }
    if (tenant->high) {
        return arbiter->rules.prio_ratio * (CGPU_WHOLE_PPM / 100);
    }
    if (tenant->claim.ceiling_ppm == CGPU_WHOLE_PPM) {
        return part_by_weight(arbiter, tenant);
    }
    return tenant->claim.ceiling_ppm;
}

void
cgpu_arbiter_report(const struct cgpu_arbiter *arbiter, int index, struct cgpu_tenant_report *out)
{
    const struct cgpu_tenant *tenant = &arbiter->tenants[index];

    memset(out, 0, sizeof *out);
    if (!cgpu_tenant_is_present(tenant)) {
        return;
    }
    out->charged_ns = tenant->used.total_ns;
    out->throttled_ns = tenant->throttled_ns;
    out->waits = tenant->waits;
    out->measured_ppm = cgpu_used_ppm(arbiter, tenant);
    out->limit_ppm = limit_of(arbiter, tenant);
    out->fallback_ppm = tenant->claim.fallback_ppm;
    out->offset_ppm = offset_of(arbiter, tenant);
    out->metered = cgpu_arbiter_metered(arbiter, index);
}
